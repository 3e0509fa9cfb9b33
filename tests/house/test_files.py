"""How long a file may be, and how large what is checked in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import meshwright

ROOT = Path(meshwright.__file__).parent
CHECKOUT = ROOT.parents[1]
LONGEST = 600
LARGEST_KIB = 512


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_files_are_short() -> None:
    paths = sorted(ROOT.rglob("*.py"))
    lines = {name_of(path): path.read_text("utf-8").count("\n") for path in paths}
    assert len(lines) > 100
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}


@pytest.mark.skipif(not (CHECKOUT / ".git").exists(), reason="not a checkout of git")
def test_no_large_file_is_checked_in() -> None:
    """What a program left behind by mistake is, more often than not, large."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, check=True
    )
    paths = [CHECKOUT / name.decode() for name in listed.stdout.split(b"\0") if name]
    assert len(paths) > 1_000
    there = [path for path in paths if path.is_file()]
    large = [one for one in there if one.stat().st_size > LARGEST_KIB * 1024]
    assert large == []


def test_every_benchmark_takes_help_before_it_starts() -> None:
    """One that ignores `--help` works for minutes instead."""
    folder = CHECKOUT / "benchmarks"
    paths = [*folder.glob("*.py"), *folder.glob("*/__main__.py")]
    texts = [path.read_text("utf-8") for path in paths]
    mains = [text for text in texts if '__name__ == "__main__"' in text]
    assert len(mains) > 20
    answers = ("ArgumentParser(", "without_options(__doc__)")
    assert [text[:70] for text in mains if not any(a in text for a in answers)] == []
