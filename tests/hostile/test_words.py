"""Hostile words on the command line, in the names of files and in files of others."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from meshwright.api.import_files import ImportOptions
from meshwright.api.import_files import run as run_import
from meshwright.cli import app
from meshwright.cli.output import Progress, tell
from meshwright.errors import SpecError
from meshwright.imports.registry import importer, kinds
from tests.evidence.test_runs import row
from tests.fuzz.good import IMPORTS
from tests.helpers.command import Result, run
from tests.helpers.extent import gate
from tests.helpers.searches import SWEEP, written
from tests.hostile import documents
from tests.hostile.marks import HIDDEN, SHOWN
from tests.hostile.readers import Parts, csv_rows, expect_seen, markdown_texts

WORDS = {
    "shown": " ".join(SHOWN.values()),
    "hidden": "".join(HIDDEN.values()),
}

SPEC = "gpt-1.3b-2x3090-nvlink"
LOG = Path(__file__).parents[1] / "data/slow_run.log"
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "solve": (SPEC,),
    "init": ("-o", "asked.yaml"),
    "explain": (SPEC,),
    "compare": (SPEC, "--plan", "tp=1"),
    "search": ("sweep.yaml",),
    "simulate": (SPEC, "--samples", "10"),
    "gemm": ("8", "8", "8"),
    "topology": ("dgx-h100",),
    "evidence": ("runs.yaml",),
    "calibrate": ("runs.yaml", "-o", "own.yaml"),
    "probe": (SPEC, "-k", "1"),
    "import": ("hostfile", "hosts"),
    "schema": ("spec",),
    "compare-trace": ("modelled.json", "real.json"),
    "export": (SPEC, "-o", "files"),
    "check": ("sweep.yaml",),
    "diagnose": ("run.log", "--cluster", "dgx-h100"),
    "verify": ("certificate.json.gz",),
    "mcp": ("--skill",),
    "ui": (),
}

pytestmark = pytest.mark.usefixtures("kept_processes")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the files that commands read."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path, SWEEP)
    written(tmp_path, json.dumps([row()]), "runs.yaml")
    written(tmp_path, IMPORTS["hostfile"][0], "hosts")
    written(tmp_path, LOG.read_text("utf-8"), "run.log")
    return tmp_path


def calls(word: str) -> Iterator[tuple[str, ...]]:
    """Yield each command with the word in the place of each of its parameters."""
    commands: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
    assert commands.keys() == ARGUMENTS.keys()
    yield (word,)
    for name, command in commands.items():
        found = ARGUMENTS[name]
        yield (name, *found, word)
        yield (name, *found, f"--{word}")
        for place in range(len(found)):
            yield (name, *found[:place], word, *found[place + 1 :])
        for parameter in command.params:
            takes_text = not getattr(parameter, "is_flag", False)
            if parameter.param_type_name == "option" and takes_text:
                yield (name, *found, parameter.opts[-1], word)


def expect_harmless(result: Result) -> None:
    expect_seen(result.stdout + result.stderr)
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
def test_words_of_the_command_line_are_shown(word: str) -> None:
    assert run("solve", SPEC, "--certificate", "certificate.json.gz").code == 0
    codes = set()
    for call in calls(word):
        result = run(*call)
        expect_harmless(result)
        codes.add(result.code)
    assert codes <= {0, 1, 2}


FILES = {
    "shown": "=1<img src=x onerror=f()>\"'|`a`[b](c)[bold]d&lt;",
    "hidden": "\x1b[31ma\u202eb\nerror: c\r\u2028",
    "bytes": os.fsdecode(b"a\xff\x9b31m"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES.values(), ids=FILES)
def test_names_of_files_are_shown(name: str, folder: Path) -> None:
    specs = folder / f"{name} specs"
    specs.mkdir()
    spec = written(specs, json.dumps(documents.TREE), f"{name}.yaml")
    wrong = written(specs, json.dumps({"model": 1}), f"{name}2.yaml")
    sweep = written(folder, SWEEP, f"{name}.yaml")
    runs = written(folder, json.dumps([row(), row()]), f"{name}3.yaml")
    hosts = written(folder, IMPORTS["hostfile"][0], f"{name} hosts")
    store = ("--store", str(folder / f"{name}.sqlite"), "--workers", "1")
    for form in ("table", "markdown", "json"):
        for call in (
            ("solve", spec),
            ("solve", wrong),
            ("topology", spec),
            ("search", str(specs), *store),
            ("search", sweep, *store),
            ("evidence", runs),
        ):
            result = run(*call, "--format", form)
            expect_harmless(result)
            lines = result.stderr.splitlines()
            errors = [line for line in lines if line.startswith("error: ")]
            assert len(errors) <= (result.code == 2), result
            if form == "markdown":
                markdown_texts(result.stdout)
    expect_harmless(run("import", "hostfile", hosts))
    expect_harmless(run("import", hosts))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES.values(), ids=FILES)
def test_files_of_a_folder_are_rows(name: str, folder: Path) -> None:
    specs = folder / "specs"
    specs.mkdir()
    written(specs, json.dumps(documents.TREE), f"{name}.yaml")
    written(specs, json.dumps({"model": 1}), f"{name}2.yaml")
    outputs = [word for kind in KINDS for word in ("-o", f"rows.{kind}")]
    result = run("search", "specs", "--workers", "1", *outputs)
    assert result.code == 0, result.stderr
    told = os.fsencode(name).decode("utf-8", "backslashreplace")
    rows = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
    assert [one["axes"]["spec"] for one in rows] == [told, f"{told}2"]
    with (folder / "rows.csv").open(encoding="utf-8", newline="") as file:
        assert [csv_row[0] for csv_row in csv_rows(file.read())] == [
            "axis.spec", told, f"{told}2",
        ]  # fmt: skip
    page = Parts((folder / "rows.html").read_text(encoding="utf-8"))
    assert [told, f"{told}2"] in [one["values"] for one in page.data["columns"]]


@pytest.mark.parametrize("name", FILES.values(), ids=FILES)
def test_files_that_cannot_be_written_are_told_in_a_line(
    name: str, folder: Path
) -> None:
    (folder / name).mkdir()
    (folder / f"{name}.csv").mkdir()
    written(folder, "", f"{name}2")
    for call in (
        ("solve", SPEC, "-o", name),
        ("solve", SPEC, "--ranks", f"{name}2"),
        ("solve", SPEC, "--ranks", f"{name}2/{name}"),
        ("topology", "dgx-h100", "--plot", f"{name}2/{name}"),
        ("search", "sweep.yaml", "--store", name),
        ("search", "sweep.yaml", "-o", f"{name}.csv"),
        ("search", "sweep.yaml", "-o", f"{name}.odd"),
        ("calibrate", f"{name}.yaml", "-o", "own.yaml"),
        ("solve", SPEC, "--profile", f"{name}.csv"),
    ):
        result = run(*call)
        expect_harmless(result)
        assert result.code == 2
        assert result.stderr.count("\n") == 1, result.stderr


KINDS = ("csv", "json", "html")

STRANGE = "\x1b[31m\u202e</script><b>|=[i]"

GIVEN = {
    "gpu": ImportOptions(gpu="a100-sxm4-80gb"),
    "machine": ImportOptions(machine="dgx-a100"),
    "onto": ImportOptions(onto="dgx-a100"),
}


def expect_data(kind: str, text: str) -> None:
    """Text is a mapping; of a log that tells no configuration, comments alone.

    The run that a log measures is a comment, and YAML once the marks are gone.
    """
    data = yaml.safe_load(text)
    if kind not in kinds("training_logs"):
        assert isinstance(data, dict)
        return
    lines = text.splitlines()
    assert isinstance(data, dict) or {line[:2] for line in lines} == {"# "}
    rows = text.partition(" takes it beside SPEC.yaml:\n")[2].splitlines()
    read = yaml.safe_load("\n".join(line.removeprefix("# ") for line in rows))
    assert not rows or read[0]["measured"]


@pytest.mark.parametrize("kind", IMPORTS)
def test_files_of_others_become_text_that_can_be_seen(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each word of a file in turn gets a hostile one in front."""
    option = next(iter(importer(kind).takes), "")
    options = GIVEN.get(option, ImportOptions())
    for text in IMPORTS[kind]:
        assert run_import([kind, written(folder, text, "imported")], options).text
        words = sorted(set(re.findall(r"[A-Za-z][\w.-]+", text)))[:60]
        for word in words[:: gate(4, everything=1)]:
            result = re.sub(rf"\b{re.escape(word)}\b", lambda w: STRANGE + w[0], text)
            path = written(folder, result, "imported")
            try:
                found = run_import([kind, path], options)
            except SpecError as error:
                expect_seen(str(error))
                continue
            expect_seen(found.text)
            expect_data(kind, found.text)
            tell(found.notes)
            expect_seen(capsys.readouterr().err)


