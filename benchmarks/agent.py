"""Questions of people who train models, answered through the tools for agents.

`python -m benchmarks.agent` starts `meshwright mcp`, makes the calls that
benchmarks/agent.yaml has for each question, through the official client over stdio, and
holds the answers against the facts beside them. With `--endpoint URL --model NAME` a
language model makes the calls instead, and its last words are held against the same
facts: any server of chat completions with tools, its key in `MESHWRIGHT_API_KEY`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp_types import CallToolResult, ListToolsResult

ROOT = Path(__file__).parents[1]
QUESTIONS = ROOT / "benchmarks/agent.yaml"

LONGEST_S = 150.0
MOST_TURNS = 12
KEY = "MESHWRIGHT_API_KEY"

Json = dict[str, Any]

READ: Json = {
    "name": "read",
    "description": "Read the text at an address such as meshwright://answers/1/all.txt",
    "parameters": {
        "type": "object",
        "properties": {"uri": {"type": "string"}},
        "required": ["uri"],
    },
}
"""What clients do with links, as a tool beside those of the server."""


@dataclass(frozen=True)
class Question:
    """What somebody asked where, the calls that answer it, and facts of the answer."""

    thread: str
    """The issue or pull request, as owner/name#number; meshwright/questions: ours."""
    asks: str
    calls: list[dict[str, Json]]
    says: list[str]
    """Patterns that a right answer has; case does not matter."""
    never: list[str] = field(default_factory=list)
    """Patterns that a right answer does not have."""

    def wrong(self, answer: str) -> list[str]:
        """Return the facts that an answer lacks, and those that it has against them."""
        plain = " ".join(answer.split())
        lacks = [say for say in self.says if not re.search(say, plain, re.IGNORECASE)]
        against = [one for one in self.never if re.search(one, plain, re.IGNORECASE)]
        return [f"lacks {lack!r}" for lack in lacks] + [
            f"has {one!r}" for one in against
        ]


def questions() -> list[Question]:
    """Return the questions."""
    return [Question(**one) for one in yaml.safe_load(QUESTIONS.read_text("utf-8"))]


