"""Runs the command line in this process."""

from __future__ import annotations

import contextlib
import io
from functools import cache
from typing import NamedTuple
from unittest import mock

import typer

from meshwright.cli import app, main

COMMANDS = typer.main.get_command(app)
"""What `app()` makes of all verbs and their options on every call."""


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str


def run(*arguments: str, stdin: str = "") -> Result:
    """Run `meshwright` with arguments; progress stays silent, however slow it is."""
    typed = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
    stdout, stderr, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch("sys.argv", ["meshwright", *arguments]),
        mock.patch("sys.stdin", typed),
        mock.patch("meshwright.cli.asked_commands", return_value=COMMANDS),
        mock.patch("meshwright.cli.output.DELAY_S", 3_600.0),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else int(bool(exit_.code))
    return Result(code, stdout.getvalue(), stderr.getvalue())


@cache
def ran(*arguments: str) -> Result:
    """Return what a command that writes no file left behind; it runs once."""
    return run(*arguments)


def unwrapped(text: str) -> str:
    """Return text with one blank between words, however its lines are broken."""
    return " ".join(text.split())


def refusal(*arguments: str) -> str:
    """Return the message with which a command refuses its input.

    It must leave with 2, print nothing to stdout, and show no traceback.
    """
    result = run("solve", *arguments)
    assert (result.code, result.stdout) == (2, ""), result
    assert result.stderr.startswith("error: "), result
    assert "Traceback" not in result.stderr
    return result.stderr.removeprefix("error: ").rstrip("\n")


SPEC = """\
model:
  n_layers: 8
  d_model: 512
  n_heads: 8
  n_kv_heads: 4
  d_ff: 2048
  vocab: 32000
cluster:
  topology:
    gpu:
      memory_gib: 80 GiB
      memory_gb_s: 2000
      peak_tflops: {bf16: 312}
    levels:
      - {name: nvlink, size: 8, gb_s: 300, latency_us: 1}
framework: megatron
training:
  seq_len: 1024
  global_batch: 1000
"""
"""A small spec that solves; tests break one line of it."""


def changed(old: str, new: str) -> str:
    """Return the small spec with one piece of its text replaced."""
    assert SPEC.count(old) == 1, f"{old!r} stands {SPEC.count(old)} times"
    return SPEC.replace(old, new)
