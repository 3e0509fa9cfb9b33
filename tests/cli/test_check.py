"""`meshwright check`: findings by file and line, what is skipped, exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import catalog
from tests.helpers.command import run

DATA = Path(__file__).parents[1] / "data"
SCRIPT = (DATA / "pretrain.sh").read_text("utf-8")
FITS, NONE_FITS = "gpt-1.3b-2xh100-nvlink", "llama3-8b-2x4090-pcie"
ON = ("--cluster", "dgx-a100", "--model", "llama3-70b")


def spec(name: str) -> str:
    return catalog.bundled("specs", name).read_text("utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_of_sound_files_passes(folder: Path) -> None:
    (folder / "spec.yaml").write_text(spec(FITS))
    (folder / "train.sh").write_text(SCRIPT)
    (folder / "other.yaml").write_text("hello: 1\n")
    (folder / "notes.md").write_text("model: x\n")
    hidden = folder / ".git"
    hidden.mkdir()
    (hidden / "bad.yaml").write_text(spec(FITS).replace("seq_len", "seqlen"))
    told = run("check", ".", *ON)
    assert (told.code, told.stdout) == (0, "")
    assert told.stderr == "note: 2 files checked, 0 errors\n"
    told = run("check", "train.sh", *ON)
    assert told.stderr == "note: 1 file checked, 0 errors\n"


def test_a_spec_that_cannot_be_read_is_told_by_its_line(folder: Path) -> None:
    text = spec(FITS)
    (folder / "bad.yaml").write_text(text.replace("seq_len: ", "seq_len: x"))
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "seq_len" in one)
    told = run("check", "bad.yaml")
    assert told.code == 2
    assert told.stdout.startswith(f"bad.yaml:{line}: error: training.seq_len: 'x")
    told = run("check", "bad.yaml", "--annotate", "github")
    at = f"::error file=bad.yaml,line={line},title=Meshwright::training.seq_len: "
    assert told.stdout.startswith(at)


def test_a_spec_without_a_plan_says_why(folder: Path) -> None:
    text = spec(NONE_FITS)
    (folder / "tight.yaml").write_text(text)
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "cluster" in one)
    told = run("check", "tight.yaml")
    assert told.code == 1
    assert told.stdout.startswith(f"tight.yaml:{line}: error: no plan fits: memory: ")
    assert "Mend it: " in told.stdout


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("TP=8", "TP=12", "train.sh:30: error: does not fit: pins.tp: tp is 12"),
        ("size 512", "size 510", "batch_divisible: dp divides the global batch (510"),
    ],
)
def test_a_launch_is_judged_on_a_cluster(
    before: str, after: str, told: str, folder: Path
) -> None:
    (folder / "train.sh").write_text(SCRIPT.replace(before, after))
    found = run("check", "train.sh", *ON)
    assert found.code == 1
    assert told in found.stdout


def test_a_launch_is_judged_on_a_spec(folder: Path) -> None:
    (folder / "train.sh").write_text(SCRIPT)
    told = run("check", "train.sh", "--spec", FITS)
    assert told.code == 2
    assert told.stdout.startswith("train.sh:")
    assert "the spec's" in told.stdout


def test_options_that_nobody_knows_are_warnings(folder: Path) -> None:
    script = SCRIPT.replace("--bf16", "--bf16 --fancy-new-kernel 3")
    (folder / "train.sh").write_text(script)
    told = run("check", "train.sh")
    assert told.code == 0
    assert "train.sh: warning: not known, so not judged: --fancy" in told.stdout


def test_what_is_not_ours_is_skipped_and_what_is_not_there_refused(
    folder: Path,
) -> None:
    (folder / "a.py").write_text("print(1)\n")
    (folder / "b.yaml").write_bytes(b"\xff\xfe\x00")
    told = run("check", "a.py", "b.yaml")
    assert (told.code, told.stdout) == (0, "")
    assert "note: nothing here is a spec (a model, a cluster) or starts" in told.stderr
    assert "note: 0 files checked, 0 errors" in told.stderr
    told = run("check", "no-such")
    assert told.code == 2
    assert "no-such: no such file or folder" in told.stderr


def test_names_of_files_cannot_break_out_of_an_annotation(folder: Path) -> None:
    name = "a,line=9%0A::b.yaml"
    (folder / name).write_text(spec(FITS).replace("seq_len: ", "seq_len: x"))
    told = run("check", name, "--annotate", "github").stdout
    assert told.count("\n") == 1
    assert told.startswith("::error file=a%2Cline=9%250A%3A%3Ab.yaml,line=")
