"""What is said when a command fails: whose fault it is, in a screen at most."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshwright import __version__
from meshwright.cli.errors import (
    BAD_INPUT,
    FAULT,
    LONGEST_LINE,
    MOST_CHARACTERS,
    MOST_LINES,
    a_screen_of,
)
from meshwright.errors import InternalError
from tests.helpers.command import SPEC, changed, run

SMALL = "llama3-8b-2xh100-nvlink"

LONG = "n" * 300
"""A name that is longer than file systems take."""

LINES, CHARACTERS = 24, 41 * 100
"""Of a message; a terminal breaks long lines."""


def is_a_screen(text: str) -> bool:
    return len(text.splitlines()) <= LINES and len(text) <= CHARACTERS


@pytest.mark.parametrize("error", [InternalError("off"), ZeroDivisionError("off")])
def test_a_fault_of_ours_is_told_from_bad_input(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("meshwright.api.solve.solve_training", fail)
    result = run("solve", SMALL, "--seed", "7")
    assert (result.code, result.stdout) == (FAULT, "")
    first, *_, last = result.stderr.splitlines()
    kind = type(error).__name__
    assert re.fullmatch(
        rf"internal error: {kind}: off \(test_error_messages\.py:\d+, in fail\)", first
    )
    assert last.startswith(f"meshwright {__version__}, Python ")
    assert last.endswith(f"; command: meshwright solve {SMALL} --seed 7")
    assert len(result.stderr.splitlines()) <= 4
    path = Path(re.findall(r"the traceback in (\S+),", result.stderr)[0])
    written = path.read_text()
    path.unlink()
    assert written.startswith("Traceback (most recent call last)")
    assert written.endswith(f"{last}\n")


def test_a_fault_is_told_where_no_file_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("read-only")

    monkeypatch.setattr("meshwright.api.solve.solve_training", fail)
    monkeypatch.setattr("tempfile.NamedTemporaryFile", fail)
    result = run("solve", SMALL)
    assert result.code == FAULT
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.endswith(f"solve {SMALL}, seed 0\n")


def test_help_tells_the_exit_codes() -> None:
    told = " ".join(run("--help").stdout.split())
    for code, meaning in enumerate(
        ["a plan was found", "none fits", "bad input", "stopped", "a fault of"]
    ):
        assert f"{code} {meaning}" in told


MANY = {
    "a file that is no YAML": "%PDF-1.4 " + "\t<garbage> : {" * 3_000,
    "a line without end": "model: " + "x" * 100_000,
    "many wrong fields": changed("d_ff: 2048", "d_ff: no").replace(
        "model:", "model:\n" + "".join(f"  field_{i}: 1\n" for i in range(500)), 1
    ),
    "a long name": changed("framework: megatron", "framework: " + "m" * 5_000),
    "long pins": SPEC + f"pins: {{layers: {[1] * 3_000}}}\n",
    "a mesh of many factors": SPEC + f"pins: {{mesh: {{tp: {[1] * 3_000}}}}}\n",
    "a long key": SPEC + f"{'k' * 5_000}: 1\n",
    "a list for a model": f"model: {list(range(5_000))}\n",
    "many wrong levels": changed(
        "      - {name: nvlink, size: 8, gb_s: 300, latency_us: 1}\n",
        "      - {name: nvlink, size: no, gb_s: no, latency_us: no}\n" * 300,
    ),
}


@pytest.mark.parametrize("text", MANY.values(), ids=MANY.keys())
def test_no_message_is_longer_than_a_screen(text: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    result = run("solve", str(path))
    assert (result.code, result.stdout) == (BAD_INPUT, "")
    assert is_a_screen(result.stderr)


@pytest.mark.parametrize("arguments", [["check", LONG], ["init", "-o", LONG]])
def test_names_that_no_file_can_have_are_refused(arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.code, result.stdout) == (BAD_INPUT, "")
    assert LONG in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--pin", f"layers={[1] * 3_000}"],
        ["--pin", "p" * 5_000 + "=1"],
        ["--pin", "schedule=" + "s" * 5_000],
        ["--profile", "p" * 5_000],
    ],
)
def test_no_message_on_options_is_longer_than_a_screen(arguments: list[str]) -> None:
    result = run("solve", SMALL, *arguments)
    assert (result.code, result.stdout) == (BAD_INPUT, "")
    assert is_a_screen(result.stderr)


def test_a_long_message_says_how_much_is_left_out() -> None:
    assert a_screen_of("short") == "short"
    wide = a_screen_of("x" * (LONGEST_LINE + 1_234))
    assert wide == "x" * LONGEST_LINE + "\n... and 1,234 more characters"
    both = a_screen_of("\n".join(["x" * LONGEST_LINE] * 3))
    shown, left = both.rsplit("\n", 1)
    assert (len(shown), left) == (MOST_CHARACTERS, "... and 1,702 more characters")
    high = a_screen_of("\n".join(["12345"] * (MOST_LINES + 200)))
    assert high == "\n".join(["12345"] * MOST_LINES) + "\n... and 1,000 more characters"


def test_words_that_no_command_takes_are_cut() -> None:
    result = run("solve", SMALL, "--format", "y" * 9_000)
    assert result.code == BAD_INPUT
    assert result.stderr.count("y") < MOST_CHARACTERS + 100
    assert "more characters" in result.stderr.replace("\n", " ")
