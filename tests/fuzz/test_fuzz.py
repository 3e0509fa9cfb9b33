"""Whatever is fed to a reader, the answer is data or one short error, and soon.

`python -m tests.fuzz --examples 10000` feeds more of the same.

The gate mutates a file 25 times, `--all` 200 times, whose long texts are twenty times
as long. Readers that refuse few files read more.
"""

from __future__ import annotations

import contextlib
import time
from functools import cache
from pathlib import Path

import pytest

from meshwright.errors import MeshwrightError, SpecError
from meshwright.imports.registry import detect, importer, kinds
from meshwright.reading.yaml_and_csv import parse_yaml
from tests.fuzz.driver import run, table
from tests.fuzz.good import IMPORTS
from tests.fuzz.readers import PLANTED, READERS
from tests.helpers.extent import gate

EXAMPLES = gate(25, everything=200)

MILD = {
    "detect": 200,
    **dict.fromkeys(kinds("training_logs"), gate(50, everything=10_000)),
    "torchtune_log": gate(200, everything=10_000),
}
"""Readers that refuse few files, and the examples that it takes to see one."""


@pytest.mark.parametrize("name", READERS)
def test_every_reader_takes_its_good_files(name: str, tmp_path: Path) -> None:
    for sample in READERS[name].samples:
        path = tmp_path / "good"
        path.write_bytes(sample)
        READERS[name].read(path)


def test_every_kind_of_import_has_a_good_file() -> None:
    for kind, texts in IMPORTS.items():
        assert texts, f"expected tests/data/imports/{kind}.txt"
        assert {detect(text) for text in texts} == {kind}


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_mutated_files_are_read_or_refused(name: str) -> None:
    examples = MILD.get(name, EXAMPLES)
    tally = run(name, examples)
    assert tally.inputs == examples
    assert not tally.faults, "\n".join([*table([tally]), *map(str, tally.faults)])
    assert tally.counts["refused"], "nothing was broken: mutations do not reach it"


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANTED)
def test_faults_are_counted_as_what_they_are(kind: str) -> None:
    tally = run(kind, 2)
    assert tally.counts == {kind: 2}
    assert [fault.number for fault in tally.faults] == [0, 1]


@pytest.mark.parametrize(
    "text",
    [
        "a: !!bool maybe", "a: !!timestamp x", "a: 0x_", 'a: "\\ud800"', "a: \ud800",
        "%YAML 3.0\n---\na: 1", "a: 0x" + "f" * 9_000, "a: 0b" + "1" * 40_000, "",
    ],
)  # fmt: skip
def test_odd_yaml_gives_data_or_a_spec_error(text: str) -> None:
    with contextlib.suppress(SpecError):
        document = parse_yaml(text, "text")
        assert all(where.line > 0 for where in document.places.values())
        assert len(str(document.data)) < 50_000


DEVICES = "".join(
    f'<pci busid="{i}" class="0x030200"><gpu dev="{i}"/></pci>' for i in range(9_999)
)

MANY = gate(5_000, everything=100_000)

RUNAWAY_S = gate(2.0, everything=10.0)
"""Of the processor: some ten times what the slowest reader takes.

A time that grows with the square of the text exceeds it, a busy machine does not.
"""

LONG = {
    "one word": "a" * 10 * MANY,
    "digits": "1" * 10 * MANY,
    "blanks": " " * 10 * MANY,
    "GPU rows": "GPU0 " * 2 * MANY,
    "titles": "===== a " * MANY,
    "keys": "NodeName=a" + " b=" * 2 * MANY,
    "links": "Name=gpu Links=" + "-1," * 2 * MANY,
    "brackets": "SwitchName=a Nodes=" + "[1]" * 2 * MANY,
    "quotes": 'Switch 1 "' * MANY,
    "open tags": "<a>" * 3 * MANY,
    "pipes": "| GPU0 | X " * MANY,
    "parentheses": "NodeName=a Gres=" + "gpu,(" * MANY,
    "commas": "NodeName=a Gres=" + "," * 3 * MANY,
    "lines": "GPU0 X\n" * MANY,
    "escapes": "\x1b[" + "0;" * 3 * MANY,
    "names": "NodeName=a CfgTRES=" + "gres/gpu:" * MANY,
    "GPUs": "Name=gpu Count=256\n" * MANY,
    "hosts": "SwitchName=a Nodes=n[1-199999]\n" * 100,
    "host lists": "n[1-199999]\n" * 100,
    "joined lines": "SwitchName=s \\\n" * 2 * MANY,
    "mixed XML": f"<topology>{'xxxxxxxxxxxxxxxx<b/>' * MANY}</topology>",
    "devices": f"<system><cpu>{DEVICES}</cpu></system>",
}  # fmt: skip


def kinds_for(name: str) -> list[str]:
    """Return the kinds whose readers get a long text.

    Those of launch files read scripts or YAML by the same code before they differ: in
    the gate a third of them gets one text, another third the next.
    """
    alike, third = kinds("launches"), [*LONG].index(name) % 3
    asked = gate(alike[third::3], everything=alike)
    return [kind for kind in kinds() if kind in asked or kind not in alike]


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_no_reader_runs_away_on_long_text(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each reader that refuses the text asks what it looks like, which stays the same.
    monkeypatch.setattr("meshwright.imports.read.detect", cache(detect))
    path = tmp_path / "long"
    text = LONG[name]
    path.write_text(text)
    for kind in kinds_for(name):
        start = time.process_time()
        with contextlib.suppress(MeshwrightError):
            READERS[kind].read(path)
        assert time.process_time() - start < RUNAWAY_S, kind
    detect(text)


@pytest.mark.parametrize("kind", kinds())
def test_too_long_text_is_refused(kind: str) -> None:
    parse, most = importer(kind).parse, importer(kind).most_characters
    with pytest.raises(SpecError, match=f"file: expected at most {most:,} characters"):
        parse(" " * (most + 1), "file")
