"""Finds the YAML files that ship with Meshwright, and says what is near a typo."""

from __future__ import annotations

import difflib
import os
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from meshwright.errors import SpecError

LONGEST = 1_000
"""Characters of a name or path; longer ones are not looked for."""


def folder(kind: str) -> Traversable:
    """Return the folder that holds the bundled YAML files of one kind."""
    installed = files("meshwright") / kind
    return installed if installed.is_dir() else Path(__file__).parents[2] / kind


def names(kind: str) -> list[str]:
    """Return the names of the bundled files of one kind, sorted."""
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in folder(kind).iterdir()
        if entry.name.endswith(".yaml")
    )


def locate(kind: str, name: str, near: Path) -> Path:
    """Return the file meant by `name`: a path, seen from `near`, or a bundled name.

    Raises:
        SpecError: neither exists; the message names the nearest bundled ones.
    """
    known = names(kind)
    if name in known:
        return Path(str(folder(kind) / f"{name}.yaml"))
    path = near / name
    # os.path answers False for names that no file can have, where Path raises.
    if len(name) <= LONGEST and os.path.isfile(path):
        return path
    shown = repr(name) if len(name) <= 60 else repr(name[:60]) + "..."
    if name and len(name) <= LONGEST and os.path.isdir(path):
        raise SpecError(f"{shown}: is a folder; expected a YAML file")
    if "/" in name or name.endswith((".yaml", ".yml")):
        raise SpecError(
            f"{shown}: no such file; expected a YAML file{_or(name, known)}"
        )
    raise SpecError(
        f"{shown} is neither a file nor a bundled name; {_near(name, known)}"
    )


def _or(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(Path(name).stem[:60], known, n=1, cutoff=0.7)
    return f" or a bundled name such as {close[0]}" if close else ""


def _near(name: str, known: list[str]) -> str:
    close = [other for other in known if name and name in other][:3]
    close = close or difflib.get_close_matches(name[:60], known, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "bundled: " + ", ".join(known)