class Session:
    """A connection to `meshwright mcp`, for callers that do not wait for each other."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        """Keep a client that is connected, and the loop in which it runs."""
        self._client = client
        self._loop = loop

    def start(self, tool: str, arguments: Json) -> Future[CallToolResult]:
        """Return the answer to come of a call; it is cancelled as the future is."""
        call = self._client.call_tool(tool, arguments)
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def call(self, tool: str, arguments: Json) -> CallToolResult:
        """Return the answer to a call."""
        return self.start(tool, arguments).result(LONGEST_S)

    def text_at(self, uri: str) -> str:
        """Return the text at an address."""
        read = self._client.read_resource(uri)
        found = asyncio.run_coroutine_threadsafe(read, self._loop).result(LONGEST_S)
        return "".join(getattr(part, "text", "") for part in found.contents)

    def tools(self) -> ListToolsResult:
        """Return the tools."""
        listed = self._client.list_tools()
        return asyncio.run_coroutine_threadsafe(listed, self._loop).result(LONGEST_S)


@contextmanager
def session(*words: str) -> Iterator[Session]:
    """Yield a connection to a server of its own, started with these words."""
    command = [sys.executable, "-m", "meshwright", "mcp", *words]
    server = StdioServerParameters(
        command=command[0], args=command[1:], env=dict(os.environ)
    )
    with connected(lambda: Client(stdio_client(server))) as found:
        yield found


@contextmanager
def connected(client_of: Any) -> Iterator[Session]:
    """Yield a connection of a client, which runs in a thread of its own."""
    ready: Future[Session] = Future()
    leaving = threading.Event()

    async def live() -> None:
        try:
            async with client_of() as client:
                ready.set_result(Session(client, asyncio.get_running_loop()))
                await asyncio.to_thread(leaving.wait)
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=lambda: asyncio.run(live()), daemon=True)
    thread.start()
    try:
        yield ready.result(LONGEST_S)
    finally:
        leaving.set()
        thread.join(LONGEST_S)


def text_of(result: CallToolResult) -> str:
    """Return an answer as a language model sees it: its texts, links and numbers."""
    parts = [
        getattr(part, "text", None) or getattr(part, "uri", "")
        for part in result.content
    ]
    if result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(map(str, parts))


def scripted(question: Question, given: Session) -> str:
    """Return the answers to the calls of a question, one after the other.

    `$1` in an argument is the address of the first answer, and so on.
    """
    answers: list[str] = []
    addresses: list[str] = []
    for call in question.calls:
        ((tool, arguments),) = call.items()
        filled = _filled(arguments, addresses)
        if tool == READ["name"]:
            answers.append(given.text_at(filled["uri"]))
            continue
        found = given.call(tool, filled)
        answers.append(text_of(found))
        addresses.append(str((found.structured_content or {}).get("answer", "")))
    return "\n".join(answers)


def _filled(value: Any, addresses: Sequence[str]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(each, addresses) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(one, addresses) for one in value]
    if not isinstance(value, str):
        return value
    return re.sub(r"\$(\d)", lambda found: addresses[int(found[1]) - 1], value)


@dataclass(frozen=True)
class Endpoint:
    """A server of chat completions, and the model that answers there."""

    url: str
    model: str

    def asked(self, messages: list[Json], tools: list[Json]) -> Json:
        """Return the next message of the model."""
        body = {"model": self.model, "messages": messages, "tools": tools}
        head = {"content-type": "application/json"}
        if key := os.environ.get(KEY):
            head["authorization"] = f"Bearer {key}"
        url = f"{self.url.rstrip('/')}/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), head)
        with urllib.request.urlopen(request, timeout=LONGEST_S) as answer:
            found: Json = json.load(answer)["choices"][0]["message"]
        return found


def modelled(question: Question, given: Session, endpoint: Endpoint) -> str:
    """Return the last words of a language model that may call the tools."""
    told = [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
        }
        for tool in given.tools().tools
    ]
    tools = [{"type": "function", "function": one} for one in (*told, READ)]
    skill = given.text_at("meshwright://skill")
    messages: list[Json] = [
        {"role": "system", "content": skill},
        {"role": "user", "content": question.asks},
    ]
    for _ in range(MOST_TURNS):
        message = endpoint.asked(messages, tools)
        messages.append(message)
        calls = message.get("tool_calls") or ()
        if not calls:
            return str(message.get("content") or "")
        for call in calls:
            messages.append(
                {"role": "tool", "tool_call_id": call["id"], **_called(call, given)}
            )
    return ""


def _called(call: Mapping[str, Any], given: Session) -> Json:
    """Return the answer to a call that a language model wrote."""
    asked = call["function"]
    try:
        arguments = json.loads(asked["arguments"] or "{}")
    except ValueError:
        return {"content": "the arguments are no JSON"}
    try:
        if asked["name"] == READ["name"]:
            return {"content": given.text_at(str(arguments.get("uri")))}
        return {"content": text_of(given.call(asked["name"], arguments))}
    except MCPError as error:
        return {"content": str(error)}


def main() -> int:
    """Answer all questions, and print a table; return 1 if an answer is not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", help="of chat completions, such as .../v1")
    parser.add_argument("--model", help="the name of the language model there")
    parser.add_argument("--only", default="", help="questions with these words alone")
    asked = parser.parse_args()
    if bool(asked.endpoint) != bool(asked.model):
        parser.error("--endpoint and --model: give both, or none")
    endpoint = Endpoint(asked.endpoint, asked.model) if asked.endpoint else None
    chosen = [one for one in questions() if asked.only in f"{one.thread} {one.asks}"]
    right = 0
    print("| thread | question | s | answer |\n| --- | --- | ---: | --- |")
    with session() as found:
        for question in chosen:
            start_s = time.perf_counter()
            try:
                answer = (
                    modelled(question, found, endpoint)
                    if endpoint
                    else scripted(question, found)
                )
                wrong = question.wrong(answer)
            except (OSError, urllib.error.URLError) as error:
                wrong = [str(error)]
            seconds = time.perf_counter() - start_s
            right += not wrong
            told = "; ".join(wrong).replace("|", "\\|") or "right"
            row = f"| {question.thread} | {question.asks} | {seconds:.1f} | {told} |"
            print(row, flush=True)
    print(f"\n{right} of {len(chosen)} answers have all facts.")
    return 0 if right == len(chosen) else 1


if __name__ == "__main__":
    raise SystemExit(main())
