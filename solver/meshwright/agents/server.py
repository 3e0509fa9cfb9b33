"""The server: tools, the answers that it keeps, and stdio or HTTP on loopback."""

from __future__ import annotations

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import anyio
import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared._stream_protocols import ReadStream
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from meshwright import __version__, catalog
from meshwright.agents.tools import TOOLS, USUAL_S, Json, schema_of
from meshwright.api.file_schemas import KINDS, schema_text
from meshwright.errors import MeshwrightError, SpecError
from meshwright.ui.app import listener_at
from meshwright.ui.pool import END, Pool

LOOPBACK = "127.0.0.1"

SCHEME = "meshwright://"

SKILL = f"{SCHEME}skill"

MOST_TOKENS = 2_000
"""Tokens of an answer, with its numbers and links."""

MOST_DATA_TOKENS = 1_000
"""Tokens of the numbers, so that there is room for the text."""

MOST_BYTES = 32 * 2**20
"""Bytes of all answers that are kept; the oldest are forgotten first."""

REFERRING = ("spec", "model", "cluster", "plan", "text", "launch")
"""Arguments that may be the address of an earlier answer, and then mean its text."""

PAGE = "page.html"

INSTRUCTIONS = (
    "Meshwright picks parallelism plans for training and serving large models, by a "
    "cost model and with a proof. Call search_specs for names, solve for a plan, "
    "explain for why a plan fails or what would mend it, compare for several plans, "
    "diagnose for the log of a run. "
    "Quote step times with their band; what an answer does not say is not known. "
    f"How to read answers: {SKILL}"
)


def tokens(text: str) -> int:
    """Return how many tokens a text has at most, whoever counts.

    Words are taken to have a token for every four letters, numbers one for three
    digits, and every mark one; lines of tables one for eight dashes.
    """
    return len(re.findall(r"\d{1,3}|[^\W\d_]{1,4}|─{1,8}|[^\w\s]|_", text))


def shortened(text: str, most: int) -> str:
    """Return the first lines of a text, so many that they have no more tokens."""
    if tokens(text) <= most:
        return text
    kept: list[str] = []
    lines = text.splitlines()
    left = most - 12  # For the line that says what is left out.
    for line in lines:
        left -= tokens(line)
        if left < 0:
            break
        kept.append(line)
    return "\n".join([*kept, f"... and {len(lines) - len(kept)} more lines"]) + "\n"


def trimmed(data: Json, most: int = MOST_DATA_TOKENS) -> Json:
    """Return numbers without the longest of them, if they are too many."""
    kept, left_out = dict(data), []
    while tokens(json.dumps(kept)) > most and kept:
        longest = max(kept, key=lambda name: len(json.dumps(kept[name])))
        left_out.append(longest)
        del kept[longest]
    return kept | ({"left_out": left_out} if left_out else {})


@dataclass
class Kept:
    """An answer that is kept: its texts, and the call for its page."""

    files: dict[str, str]
    call: Json | None = None
    """None where there is no page."""

    @property
    def size(self) -> int:
        """Return the bytes of its texts."""
        return sum(len(text.encode()) for text in self.files.values())


