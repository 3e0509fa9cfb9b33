"""Sentences for agents name arguments, which they send, and no options to type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.agent import Session, session, text_of

from meshwright.surface import command, option, sent
from tests.helpers.command import COMMANDS, run

SMALL, TIGHT = "gpt-1.3b-2xh100-nvlink", "llama3-8b-2x4090-pcie"
SERVED = "serve-llama3-70b-8xh100"

DATA = Path(__file__).parents[1] / "data"
SWITCHES = "SwitchName=s0 Nodes=n[0-3]\nSwitchName=s1 Switches=s0\n"
TORCHRUN = "torchrun --nproc_per_node 2 train.py --tensor-model-parallel-size 2\n"
LOG, BARE = (
    DATA.joinpath("logs", name).read_text("utf-8")
    for name in ("torchtitan_log.1.txt", "hf_trainer_log.1.txt")
)


@pytest.fixture(scope="module")
def plain() -> Iterator[Session]:
    """Yield a connection to a server that reads no files."""
    with session() as found:
        yield found


def typed() -> set[str]:
    """Return the options of all commands."""
    commands = COMMANDS.commands.values()  # type: ignore[attr-defined]
    names = [name for one in commands for known in one.params for name in known.opts]
    return {name for name in names if name.startswith("--")}


def told(given: Session, tool: str, arguments: dict[str, Any]) -> str:
    """Return all that an agent may read of an answer or of an error."""
    found = given.call(tool, arguments)
    if found.is_error:
        return text_of(found)
    data = found.structured_content
    names = [getattr(link, "name", "") for link in found.content]
    texts = [given.text_at(f"{data['answer']}/{n}") for n in names if n.endswith("txt")]
    return "\n".join([text_of(found), *texts, *data.get("notes", ())])


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("solve", {"spec": SMALL, "batch": 7}, "The fastest plan (fastest): tp="),
        ("solve", {"model": "llama3-8b", "cluster": "dgx-h100"}, "choose it with"),
        ("solve", {"spec": TIGHT}, ""),
        ("solve", {"spec": SERVED}, ""),
        ("explain", {"spec": TIGHT}, ""),
        ("explain", {"spec": SMALL, "plan": "tp=3,pp=7"}, "plan='tp=1, pp=1"),
        ("explain", {"spec": TIGHT, "plan": "micro_batch=3"}, "without plan either"),
        ("explain", {"spec": SMALL, "plan": "tpp=3"}, "plan tpp=3: expected"),
        ("explain", {"spec": SERVED, "plan": "tp=3"}, ""),
        ("compare", {"spec": SMALL, "vary": "x=1"}, "vary=x=1: expected"),
        (
            "rent",
            {"model": "llama3-8b", "tokens": "1B", "count": 1, "deadline_days": 0.001},
            "see count",
        ),
        ("import_cluster", {"text": SWITCHES}, "machine: missing"),
        ("import_cluster", {"text": SWITCHES, "gpu": "h100"}, "accepted: machine"),
        ("import_launch", {"text": TORCHRUN}, "# explain spec=SPEC plan='tp=2"),
        ("diagnose", {"text": LOG}, "to say what joins them: cluster=NAME"),
        (
            "diagnose",
            {"text": "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n"},
            "died: line 1: the memory of the host ran out",
        ),
        (
            "diagnose",
            {"text": BARE},
            "(launch=FILE), or model=NAME cluster=",
        ),
    ],
)
def test_what_an_agent_reads_names_no_option_to_type(
    tool: str, arguments: dict[str, Any], words: str, plain: Session
) -> None:
    text = told(plain, tool, arguments)
    assert words in " ".join(text.split())
    assert typed() & {*re.findall(r"--[a-z][a-z-]*", text)} == set()
    assert not re.search("meshwright (solve|explain|import|export|compare)", text)


def test_a_command_line_reads_what_it_can_type() -> None:
    assert {"--plan", "--seq-len", "--set", "--vary"} <= typed()
    assert "--plan tpp=3: expected" in run("explain", SMALL, "--plan", "tpp=3").stderr


def test_an_option_is_called_as_it_is_asked() -> None:
    assert option("seq_len") == "--seq-len"
    assert option("set", "a=1", "b=2") == "--set a=1 --set b=2"
    made = ("import", option("file", "run.sh"), option("output", "SPEC.yaml"))
    assert command(*made) == "meshwright import run.sh -o SPEC.yaml"
    with sent():
        assert option("seq_len") == "seq_len"
        assert option("set", "a=1", "b=2") == "a=1 in the spec, b=2 in the spec"
        made = ("import", option("file", "run.sh"), option("output", "SPEC.yaml"))
        assert command(*made) == "import_launch file=run.sh"
    assert option("seq_len") == "--seq-len"
