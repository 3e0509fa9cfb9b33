"""Finds the kinds of files that can be imported: one module each, by its file name.

Names come from the folders alone, so that an error or a spec can list them without
importing any; see `imports/importer.py` for what a module declares.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from meshwright.imports.importer import (
    FabricImporter,
    FactsImporter,
    Importer,
    LaunchImporter,
    LogImporter,
    MachineImporter,
    ModelImporter,
)
from meshwright.imports.text import read_lines

FOLDERS: dict[str, type[Importer[Any]]] = {
    "machines": MachineImporter,
    "fabrics": FabricImporter,
    "facts": FactsImporter,
    "logs": LogImporter,
    "launches": LaunchImporter,
    "models": ModelImporter,
}
"""Folders of `imports/` with one module per kind, and the class of their importers."""

PACKAGE = "meshwright.imports"

READ = 20_000
"""Characters from the start of a text by which its kind is guessed."""


def kinds(*folders: str) -> tuple[str, ...]:
    """Return the names of the kinds in some folders, or in all if none is given."""
    return tuple(
        name
        for folder in folders or FOLDERS
        for name in sorted(
            path.stem
            for root in import_module(f"{PACKAGE}.{folder}").__path__
            for path in Path(root).glob("[!_]*.py")
        )
    )


def importer(kind: str) -> Importer[Any]:
    """Return the importer of a kind.

    Raises:
        KeyError: there is no such kind.
        TypeError: the module of the kind declares none, or one of another folder.
    """
    folder = next((folder for folder in FOLDERS if kind in kinds(folder)), None)
    if folder is None:
        raise KeyError(kind)
    module = import_module(f"{PACKAGE}.{folder}.{kind}")
    found = getattr(module, "IMPORTER", None)
    if not isinstance(found, FOLDERS[folder]):
        expected = FOLDERS[folder].__name__
        raise TypeError(f"{module.__file__}: expected IMPORTER = {expected}(...)")
    return found


def detect(text: str, *folders: str) -> str | None:
    """Return the kind that a text looks like, of some folders or of all, or None."""
    lines = read_lines(text[:READ], "text")
    start = "\n".join(line.text for line in lines)
    fitting = (
        kind for kind in kinds(*folders) if re.search(importer(kind).sign, start)
    )
    return next(fitting, None)