def test_logs_that_are_diagnosed_become_text_that_can_be_seen(folder: Path) -> None:
    """Each word of a log in turn gets a hostile one in front.

    In the gate it is shown in one format, the next word in the next.
    """
    text = LOG.read_text("utf-8")
    words = sorted(set(re.findall(r"[A-Za-z][\w.-]+", text)))
    forms = ("table", "markdown", "json")
    for number, word in enumerate(words[:: gate(17, everything=1)]):
        found = re.sub(rf"\b{re.escape(word)}\b", lambda w: STRANGE + w[0], text)
        path = written(folder, found, "hostile.log")
        for form in gate((forms[number % 3],), everything=forms):
            call = ("diagnose", path, "--cluster", "dgx-h100", "--format", form)
            result = run(*call)
            expect_harmless(result)
            assert result.code in (0, 1, 2), word


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_obeys_no_text(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr("meshwright.cli.output.DELAY_S", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    with Progress() as progress:
        progress._timer.join()
        progress.say("[bold]own[/bold] :warning: \x1b[31m\u202e")
        if is_terminal:
            assert str(progress._status.status) == (
                "[bold]own[/bold] :warning: \\x1b[31m\\u202e"
            )
    told = capsys.readouterr().err
    assert "\x1b[31m" not in told
    if not is_terminal:
        assert told == "\n[bold]own[/bold] :warning: \\x1b[31m\\u202e\n"
