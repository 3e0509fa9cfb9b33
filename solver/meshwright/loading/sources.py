"""Sources of specs: files, bundled names, YAML text or plain data, and presets in them.

Everything that loads a spec asks a `Files` for the files that names mean, and opens no
others. So text from strangers, loaded with `BundledFiles`, reaches no file of this
machine, whatever fields it has.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.imports.text import unfenced
from meshwright.reading.document import Document, FieldPath, Where, shown
from meshwright.reading.yaml_and_csv import parse_yaml, read_yaml
from meshwright.surface import command, option


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


_SUFFIXES = {".yaml", ".yml", ".json", ".txt", ".toml", ".sh", ".py", ".log", ".conf"}
"""Ends of names that mean files; no bundled name has them."""


@dataclass(frozen=True)
class BundledFiles:
    """The bundled files alone: for specs of strangers, who have no files here."""

    no_file: str
    """Told to strangers who give a path: what they can give instead."""

    def named(self, kind: str, name: str, near: Path) -> Path:
        """Return the bundled file of a name; paths are unknown names."""
        try:
            return catalog.bundled(kind, name)
        except SpecError as error:
            is_path = "/" in name or Path(name[: catalog.LONGEST]).suffix in _SUFFIXES
            told = f"{error}; {self.no_file}" if is_path else str(error)
            raise SpecError(told) from None

    def file(self, name: str, near: Path) -> Path | None:
        """Return None, without a look: no file of another tool is bundled."""
        return None


@dataclass(frozen=True)
class FilesBelow:
    """The bundled files, and the files below one folder that no link leads to."""

    root: Path
    """The folder, as `os.path.realpath` has it."""
    no_file = "no such file below the root"

    def named(self, kind: str, name: str, near: Path) -> Path:
        """Return the bundled file of a name, or the file at a path below the root."""
        if (path := self.file(name, near)) is not None:
            return path
        try:
            return catalog.bundled(kind, name)
        except SpecError as error:
            raise SpecError(f"{error}; {self.no_file}") from None

    def file(self, name: str, near: Path) -> Path | None:
        """Return the file at a path below the root, seen from a folder, or None."""
        if len(name) > catalog.LONGEST or "\0" in name:
            return None
        path = os.path.normpath(self.root / near / name)
        is_below = path.startswith(os.path.join(self.root, ""))
        is_real = is_below and os.path.realpath(path) == path
        return Path(path) if is_real and os.path.isfile(path) else None


USER_FILES = UserFiles()
"""For specs of the user."""

Source = str | os.PathLike[str] | Mapping[str, Any] | Document
"""A path or a bundled name, YAML text, the fields, or a document read from them."""


def open_source(source: Source, kind: str, files: Files = USER_FILES) -> Document:
    """Return the data of a source, and where each value of it was written.

    Text is YAML where it has several lines or opens a mapping with a brace; other text
    names a file, or a bundled one of the `kind`. Relative paths in text and in fields
    start in the working directory.

    Raises:
        SpecError: the file does not exist, or is not YAML.
    """
    if isinstance(source, Document):
        return source
    if isinstance(source, Mapping):
        return Document(copy.deepcopy(dict(source)), {(): Where("fields")})
    path = None
    if not isinstance(source, str) or is_name(source, files):
        path = files.named(kind, os.fspath(source), Path())
    try:
        given = unfenced(str(source))
        document = parse_yaml(given, "text") if path is None else read_yaml(path)
    except SpecError:
        _refuse_other(source, path)
        raise
    is_spec = isinstance(document.data, dict) and document.data.keys() & JOBS
    if kind == "specs" and not is_spec:
        _refuse_other(source, path)
    return document


JOBS = {"training", "inference"}
"""Sections one of which every spec has."""


def _refuse_other(source: str | os.PathLike[str], path: Path | None) -> None:
    """Refuse a file of another tool, or its text, where a spec is expected.

    Raises:
        SpecError: names the commands and the option that take such a file.
    """
    # Specs are read without these.
    from meshwright.imports.registry import detect, detect_log, kinds
    from meshwright.imports.text import read_text

    try:
        text = str(source) if path is None else read_text(path)
    except SpecError:  # no text
        return
    name = "text" if path is None else printable(str(path))
    given = option("text", "...") if path is None else option("file", name)
    model, cluster = option("model", "NAME"), option("cluster", "NAME")
    if seen := detect_log(text):
        judged = command("diagnose", given)
        told = f"is the log of a run ({seen}): {judged}"
    elif (seen := detect(text)) in kinds("launches"):
        plan = option("plan", "..." if path is None else name)
        judged = command("explain", plan, option("gpu", "NAME"))
        made = command("import", given, option("output", "SPEC.yaml"))
        told = f"starts training ({seen}): to judge its plan, {judged}; "
        told += f"as a spec, {made}"
    elif seen in kinds("machines", "fabrics", "facts"):
        told = f"describes a cluster ({seen}): {option('cluster', name)} {model}"
    elif seen in kinds("models"):
        told = f"describes a model ({seen}): {option('model', name)} {cluster}"
    else:
        return
    raise SpecError(f"{name}: is no spec; it {told}")


def is_name(
    source: Source, files: Files = USER_FILES
) -> TypeGuard[str | os.PathLike[str]]:
    """Return whether a source is a path or a bundled name, not YAML or fields."""
    if not isinstance(source, str):
        return isinstance(source, os.PathLike)
    is_text = "\n" in source.strip() or source.lstrip().startswith("{")
    return not is_text or files.file(source, Path()) is not None


def resolved(option: str, field: str, name: str, files: Files = USER_FILES) -> Document:
    """Return the topology or GPU of a name, as {field: its data}.

    Raises:
        SpecError: names the option, or the file, line and field.
    """
    document = Document({field: name}, {(): Where(option)})
    kinds = {"topology": "topologies", "gpu": "topologies/gpus"}
    resolve_field(document, (field,), kinds[field], files)
    if field == "topology":
        resolve_field(document, (field, "gpu"), kinds["gpu"], files)
    return document


def resolve_machine(document: Document, path: FieldPath, files: Files) -> None:
    """Replace names in a mapping with a topology, or a machine, which is one too."""
    parent = document.value(path)
    if not isinstance(parent, dict):
        return
    field: FieldPath = (*path, "topology")
    if "machine" in parent:
        at = document.where((*path, "machine"))
        if "topology" in parent:
            name = document.name((*path, "machine"))
            raise SpecError(f"{at}: {name}: given beside a topology; keep one")
        parent["topology"] = parent.pop("machine")
        document.places[field] = at
        document.renamed[field] = (*path, "machine")
    resolve_field(document, field, "topologies", files)
    if isinstance(parent.get("topology"), dict):
        resolve_field(document, (*field, "gpu"), "topologies/gpus", files)


def resolve_field(document: Document, path: FieldPath, kind: str, files: Files) -> None:
    """Replace text, or a mapping with a preset and overrides, by the preset's data.

    A relative path starts in the folder of the file in which it is written.
    """
    parent, field = document.value(path[:-1]), str(path[-1])
    value = parent.get(field)
    overrides = dict(value) if isinstance(value, dict) else {}
    written = (*path, "preset") if "preset" in overrides else path
    name = overrides.pop("preset") if "preset" in overrides else value
    if written != path and not isinstance(name, str):
        at = f"{document.where(written)}: {document.name(written)}"
        raise SpecError(f"{at}: {shown(name)}: expected a name or a file")
    if not isinstance(name, str):
        return
    preset, here = (
        _read_preset(document, written, name, kind, files),
        document.where(path),
    )
    require_mapping(preset, (), f"the fields of {field}")
    places = {p: w for p, w in document.places.items() if p[: len(path)] == path}
    document.graft(path, preset)
    parent[field] = preset.data | overrides
    for place, where in places.items():
        if place[len(path) : len(path) + 1] and place[len(path)] in overrides:
            document.places[place] = where
    if overrides:
        document.places[path] = here


def _read_preset(
    document: Document, written: FieldPath, name: str, kind: str, files: Files
) -> Document:
    here = document.where(written)
    try:
        path = files.named(kind, name, Path(here.file).parent)
    except SpecError as error:
        raise SpecError(f"{here}: {document.name(written)}: {error}") from None
    return catalog.read(path)


def require_mapping(document: Document, path: FieldPath, expected: str) -> None:
    """Refuse a value at a path that is no mapping.

    Raises:
        SpecError: names the place, the value and what is expected.
    """
    value = document.value(path)
    if not isinstance(value, dict):
        field = f" {document.name(path)}:" if path else ""
        at = f"{document.where(path)}:{field}"
        raise SpecError(f"{at} {shown(value)}: expected {expected}, as a mapping")
