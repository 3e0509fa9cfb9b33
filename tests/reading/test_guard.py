"""Nesting is limited by ours, whatever limit the YAML library has, and only nesting."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from meshwright.errors import SpecError
from meshwright.reading import yaml_and_csv as guarded
from meshwright.reading.yaml_and_csv import MAX_DEPTH, guard


class Strict(yaml.SafeLoader):
    """A library that has a limit of its own, as PyYAML has since 6.0.4."""

    def fetch_flow_collection_start(self, token: Any) -> None:
        if self.flow_level > 2 * MAX_DEPTH + 10:
            raise yaml.YAMLError("too deep for the library")
        super().fetch_flow_collection_start(token)


LOADERS = (guarded.Loader, yaml.SafeLoader, Strict)


@pytest.fixture(params=LOADERS, ids=["fast", "slow", "strict"], autouse=True)
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "Loader", request.param)


DEEP = {
    "lists": "[" * 2_000,
    "mappings": "{" * 2_000,
    "both": "[{" * 2_000,
    "with blanks": "[ { " * 2_000,
    "with values": "[a, " * 2_000,
    "with keys": "{a: " * 2_000,
    "with anchors": "[&a " * 2_000,
    "with marks of keys": "[?" * 2_000,
    "lists in steps": ("[" * 30 + "],") * 2_000,
    "behind a key": "a: " + "[" * 2_000,
    "dashes": "- " * 2_000,
    "marks of keys": "? " * 2_000,
    "dashes and marks": "- ? " * 2_000,
    "dashes before brackets": "- " * 39 + "[" * 2_000,
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_the_limit_is_ours_on_the_line_that_passes_it(text: str) -> None:
    with pytest.raises(SpecError) as error:
        guard(f"# {'[' * 99}\n\n{text}", "f")
    assert str(error.value) == "f:3: expected at most 40 levels of nesting"


def brackets(depth: int) -> str:
    return "[" * depth + "1" + "]" * depth


def braces(depth: int) -> str:
    return "{a: " * depth + "1" + "}" * depth


def indented(depth: int) -> str:
    return "\n".join(" " * level + "a:" for level in range(depth)) + " 1"


def dashes(depth: int) -> str:
    return "- " * depth + "1"


@pytest.mark.parametrize("nested", [brackets, braces, indented, dashes])
def test_levels_are_counted_to_one(nested: Any) -> None:
    guard(nested(MAX_DEPTH), "f")
    with pytest.raises(SpecError, match="expected at most 40 levels of nesting"):
        guard(nested(MAX_DEPTH + 1), "f")


SHALLOW = {
    "comment": f"a: 1  # {'[' * 500}\nb: 2",
    "double quotes": f'a: "{"[" * 500}"\nb: 2',
    "single quotes": f"a: '{'{' * 500}'\nb: 2",
    "plain text": f"a: see {'[' * 500}\nb: 2",
    "text of lines": f"a: |\n  {'[' * 500}\n  don't\nb: 2",
    "lists beside": f"a: [{'[], ' * 500}]",
    "mappings beside": f"a: [{'{a: {}}, ' * 500}]",
}


@pytest.mark.parametrize("text", SHALLOW.values(), ids=SHALLOW)
def test_brackets_in_texts_and_lists_beside_each_other_are_no_levels(text: str) -> None:
    guard(text, "f")
