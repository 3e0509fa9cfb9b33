"""Messages on words of the command line that no command takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from meshwright.cli.error_messages import a_screen_of
from meshwright.escape import printable

UsageError: Any = typer.BadParameter.__base__
"""The error of click, or of the copy of click inside typer."""


class Commands(TyperGroup):
    """A group of commands whose usage errors are at most a screen, all visible."""

    def make_context(self, *words: Any, **more: Any) -> Any:
        """Read the options before the command."""
        with _seen():
            return super().make_context(*words, **more)

    def invoke(self, ctx: Any) -> Any:
        """Read the words of the command, and run it."""
        with _seen():
            return super().invoke(ctx)


@contextmanager
def _seen() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        error.message = a_screen_of(printable(error.message))
        raise
