"""Reads files of other tools: as facts, as a machine, or as the levels above one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.imports.imported import Imported
from meshwright.imports.importer import FabricImporter, MachineImporter
from meshwright.imports.registry import detect, importer
from meshwright.imports.stacking import stack
from meshwright.imports.text_file import read_text
from meshwright.spec.gpu import Gpu
from meshwright.spec.topology import Topology


def read_facts(kind: str, path: Path, *given: Any) -> Any:
    """Return the facts of a file of a kind; `given` goes to its parser.

    Raises:
        SpecError: names file and line, and the kind that the text looks like.
    """
    text = read_text(path)
    try:
        return importer(kind).parse(text, printable(str(path)), *given)
    except SpecError as error:
        seen = detect(text)
        hint = f"; this looks like {seen}" if seen not in (None, kind) else ""
        raise SpecError(f"{error}{hint}") from None


def gpu_name(kind: str, path: Path) -> str:
    """Return the name of the GPUs in the file of a machine; empty if it has none.

    Raises:
        SpecError: names file and line of what cannot be read.
    """
    reader = importer(kind)
    if not isinstance(reader, MachineImporter) or reader.gpu_name is None:
        return ""
    return str(reader.gpu_name(read_facts(kind, path)))


def read_machine(kind: str, path: Path, gpu: Gpu) -> Imported:
    """Return the nodes and links of a machine, and what was assumed.

    Raises:
        SpecError: names the file, and the line if one line is at fault.
    """
    reader = importer(kind)
    assert isinstance(reader, MachineImporter), kind
    facts = read_facts(kind, path)
    return _of_file(path, lambda: reader.to_topology(facts, gpu, gpu.name))


def read_levels(kind: str, path: Path, machine: Topology) -> Imported:
    """Return the levels of a machine and of the switches above it that a file names.

    Raises:
        SpecError: names the file, and the line if one line is at fault.
    """
    reader = importer(kind)
    assert isinstance(reader, FabricImporter), kind
    facts = read_facts(kind, path)
    return _of_file(path, lambda: stack(reader.to_levels(facts), machine))


def _of_file(path: Path, make: Callable[[], Imported]) -> Imported:
    """Return what `make` returns; its errors name the file."""
    name = printable(str(path))
    try:
        return make()
    except SpecError as error:
        if str(error).startswith(f"{name}:"):
            raise
        raise SpecError(f"{name}: {error}") from None