class Answers:
    """The latest answers by their numbers, within a limit of memory."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """Keep nothing yet."""
        self._most_bytes = most_bytes
        self._count = 0
        self._kept: OrderedDict[int, Kept] = OrderedDict()

    def keep(self, answer: Kept) -> int:
        """Keep an answer, and return its number."""
        self._count += 1
        self._kept[self._count] = answer
        while len(self._kept) > 1 and self._bytes > self._most_bytes:
            self._kept.popitem(last=False)
        return self._count

    @property
    def _bytes(self) -> int:
        return sum(answer.size for answer in self._kept.values())

    def addresses(self) -> list[str]:
        """Return the addresses of all that is kept, the latest answer first."""
        return [
            address_of(number, name)
            for number, answer in reversed(self._kept.items())
            for name in names_of(answer)
        ]

    def at(self, address: str) -> tuple[Kept, str]:
        """Return the answer at an address, and the name of the text that is meant.

        Raises:
            SpecError: there is none, or it is forgotten.
        """
        found = re.fullmatch(rf"{SCHEME}answers/(\d{{1,9}})/([\w.-]+)", address)
        answer = self._kept.get(int(found[1])) if found else None
        if found is None or answer is None or found[2] not in names_of(answer):
            told = "no such answer; the oldest are forgotten, ask again"
            raise SpecError(f"{address[:100]!r}: {told}")
        return answer, found[2]

    def meant(self, arguments: Mapping[str, Any]) -> Json:
        """Return arguments with the texts that addresses among them stand for.

        Raises:
            SpecError: names the argument whose address is of no answer.
        """
        known = dict(arguments)
        for name in REFERRING:
            if (value := known.get(name)) is not None:
                known[name] = self._text(name, value)
        if isinstance(plans := known.get("plans"), list):
            known["plans"] = [self._text("plans", plan) for plan in plans]
        return known

    def _text(self, name: str, value: Any) -> Any:
        if not isinstance(value, str) or not value.startswith(f"{SCHEME}answers/"):
            return value
        try:
            answer, file = self.at(value)
        except SpecError as error:
            raise SpecError(f"{name}: {error}") from None
        if file == PAGE:
            raise SpecError(f"{name}: {value!r}: is a page; expected a text")
        return answer.files[file]


def address_of(number: int, name: str) -> str:
    """Return the address of a text of an answer."""
    return f"{SCHEME}answers/{number}/{name}"


def names_of(answer: Kept) -> list[str]:
    """Return the names of the texts of an answer, and of its page."""
    return [*answer.files, *([PAGE] if answer.call else [])]


def fixed_texts() -> dict[str, str]:
    """Return the addresses of the fixed texts, each with a line about it."""
    schemas = {
        f"{SCHEME}schema/{kind}": f"JSON Schema: {title}"
        for kind, (title, _) in KINDS.items()
    }
    return {SKILL: "How to ask, and how to read answers", **schemas}


def skill_text() -> str:
    """Return the text of the skill that ships with Meshwright."""
    file = catalog.folder("skills") / "meshwright" / "SKILL.md"
    return file.read_text(encoding="utf-8")


@dataclass
class Settings:
    """The files that the server may read and write, and how much it does at once."""

    root: Path | None = None
    """The folder below which files are; None for no files."""
    workers: int = 1
    most_queued: int = 16


@dataclass
class AgentServer:
    """Answers requests; solves run in processes of a pool."""

    settings: Settings
    pool: Pool
    answers: Answers = field(default_factory=Answers)

    def server(self) -> Server[Any]:
        """Return the server of the protocol, which does not listen yet."""
        return Server(
            "meshwright",
            version=__version__,
            instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_read_resource=self._read_resource,
        )

    async def _list_tools(self, _: Context, __: Page) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[*map(self._tool, TOOLS)])

    def _tool(self, name: str) -> types.Tool:
        writes = TOOLS[name].writes and self.settings.root is not None
        hints = types.ToolAnnotations(
            read_only_hint=not writes, destructive_hint=False, open_world_hint=False
        )
        return types.Tool(
            name=name,
            description=TOOLS[name].told,
            input_schema=schema_of(name),
            annotations=hints,
        )

    async def _call_tool(
        self, context: Context, called: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if called.name not in TOOLS:
            accepted = ", ".join(TOOLS)
            return _refused(f"{called.name[:60]!r} is no tool; accepted: {accepted}")
        try:
            arguments = self.answers.meant(called.arguments or {})
            task = self._task(called.name, arguments, "answer")
            answer = await self._worked_out(context, task)
        except MeshwrightError as error:
            return _refused(str(error))
        kept = Kept(answer["files"], task if answer["has_page"] else None)
        return _result(answer, self.answers.keep(kept), kept)

    def _task(self, tool: str, arguments: Json, wanted: str) -> Json:
        root = self.settings.root
        return {
            "tool": tool,
            "arguments": arguments,
            "root": None if root is None else str(root),
            "wanted": wanted,
        }

    async def _worked_out(self, context: Context, task: Json) -> Json:
        """Return the answer to a task; one that is cancelled ends in the pool too.

        Raises:
            MeshwrightError: the pool is busy, or the answer is an error.
        """
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

        def tell(kind: str, line: bytes) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(lines.put_nowait, (kind, line))

        limit_s = task["arguments"].get("time_limit_s", USUAL_S)
        is_number = isinstance(limit_s, int | float) and not isinstance(limit_s, bool)
        job = self.pool.submit(task, tell)
        answer: Json = {"kind": "failed", "text": "it has no answer"}
        said = 0
        try:
            with anyio.move_on_after(limit_s if is_number else USUAL_S) as limit:
                while (message := await lines.get())[0] != END:
                    said += 1
                    answer = await _heard(context, message, said) or answer
            if limit.cancelled_caught:
                self.pool.stop(job)
                while (message := await lines.get())[0] != END:
                    answer = await _heard(context, message, said) or answer
        finally:
            self.pool.drop(job)
        if answer["kind"] == "failed":
            raise MeshwrightError(answer["text"])
        return answer

    async def _list_resources(self, _: Context, __: Page) -> types.ListResourcesResult:
        fixed = [
            types.Resource(uri=uri, name=uri.removeprefix(SCHEME), description=told)
            for uri, told in fixed_texts().items()
        ]
        kept = [
            types.Resource(uri=uri, name=uri.removeprefix(SCHEME))
            for uri in self.answers.addresses()
        ]
        return types.ListResourcesResult(resources=[*fixed, *kept])

    async def _read_resource(
        self, context: Context, asked: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(asked.uri)
        try:
            kind, text = await self._resource(context, uri)
        except MeshwrightError as error:
            raise MCPError(code=types.INVALID_PARAMS, message=str(error)) from None
        content = types.TextResourceContents(uri=uri, mime_type=kind, text=text)
        return types.ReadResourceResult(contents=[content])

    async def _resource(self, context: Context, uri: str) -> tuple[str, str]:
        if uri == SKILL:
            return "text/markdown", skill_text()
        if uri in fixed_texts():
            return "application/json", schema_text(uri.rpartition("/")[2])
        answer, name = self.answers.at(uri)
        if name != PAGE:
            return _mime_type(name), answer.files[name]
        assert answer.call is not None
        found = await self._worked_out(context, {**answer.call, "wanted": "page"})
        return "text/html", found["page"]


Context = ServerRequestContext[Any, Any]

Page = types.PaginatedRequestParams | None


async def _heard(
    context: Context, message: tuple[str, bytes], said: int
) -> Json | None:
    """Return a message of an answer; pass one of progress on, and return None."""
    kind, line = message
    if kind == "queued":
        return None
    found: Json = json.loads(line)
    if kind == "progress":
        await context.session.report_progress(said, message=found["text"])
        return None
    return found


def _refused(text: str) -> types.CallToolResult:
    content = types.TextContent(text=shortened(text, MOST_TOKENS))
    return types.CallToolResult(content=[content], is_error=True)


def _result(answer: Json, number: int, kept: Kept) -> types.CallToolResult:
    """Return an answer with its numbers and links, all within the limit of tokens."""
    links = [
        types.ResourceLink(
            uri=address_of(number, name), name=name, mime_type=_mime_type(name)
        )
        for name in names_of(kept)
    ]
    data = {"answer": f"{SCHEME}answers/{number}", **trimmed(answer["data"])}
    used = tokens(json.dumps(data) + "".join(link.uri + link.name for link in links))
    text = types.TextContent(text=shortened(answer["text"], MOST_TOKENS - used))
    return types.CallToolResult(content=[text, *links], structured_content=data)


_HALF = re.compile("[\ud800-\udfff]")

_MIME_TYPES = {
    "html": "text/html",
    "json": "application/json",
    "yaml": "application/yaml",
    "md": "text/markdown",
}


def _mime_type(name: str) -> str:
    return _MIME_TYPES.get(name.rpartition(".")[2], "text/plain")


def serve_stdio(settings: Settings) -> None:
    """Serve one agent over stdin and stdout until it leaves."""
    asyncio.run(_serve_stdio(settings))


async def _serve_stdio(settings: Settings) -> None:
    # The processes of the pool start once stdout is out of their reach.
    async with stdio_server() as (incoming, outgoing):
        pool = _pool(settings)
        try:
            server = AgentServer(settings, pool).server()
            options = server.create_initialization_options()
            await server.run(_Mended(incoming), outgoing, options)
        finally:
            pool.close()


Message = SessionMessage | Exception


class _Mended:
    """Messages of which halves of a character are marked as such.

    Clients that cut a text in the middle of a character send them. The library drops
    such a message, so that a request would wait for its answer for ever.
    """

    def __init__(self, incoming: ReadStream[Message]) -> None:
        self._incoming = incoming

    async def receive(self) -> Message:
        """Return the next message."""
        return _mended(await self._incoming.receive())

    async def aclose(self) -> None:
        """Close the stream."""
        await self._incoming.aclose()

    def __aiter__(self) -> Self:
        """Return the messages as they come."""
        return self

    async def __anext__(self) -> Message:
        """Return the next message."""
        return _mended(await anext(self._incoming))

    async def __aenter__(self) -> Self:
        """Return the open stream."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the stream."""
        await self.aclose()


