"""The tools for agents, through the official client over stdio, and over HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import pytest
from benchmarks.agent import (
    Endpoint,
    Question,
    Session,
    connected,
    modelled,
    questions,
    scripted,
    session,
    text_of,
)
from mcp import Client, MCPError
from typer.testing import CliRunner

import meshwright as mw
from meshwright import catalog
from meshwright.agents.server import MOST_TOKENS, Answers, Kept, tokens
from meshwright.agents.tools import TOOLS
from meshwright.cli import app
from meshwright.errors import SpecError
from tests.helpers.extent import ALL, gate

jsonschema = pytest.importorskip("jsonschema")

SMALL = "gpt-1.3b-2xh100-nvlink"

FEW = (
    "NVIDIA-NeMo/RL#2783",
    "NVIDIA/Megatron-LM#6392",
    "unslothai/unsloth#11475",
    "unslothai/unsloth#10280",
    "kohya-ss/sd-scripts#1434",
    "NVIDIA/Megatron-LM#1304",
    "NVIDIA-NeMo/RL#2859",
)
"""Questions of the gate: every tool but `export`, and refusals."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a spec, and with links that leave it."""
    folder = tmp_path_factory.mktemp("outside") / "root"
    folder.mkdir()
    spec = catalog.bundled("specs", SMALL).read_text("utf-8")
    (folder / "inside.yaml").write_text(spec)
    outside = folder.parent / "outside.yaml"
    outside.write_text(spec)
    (folder / "link.yaml").symlink_to(outside)
    (folder / "way").symlink_to(folder.parent)
    return folder


@pytest.fixture(scope="module")
def plain() -> Iterator[Session]:
    """Yield a connection to a server that reads no files."""
    with session() as found:
        yield found


@pytest.fixture(scope="module")
def rooted(root: Path) -> Iterator[Session]:
    """Yield a connection to a server with a root."""
    with session("--root", str(root)) as found:
        yield found


def refused(given: Session, tool: str, **arguments: Any) -> str:
    """Return the error of a call."""
    found = given.call(tool, arguments)
    assert found.is_error, arguments
    return text_of(found)


def test_tools_have_schemas_that_are_short(plain: Session) -> None:
    tools = plain.tools().tools
    assert [tool.name for tool in tools] == [*TOOLS]
    for tool in tools:
        jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        assert tool.description
    listed = json.dumps([tool.model_dump(mode="json") for tool in tools])
    assert tokens(listed) < 10_000


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(one, id=one.thread)
        for one in questions()
        if one.thread in FEW or os.environ.get(ALL)
    ],
)
def test_questions_of_trackers_are_answered(question: Question, plain: Session) -> None:
    assert question.wrong(scripted(question, plain)) == []


def test_every_question_has_facts_that_other_answers_lack() -> None:
    """A fact that every answer has would tell nothing."""
    asked = questions()
    assert len(asked) >= 46
    assert len({one.thread for one in asked}) == len(asked)
    assert {*FEW} <= {one.thread for one in asked}
    for one in asked:
        assert one.wrong("A plan fits. No plan fits. Memory is GiB."), one.thread


def test_an_answer_has_the_screen_the_numbers_and_links(plain: Session) -> None:
    found = plain.call("solve", {"spec": SMALL})
    outcome = mw.solve(mw.load(SMALL, mw.Spec))
    assert outcome.best is not None
    data = found.structured_content
    assert data["status"] == "optimal"
    assert data["recommended"]["plan"] == str(outcome.best.plan)
    assert data["recommended"]["step_s"] == pytest.approx(outcome.best.step_s, 1e-4)
    assert data["claim"] == outcome.to_dict()["claim"]
    assert f"step {outcome.best.step_s:.2f} s" in text_of(found)
    whole = plain.text_at(f"{data['answer']}/answer.json")
    assert mw.Outcome.from_json(whole).best == outcome.best
    page = plain.text_at(f"{data['answer']}/page.html")
    assert page.startswith("<!doctype html>")


