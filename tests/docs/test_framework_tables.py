"""The generated tables of frameworks have a word in every cell, and name every rule."""

from __future__ import annotations

import pytest

from extensions import frameworks
from meshwright.frameworks.base.registry import framework
from meshwright.rules.legality import rules_of
from meshwright.spec.spec import framework_names


@pytest.mark.parametrize("kind", ["launch", "state", "buffers"])
def test_every_cell_says_something(kind: str) -> None:
    heading, _, *rows = frameworks.table(kind).splitlines()
    assert heading.count("`") == 2 * len(framework_names())
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == len(framework_names()) + 1
        assert all(cells)


def test_what_is_launched_is_read_off_the_lattice() -> None:
    rows = dict(line[2:].split(" | ", 1) for line in _lines("launch"))
    names = framework_names()
    stages = rows["ZeRO stages beside a pipeline"].removesuffix(" |").split(" | ")
    assert (
        dict(zip(names, stages, strict=True)).items()
        >= {
            "megatron": "0, 1",  # Megatron-FSDP beside stages is untried
            "deepspeed": "0, 1",
            "fsdp": "none",
        }.items()
    )


def _lines(kind: str) -> list[str]:
    return frameworks.table(kind).splitlines()[2:]


@pytest.mark.parametrize("name", framework_names())
def test_rules_are_all_listed(name: str) -> None:
    text = frameworks.rules_table(name)
    assert all(f"`{rule.name}`" in text for rule, _ in rules_of(name))


@pytest.mark.parametrize("name", framework_names())
def test_levers_are_all_listed(name: str) -> None:
    rows = [row for row in frameworks.levers_table().splitlines() if f"`{name}`" in row]
    switches = [row.split(" | ")[1] for row in rows]
    assert switches == [f"`{lever.switch}`" for lever in framework(name).levers]