def _mended(message: Message) -> Message:
    """Return a message whose JSON was refused, without halves of characters."""
    if not isinstance(message, ValidationError):
        return message
    try:
        value = json.loads(message.errors()[0]["input"])
        text = _HALF.sub(
            "\N{REPLACEMENT CHARACTER}", json.dumps(value, ensure_ascii=False)
        )
        read = types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    except (TypeError, ValueError, RecursionError):
        return message
    return SessionMessage(read)


def serve_http(settings: Settings, port: int) -> None:
    """Serve agents of this machine over HTTP until Ctrl-C; port 0 takes a free one.

    Raises:
        SpecError: nothing can listen there.
    """
    listener = listener_at(LOOPBACK, port)
    pool = _pool(settings)
    app = AgentServer(settings, pool).server().streamable_http_app(host=LOOPBACK)
    config = uvicorn.Config(
        app,
        ws="none",
        log_level="warning",
        server_header=False,
        limit_concurrency=64,
        timeout_graceful_shutdown=1,
    )
    print(f"http://{LOOPBACK}:{listener.getsockname()[1]}/mcp", flush=True)
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        pool.close()


def _pool(settings: Settings) -> Pool:
    answering = "meshwright.agents.answering"
    return Pool(settings.workers, settings.most_queued, answering)