def test_an_answer_is_the_argument_of_the_next_call(plain: Session) -> None:
    found = plain.call("solve", {"spec": SMALL}).structured_content
    plan = f"{found['answer']}/answer.json"
    again = plain.call("explain", {"spec": SMALL, "plan": plan}).structured_content
    assert again["fits"]
    assert again["plan"]["plan"] == found["recommended"]["plan"]
    told = refused(plain, "explain", spec=SMALL, plan="meshwright://answers/999/x.json")
    assert told.startswith("plan: 'meshwright://answers/999/x.json': no such answer")


SPECS = gate(["llama3-8b-2x4090-pcie"], everything=catalog.names("specs"))


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_no_answer_is_longer_than_the_limit(spec: str, plain: Session) -> None:
    for tool, arguments in (("solve", {"near": 0.0}), ("explain", {})):
        found = plain.call(tool, {"spec": spec, "time_limit_s": 20, **arguments})
        assert not found.is_error
        assert tokens(text_of(found)) <= MOST_TOKENS


@pytest.mark.parametrize(
    "fields",
    [
        {"spec": "no-such-spec"},
        {"spec": "model: llama3-8b\ncluster: dgx-h100\ntraining: {seq_len: x}\n"},
        {"model": "llama3-8b"},
        {"model": "llama3-8b", "cluster": "dgx-h100", "gpus": 12},
        {"spec": SMALL, "pins": {"tpp": 2}},
        {"spec": SMALL, "count": "x"},
    ],
)
def test_errors_have_the_words_of_the_library(
    fields: dict[str, Any], plain: Session
) -> None:
    words = dict(fields)
    with pytest.raises(SpecError) as told:
        mw.load(words.pop("spec", None), **words)
    found = refused(plain, "solve", **fields)
    first = re.split("is neither a file nor|Any model", str(told.value))[0]
    assert found.startswith(first)


def test_what_is_no_argument_is_refused(plain: Session) -> None:
    told = refused(plain, "solve", spec=SMALL, foo=1)
    assert told.startswith(
        "arguments: foo: unknown field; accepted: time_limit_s, spec"
    )
    assert "arguments: top: 99" in refused(plain, "solve", spec=SMALL, top=99)
    told = refused(plain, "export", spec=SMALL, folder="run")
    assert told.startswith("folder: 'run': this server reads no files")
    assert refused(plain, "sovle").startswith("'sovle' is no tool; accepted: solve")
    with pytest.raises(MCPError, match="no such answer"):
        plain.text_at("meshwright://answers/0/x.json")


def test_a_text_that_is_no_cluster_is_told_apart(plain: Session) -> None:
    script = Path(__file__).parents[1].joinpath("data/pretrain.sh").read_text("utf-8")
    told = refused(plain, "import_cluster", text=script)
    assert "looks like megatron, for import_launch" in told
    assert "of no known kind" in refused(plain, "import_launch", text="hello\n")
    assert refused(plain, "import_launch").startswith("text: expected either text or")


SCRIPT = (
    "torchrun --nproc_per_node 2 pretrain_gpt.py --tensor-model-parallel-size 2 "
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
    "--micro-batch-size 4 --global-batch-size 64 --bf16 --vocab-size 50304\n"
)

DIED = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB."


def test_the_text_of_a_script_is_a_plan(plain: Session, tmp_path: Path) -> None:
    """As the command line takes its file, with a spec and without one."""
    file = tmp_path / "train.sh"
    file.write_text(SCRIPT, encoding="utf-8")
    typed = ["--plan", str(file), "--gpu", "h100", "--format", "json"]
    step_s = json.loads(CliRunner().invoke(app, ["explain", *typed]).stdout)
    found = plain.call("explain", {"plan": SCRIPT, "gpu": "h100"})
    told = found.structured_content["plan"]
    assert told["step_s"] == pytest.approx(step_s["plan"]["step_s"], rel=1e-4)
    assert told["plan"].startswith("tp=2,pp=1,")
    asked = {"plans": [SCRIPT, "tp=1"], "gpu": "h100"}
    beside = plain.call("compare", asked).structured_content["plans"]
    assert {one["name"] for one in beside} == {"plan 1", "tp=1"}
    small = {"model": "llama3-8b", "cluster": "8xH100", "plan": "tp: 2\npp: 1\n"}
    found = plain.call("explain", small).structured_content["plan"]
    assert found["plan"].startswith("tp=2,pp=1,")
    assert "looks like torch_error" in refused(
        plain, "explain", gpu="h100", plan=f"step 1\n{DIED}"
    )


