"""The files that names in a spec may mean: those of the user, or bundled ones alone.

Everything that loads a spec asks one of these for its files and opens no others. So
text from strangers, loaded with `BundledFiles`, reaches no file of this machine,
whatever fields it has.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from meshwright import catalog
from meshwright.errors import SpecError


class Files(Protocol):
    """Where the names in a spec are looked up."""

    @property
    def no_file(self) -> str:
        """Return the reason why a name is not that of a file, for error messages."""

    def named(self, kind: str, name: str, near: Path) -> Path:
        """Return the YAML file of a kind that a name means, seen from a folder.

        Raises:
            SpecError: there is none; the message names the nearest bundled ones.
        """

    def file(self, name: str, near: Path) -> Path | None:
        """Return the file of another tool at a path, seen from a folder, or None."""


class UserFiles:
    """All files that the user can read, and the bundled ones."""

    no_file = "no such file"

    def named(self, kind: str, name: str, near: Path) -> Path:
        """Return the bundled file of a name, or the file at a path."""
        return catalog.locate(kind, name, near)

    def file(self, name: str, near: Path) -> Path | None:
        """Return the file at a path, None where there is none."""
        path = near / name
        # os.path answers False for names that no file can have, where Path raises.
        is_there = len(name) <= catalog.LONGEST and os.path.isfile(path)
        return path if is_there else None


@dataclass(frozen=True)
class BundledFiles:
    """The bundled files alone: for specs of strangers, who have no files here."""

    no_file: str
    """What a stranger can give instead of a path."""

    def named(self, kind: str, name: str, near: Path) -> Path:
        """Return the bundled file of a name; paths are unknown names."""
        try:
            return catalog.bundled(kind, name)
        except SpecError as error:
            raise SpecError(f"{error}; {self.no_file}") from None

    def file(self, name: str, near: Path) -> Path | None:
        """Return None, without a look: no file of another tool is bundled."""
        return None


USER_FILES = UserFiles()
"""For specs of the user."""
