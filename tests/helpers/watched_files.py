"""The files that are opened or looked for, outside the package and Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import meshwright
from meshwright import catalog

_OWN = tuple(
    os.path.realpath(str(path))
    for path in (
        *(sys.prefix, sys.base_prefix, Path(meshwright.__file__).parent),
        *map(catalog.folder, ("topologies", "specs", "profiles", "skills")),
    )
)
"""Folders of the package, and of Python and its libraries."""


class Watch:
    """The files that are opened or looked for while it is on."""

    def __init__(self) -> None:
        self.found: list[str] | None = None
        sys.addaudithook(self._listen)

    def _listen(self, event: str, arguments: tuple[Any, ...]) -> None:
        # The hook stays for all other tests, which must not pay for it.
        if self.found is None:
            return
        watched = ("open", "os.listdir", "os.scandir", "os.chdir", "subprocess.Popen")
        if event not in watched or not arguments:
            return
        flags = arguments[2] if event == "open" else os.O_RDONLY
        self.note(arguments[0], bool(flags & (os.O_WRONLY | os.O_RDWR)))

    def note(self, path: Any, is_written: bool = False) -> None:
        """Note a path that is not the package's or Python's, or that is written."""
        if self.found is None or isinstance(path, int) or path is None:
            return
        text = os.path.abspath(os.fsdecode(path))
        # Imports look for the folders of sys.path themselves, and keep what they read.
        is_import = text in map(os.path.abspath, sys.path) or "__pycache__" in text
        if not is_import and (is_written or not text.startswith(_OWN)):
            self.found.append(text)


_WATCH: list[Watch] = []
"""The only watch, as no hook can be removed."""


@contextmanager
def watched_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """List the files that are opened or looked for outside the package."""
    if not _WATCH:
        _WATCH.append(Watch())
    watch = _WATCH[0]

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, *others: Any, **more: Any) -> Any:
            watch.note(path)
            return function(path, *others, **more)

        return look

    for name in ("stat", "lstat"):
        monkeypatch.setattr(os, name, noted(getattr(os, name)))
    watch.found = []
    yield watch.found
    watch.found = None