def test_a_text_that_is_no_spec_is_told_what_takes_it(plain: Session) -> None:
    told = refused(plain, "solve", spec=SCRIPT * 2)
    assert told.endswith(
        "it starts training (megatron): to judge its plan, explain plan=... gpu=NAME; "
        "as a spec, import_launch text=..."
    )


def test_words_that_people_use_for_numbers_are_read(plain: Session) -> None:
    found = plain.call("solve", {"spec": SMALL, "near": "2%", "rules": "tp <= 1"})
    assert found.structured_content["status"] == "optimal"
    asked = {"model": "llama3-8b", "cluster": "16xH100"}
    assert refused(plain, "solve", **asked, gpus=8).endswith("has 16; keep one")
    told = refused(plain, "solve", spec=SMALL, gpus="8 H100")
    assert told == "arguments: gpus: '8 H100': expected a whole number"
    told = refused(plain, "solve", model="70B", gpu="a100", gpus=8)
    assert told.startswith("arguments: cluster.gpu: 'a100' may be ")
    assert "reads no files" not in told


def test_a_long_call_ends_early_and_a_cancelled_one_leaves_its_place(
    plain: Session,
) -> None:
    """How a task ends in the pool is tested with it, in `tests/ui/test_pool.py`."""
    found = plain.call("explain", {"spec": "llama3-70b-256xh100", "time_limit_s": 0.5})
    assert not found.is_error or "too long" in text_of(found)
    long = {"spec": "llama3-405b-16384xh100", "framework_limits": True}
    future = plain.start("solve", long)
    time.sleep(0.5)  # Long enough to begin, not to end.
    assert not future.done()
    future.cancel()
    assert not plain.call("search_specs", {"query": "mixtral"}).is_error


def test_files_are_those_below_the_root_alone(rooted: Session, root: Path) -> None:
    found = rooted.call("solve", {"spec": "inside.yaml"}).structured_content
    assert found["status"] == "optimal"
    outside = root.parent / "outside.yaml"
    ways = ("../outside.yaml", str(outside), "link.yaml", "way/outside.yaml")
    for name in (*ways, "/etc/passwd"):
        told = refused(rooted, "solve", spec=name)
        # Long names are cut, so that an answer stays short.
        cut = "" if len(name) <= 60 else "..."
        assert told.startswith(f"{name[:60]!r}{cut} is no bundled name"), name
        assert "no such file below the root" in told
        told = refused(rooted, "import_launch", file=name)
        assert told == f"file: '{name}': no such file below the root"


def test_an_export_writes_new_files_below_the_root_alone(
    rooted: Session, root: Path
) -> None:
    asked = {"spec": SMALL, "plan": "tp=1,pp=1,zero=1,micro_batch=8"}
    found = rooted.call("export", {**asked, "folder": "run/first"})
    names = found.structured_content["files"]
    assert "launch.sh" in names
    assert {*names} == {path.name for path in (root / "run/first").iterdir()}
    again = refused(rooted, "export", **asked, folder="run/first")
    assert again == "folder: 'run/first': file exists"
    for folder in ("..", "../x", "/tmp/x", "way/x", "", "~/x", "inside.yaml"):
        told = refused(rooted, "export", **asked, folder=folder)
        assert told.startswith(f"folder: {folder!r}: "), folder
    assert {path.name for path in root.parent.iterdir()} == {"root", "outside.yaml"}


def test_the_oldest_answers_are_forgotten() -> None:
    answers = Answers(most_bytes=10)
    first = answers.keep(Kept({"a.txt": "12345678"}))
    second = answers.keep(Kept({"a.txt": "12345678"}, {"tool": "solve"}))
    at = f"meshwright://answers/{second}"
    assert answers.addresses() == [f"{at}/a.txt", f"{at}/page.html"]
    assert answers.meant({"spec": f"{at}/a.txt"}) == {"spec": "12345678"}
    with pytest.raises(SpecError, match="no such answer"):
        answers.at(f"meshwright://answers/{first}/a.txt")


