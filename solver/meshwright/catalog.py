"""Finds the YAML files that ship with Meshwright, and says what is near a typo."""

from __future__ import annotations

import difflib
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from meshwright.errors import SpecError


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
    path = near / name
    if path.suffix in {".yaml", ".yml"} or path.is_dir() or "/" in name:
        if path.is_file():
            return path
        problem = "is a folder" if path.is_dir() else "no such file"
        raise SpecError(f"{name}: {problem}; expected a YAML file")
    bundled = folder(kind) / f"{name}.yaml"
    if bundled.is_file():
        return Path(str(bundled))
    if path.is_file():
        return path
    raise SpecError(
        f"{name!r} is neither a file nor a bundled name; {_near(kind, name)}"
    )


def _near(kind: str, name: str) -> str:
    known = names(kind)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "bundled: " + ", ".join(known)
