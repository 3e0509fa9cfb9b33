"""Hostile names in specs: shown by all commands as they are, or refused.

The gate asks in tables about all, `--all` in JSON and Markdown too.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import SpecError
from meshwright.loading.load import load_question, load_spec
from meshwright.report import tables
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec
from tests.helpers.command import run
from tests.helpers.extent import gate
from tests.hostile import documents
from tests.hostile.marks import (
    HIDDEN,
    SHOWN,
    TOKEN,
    FieldPath,
    substituted,
    text_fields,
    token_fields,
    tokens,
)
from tests.hostile.readers import expect_seen, markdown_texts

MIXED = '=1</script><img src=x onerror=f()>"|a\\|`c`[a](b)[bold]x[/bold]:x:<!--A&B;'
"""What is code somewhere, as long as a name may be."""

SHORT = '=1</script><i>"|`c`[a](b)[red]&lt;'
"""The same for names that are joined to one, which is cut where it gets too long."""

ASKED = {
    "tree": ("solve", "explain", "compare", "topology"),
    "graph": ("solve", "topology"),
    "parts": ("solve", "topology"),
    "too large": ("solve", "explain", "compare"),
    "serving": ("solve", "explain", "topology"),
}
"""Which commands are asked about which document."""

DOCUMENTS = documents.TRAINING | {"serving": documents.SERVING}
QUESTIONS = [(name, one) for name in ASKED for one in ASKED[name]]
each_question = pytest.mark.parametrize(("name", "command"), QUESTIONS)
SOME = [
    ("tree", "compare"),
    ("graph", "solve"),
    ("parts", "topology"),
    ("too large", "solve"),
    ("serving", "explain"),
]
"""Every command, and every document."""
some_questions = pytest.mark.parametrize(
    ("name", "command"), gate(SOME, everything=QUESTIONS)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("specs")


def written(folder: Path, data: Any, name: str = "spec.yaml") -> str:
    """Return the file of a document; JSON is YAML."""
    path = folder / name
    path.write_text(json.dumps(data), encoding="utf-8")
    return str(path)


@functools.cache
def told(folder: Path, name: str, command: str, output: str, mark: str) -> str:
    """Return what a command prints of a document with a mark in all its texts."""
    file = written(folder, substituted(DOCUMENTS[name], mark))
    all_of_it = ["-v"] if command in ("solve", "explain") else []
    result = run(command, file, "--format", output, *all_of_it)
    assert result.code in (0, 1), result.stderr
    expect_seen(result.stderr)
    return result.stdout


def both(folder: Path, name: str, command: str, output: str) -> tuple[str, str]:
    """Return what is printed of harmless names, and of hostile ones."""
    plain = told(folder, name, command, output, "")
    return plain, told(folder, name, command, output, mark_of(name))


def mark_of(name: str) -> str:
    return SHORT if name == "parts" else MIXED


@pytest.mark.parametrize("schema", [Spec, ServingSpec])
def test_documents_have_all_texts_of_the_schema(schema: type[Spec]) -> None:
    every = [*DOCUMENTS.values(), documents.PARTS_OF_GRAPHS]
    known = {path for one in every for path in token_fields(one)}
    assert text_fields(schema) <= known


@pytest.mark.slow
@some_questions
def test_json_has_names_exactly(name: str, command: str, folder: Path) -> None:
    plain, marked = (json.loads(one) for one in both(folder, name, command, "json"))
    assert marked == substituted(plain, mark_of(name))


@pytest.mark.slow
@some_questions
def test_markdown_shows_names_as_text(name: str, command: str, folder: Path) -> None:
    plain, marked = both(folder, name, command, "markdown")
    expected = substituted(markdown_texts(plain), mark_of(name))
    assert markdown_texts(marked) == expected


@pytest.mark.slow
@each_question
def test_tables_show_names_as_text(
    name: str, command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "WIDTH", 10_000)
    plain, marked = both(folder, name, command, "table")
    expect_seen(marked)
    assert tokens(plain), "no name is shown: what does this test look at?"
    for token in tokens(plain):
        assert marked.count(mark_of(name) + token) == plain.count(token)


@pytest.mark.parametrize("mark", SHOWN.values(), ids=SHOWN)
def test_each_text_is_shown(mark: str, folder: Path) -> None:
    plain, marked = (
        json.loads(told(folder, "graph", "topology", "json", one)) for one in ("", mark)
    )
    assert marked == substituted(plain, mark)
    plain_texts, marked_texts = (
        markdown_texts(told(folder, "graph", "topology", "markdown", one))
        for one in ("", mark)
    )
    assert marked_texts == substituted(plain_texts, mark)


def test_long_names_of_parts_are_joined_to_one_that_is_cut(tmp_path: Path) -> None:
    marked = substituted(documents.PARTS, "n" * 89)
    spec = load_spec(written(tmp_path, marked))
    assert [
        len(one) for one in (spec.cluster.topology.name, spec.cluster.topology.gpu.name)
    ] == [100, 100]
    assert spec.cluster.topology.name.endswith("...")


def _marked_at(data: Any, path: FieldPath, mark: str, here: FieldPath = ()) -> Any:
    """Return a document with a mark in the texts at one path, keys among them."""
    if isinstance(data, dict):
        marked = {}
        for name, each in data.items():
            below = (*here, "*" if TOKEN.fullmatch(name) else name)
            key = substituted(name, mark) if below == path else name
            marked[key] = _marked_at(each, path, mark, below)
        return marked
    if isinstance(data, list):
        return [_marked_at(one, path, mark, (*here, "*")) for one in data]
    return substituted(data, mark) if here == path else data


@pytest.mark.parametrize("mark", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_hidden_characters_are_refused(name: str, mark: str, folder: Path) -> None:
    document = DOCUMENTS[name]
    for path in set(token_fields(document)):
        file = written(folder, _marked_at(document, path, mark))
        with pytest.raises(SpecError) as error:
            load_question(file)
        expect_seen(str(error.value))
        assert str(error.value).startswith(f"{file}:1: {path[0]}")


@pytest.mark.slow
@pytest.mark.parametrize("mark", (SHOWN | HIDDEN).values(), ids=SHOWN | HIDDEN)
def test_refusals_are_one_line(mark: str, folder: Path) -> None:
    """A field, key or preset of any text is told in a line that shows it."""
    harmless: dict[str, Any] = documents.TREE
    for data in (
        harmless | {mark: 1},
        harmless | {"model": harmless["model"] | {mark: {"a": 1}}},
        harmless | {"model": mark},
        harmless | {"framework": mark},
        harmless | {"cluster": mark},
        harmless | {"cluster": {"machine": mark}},
        harmless | {"cluster": {"nvidia_smi": mark, "gpu": "a100-sxm4-80gb"}},
        harmless | {"cluster": {"nvidia_smi": __file__, "gpu": mark}},
        harmless | {"pins": {mark: 1, "tp": mark}},
        harmless | {"rules": mark},
        harmless | {"rules": [f"tp <= {mark}"]},
        harmless | {"run": {"tokens": mark}},
        documents.PARTS_OF_GRAPHS | {"training": {"seq_len": mark}},
        substituted(documents.PARTS_OF_GRAPHS, mark[:90]),
    ):
        result = run("solve", written(folder, data))
        assert (result.code, result.stdout) == (2, "")
        expect_seen(result.stderr)
        for line in result.stderr.splitlines():
            assert re.match(
                rf"(error: )?{folder}/spec.yaml:1: |\.\.\. and \d+ more$", line
            ), line