def test_half_a_character_is_answered() -> None:
    """Clients that cut a text send one; the library drops a message that has it."""
    client = {"capabilities": {}, "clientInfo": {"name": "cut", "version": "1"}}
    first = {"protocolVersion": "2025-06-18", **client}
    call = {"name": "solve", "arguments": {"spec": "tiny\ud83d"}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": first},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": call},
    ]
    lines = [json.dumps({"jsonrpc": "2.0", **one}) for one in messages]
    command = [sys.executable, "-m", "meshwright", "mcp"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("\n".join(lines) + "\n")
        server.stdin.flush()
        answers = {1: server.stdout.readline(), 2: server.stdout.readline()}
        server.stdin.close()
    assert json.loads(answers[1])["id"] == 1
    (said,) = json.loads(answers[2])["result"]["content"]
    assert said["text"].startswith("'tiny\N{REPLACEMENT CHARACTER}' is no bundled name")


def test_http_answers_on_loopback_alone() -> None:
    command = [sys.executable, "-m", "meshwright", "mcp", "--http", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", url)
            with connected(lambda: Client(url)) as result:
                found = result.call(
                    "search_specs", {"query": "mixtral", "kind": "models"}
                )
                assert "mixtral-8x7b" in text_of(found)
            foreign = {"host": "evil.example", "accept": "application/json"}
            assert httpx2.post(url, json={}, headers=foreign).status_code == 421
            foreign = {"origin": "http://evil.example"}
            assert httpx2.post(url, json={}, headers=foreign).status_code == 403
        finally:
            server.terminate()


def test_the_skill_ships_and_is_a_resource(plain: Session) -> None:
    printed = CliRunner().invoke(app, ["mcp", "--skill"]).stdout.strip()
    text = Path(printed).read_text("utf-8")
    assert text == plain.text_at("meshwright://skill")
    head = text.split("---")[1]
    assert re.search(r"^name: meshwright$", head, re.MULTILINE)
    assert 100 < len(head.partition("description:")[2]) < 1_024
    called = {word for word in re.findall(r"`(\w+)`", text) if word in TOOLS}
    assert called == {*TOOLS}
    schema = json.loads(plain.text_at("meshwright://schema/spec"))
    jsonschema.Draft202012Validator.check_schema(schema)


class Chat(BaseHTTPRequestHandler):
    """Completions of a language model that calls a tool, reads on, and answers."""

    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        body = json.loads(self.rfile.read(length))
        self.asked.append(body)
        turns = {
            0: ("explain", {"spec": SMALL, "plan": "tp=3"}),
            1: ("read", {"uri": "meshwright://answers/999/all.txt"}),
            2: ("read", "no JSON"),
        }
        turn = sum(one["role"] == "tool" for one in body["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": "It does not fit."}
        if turn in turns:
            name, given = turns[turn]
            text = given if isinstance(given, str) else json.dumps(given)
            call = {"id": str(turn), "function": {"name": name, "arguments": text}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        answer = json.dumps({"choices": [{"message": message}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_a_language_model_is_judged_by_its_last_words(plain: Session) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/v1"
        question = Question("a/b#1", "Does tp 3 fit?", [], ["does not fit"], ["tp=3"])
        told = modelled(question, plain, Endpoint(url, "any"))
    finally:
        server.shutdown()
        server.server_close()
    assert told == "It does not fit."
    assert question.wrong(told) == []
    assert question.wrong("tp=3 fits") == ["lacks 'does not fit'", "has 'tp=3'"]
    last = Chat.asked[-1]
    assert {one["function"]["name"] for one in last["tools"]} == {*TOOLS, "read"}
    heard = [one["content"] for one in last["messages"] if one["role"] == "tool"]
    assert "pins.tp: tp is 3" in heard[0]
    assert "no such answer" in heard[1]
    assert heard[2] == "the arguments are no JSON"
