"""Arguments of tools that nobody should write: an error of ours, and no file opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from meshwright.agents.tools import TOOLS, schema_of
from tests.helpers.agent_calls import told
from tests.helpers.extent import gate
from tests.helpers.watched_files import watched_files

SMALL = "gpt-1.3b-2xh100-nvlink"

DATA = Path(__file__).parents[1] / "data"

TOPO = (DATA / "topo.txt").read_text("utf-8")

SCRIPT = (DATA / "pretrain.sh").read_text("utf-8")

LOG = (DATA / "out_of_memory.log").read_text("utf-8")

PATHS = (
    *("/etc/passwd", "../../etc/passwd", str(DATA / "config.json")),
    *(str(DATA / "topo.txt"), str(DATA.parents[1] / "specs" / f"{SMALL}.yaml")),
)
"""Some of them are there, and hold what the argument takes."""


QUESTION = {"model": "gpt-1.3b", "cluster": "h100-nvlink-2", "batch": 8}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """List the files that calls open; a text to import is put into a folder."""
    for tool in TOOLS:  # So that everything is imported.
        told(tool, {**QUESTION, "query": "x"})
        told(tool, {"text": TOPO})
        told(tool, {"text": SCRIPT})
        told(tool, QUESTION)
        told(tool, {**QUESTION, "text": LOG, "launch": SCRIPT})
    with watched_files(monkeypatch) as found:
        yield found


def with_path(tool: str, name: str, path: str) -> dict[str, Any]:
    """Return arguments of a tool, one of them a path."""
    question = QUESTION if "spec" in schema_of(tool)["properties"] else {}
    if tool == "diagnose" and name != "file":
        question = {**QUESTION, "text": LOG, "plan": "tp=1,pp=1,zero=1"}
    elif name in ("gpu", "machine", "onto"):
        question = {"text": TOPO}
    value: Any = [path] if name in ("plans", "rules") else path
    return {**question, name: {"tp": path} if name == "pins" else value}


def test_no_argument_opens_a_file(opened: list[str]) -> None:
    for tool in TOOLS:
        for name, schema in schema_of(tool)["properties"].items():
            if schema.get("type") in ("integer", "number", "boolean"):
                continue
            for path in PATHS:
                told(tool, with_path(tool, name, path))
                seen = [file for file in opened if "meshwright-" not in file]
                assert seen == [], (tool, name, path)


def test_no_text_that_is_imported_opens_a_file(opened: list[str]) -> None:
    for path in PATHS:
        script = f"torchrun pretrain_gpt.py --yaml-cfg {path} --num-layers 2\n"
        told("import_launch", {"text": script})
        for option in ("--deepspeed", "--deepspeed_config", "--config_file"):
            text = f"deepspeed train.py {option} {path}\n"
            told("import_launch", {"text": text})
        told("import_cluster", {"text": f"GPU 0: {path} (UUID: GPU-1)\n"})
        seen = [file for file in opened if "meshwright-" not in file]
        assert seen == [], path


NUMBERS = some.integers(-(10**6), 10**6) | some.floats()

VALUES = some.recursive(
    some.none() | some.booleans() | NUMBERS | some.text(max_size=20),
    lambda inner: (
        some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=8), inner)
    ),
    max_leaves=6,
)

CALLS = some.sampled_from([*TOOLS]).flatmap(
    lambda tool: some.tuples(
        some.just(tool),
        some.dictionaries(
            some.sampled_from([*schema_of(tool)["properties"]]), VALUES, max_size=3
        ),
    )
)


@settings(max_examples=gate(30, everything=1_000))
@given(CALLS)
def test_whatever_is_sent_is_answered_or_refused(
    call: tuple[str, dict[str, Any]],
) -> None:
    tool, arguments = call
    question = QUESTION if "spec" in schema_of(tool)["properties"] else {}
    assert told(tool, {**question, "time_limit_s": 1, **arguments})


@pytest.mark.parametrize("tool", TOOLS)
def test_every_argument_says_what_it_is(tool: str) -> None:
    for name, schema in schema_of(tool)["properties"].items():
        assert "description" in schema, name
