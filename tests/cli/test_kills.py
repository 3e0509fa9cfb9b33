"""Commands that are killed leave every file whole: the old one, or the new."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.errors import SpecError
from meshwright.writing import write_whole
from tests.helpers import killed_writes
from tests.helpers.extent import gate
from tests.helpers.searches import ENVIRONMENT

LIVES = gate(8, everything=100)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="lives are forked")
def test_nothing_is_half_written(tmp_path: Path) -> None:
    words = [killed_writes.__file__, str(tmp_path), str(LIVES), "1"]
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    lives = done.stdout.splitlines()
    assert len(lives) == LIVES
    assert any(line.startswith("SIGXFSZ") for line in lives)


def test_a_file_keeps_its_mode_and_a_link_its_target(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_whole(b"new", link, "--output")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_a_part_of_another_is_left_alone(tmp_path: Path) -> None:
    """A link that others plant where the new file is made is not followed."""
    victim, written = tmp_path / "victim", tmp_path / "written"
    victim.write_bytes(b"mine")
    planted = tmp_path / f".meshwright-{os.getpid()}.part"
    planted.symlink_to(victim)
    write_whole(b"new", written, "--output")
    assert (victim.read_bytes(), written.read_bytes()) == (b"mine", b"new")
    assert planted.is_symlink()


def test_what_cannot_be_written_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    folder, missing = tmp_path / "folder", tmp_path / "missing" / "file"
    folder.mkdir()
    for path, reason in ((folder, "is a directory"), (missing, "no such file")):
        with pytest.raises(SpecError, match=f"--output .*: {reason}"):
            write_whole(b"new", path, "--output")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
