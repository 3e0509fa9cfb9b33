"""Reads files of other tools as facts, machines, levels or launches; writes YAML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from meshwright.errors import SpecError
from meshwright.escape import printable, printable_lines
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.settings import Setting
from meshwright.imports.machines.graph import to_graph
from meshwright.imports.registry import (
    FabricImporter,
    Imported,
    MachineImporter,
    detect,
    detect_log,
    importer,
    kinds,
)
from meshwright.imports.switch_levels import stack
from meshwright.imports.text import read_text
from meshwright.spec.gpu import Gpu
from meshwright.spec.topology import Topology


def read_facts(kind: str, path: Path, *given: Any) -> Any:
    """Return the facts of a file of a kind; `given` goes to its parser."""
    return _parsed(kind, read_text(path), printable(str(path)), (), *given)


def _parsed(
    kind: str, text: str, name: str, provided: tuple[str, ...], *given: Any
) -> Any:
    """Return the facts of a text; errors say what it looks like among other kinds."""
    try:
        return importer(kind).parse(text, name, *given)
    except SpecError as error:
        seen = detect(text, *provided)
        hint = f"; this looks like {seen}" if seen not in (None, kind) else ""
        raise SpecError(f"{error}{hint}") from None


def gpu_name(kind: str, path: Path) -> str:
    """Return the name of the GPUs in the file of a machine; empty if it has none."""
    reader = importer(kind)
    if not isinstance(reader, MachineImporter) or reader.gpu_name is None:
        return ""
    return str(reader.gpu_name(read_facts(kind, path)))


def read_machine(kind: str, path: Path, gpu: Gpu) -> Imported:
    """Return the nodes and links of a machine, and what was assumed."""
    reader = importer(kind)
    assert isinstance(reader, MachineImporter), kind
    facts = read_facts(kind, path)
    return _of_file(path, lambda: to_graph(reader.to_machine(facts, gpu), gpu))


def read_levels(kind: str, path: Path, machine: Topology) -> Imported:
    """Return the levels of a machine and of the switches above it that a file names."""
    reader = importer(kind)
    assert isinstance(reader, FabricImporter), kind
    facts = read_facts(kind, path)
    return _of_file(path, lambda: stack(reader.to_levels(facts), machine))


def _of_file(path: Path, make: Callable[[], Imported]) -> Imported:
    """Return the result of `make`; its errors name the file."""
    name = printable(str(path))
    try:
        return make()
    except SpecError as error:
        if str(error).startswith(f"{name}:"):
            raise
        raise SpecError(f"{name}: {error}") from None


MOST_FILES = 4
"""Most files that one launch is read from."""


def launch_kind(text: str) -> str | None:
    """Return the kind of launch that a text is, None where it is none."""
    return detect(text, "launches")


def kind_of_launch(path: Path) -> str | None:
    """Return the kind of launch that a file is, None where it is none."""
    try:
        return launch_kind(read_text(split_function(path)[0]))
    except SpecError:
        return None


_SCRIPT = re.compile(r"#!.{0,60}\b(?:ba|z|da|k)?sh\b|#SBATCH\b", re.ASCII)
_STARTED = re.compile(
    r"\b(?:bash|sh|srun|sbatch|source)[ ](?:-[\w=-]{1,40}[ ]){0,9}"
    r"([\w./-]{1,100}\.(?:sh|slurm|sbatch))\b",
    re.ASCII,
)
_PROGRAM = re.compile(r"([\w./-]{1,100}\.py)\b", re.ASCII)


def told_of_script(text: str) -> str:
    """Return what a script is that starts no trainer; empty for other text."""
    if not any(map(_SCRIPT.match, text[:10_000].splitlines()[:20])):
        return ""
    told = "a script that starts no trainer that is known"
    plain = re.sub(r"(?m)^[ \t]*#.*", "", text)
    if started := _STARTED.search(plain) or _PROGRAM.search(plain):
        told += f"; it starts {started[1]}: give that"
    return told


def read_launch(path: Path, kind: str | None = None) -> Launch:
    """Return the launch of a file, with the files that it names and that lie beside it.

    Args:
        path: A file of a kind of launch; `FILE:FUNCTION` is one in Python.
        kind: Its kind; without, it is told by the text.

    Raises:
        SpecError: the file is none of the kind, or what is in the files contradicts.
    """
    path, function = split_function(path)
    launch = _read_text(read_text(path), printable(str(path)), kind, function)
    todo, read = [*launch.files], 1
    while todo and read < MOST_FILES:
        named = todo.pop(0)
        other = _beside(path, named, launch)
        read += 1
        if other is not None:
            todo += other.files
            join(launch, other)
    for program in launch.programs:
        beside = _path_below(path, program)
        if beside is not None and kind_of_launch(beside) == "trl":
            join(launch, _read_text(read_text(beside), printable(str(beside))))
    launch.settle_pairs()
    launch.settle_ends()
    if not launch.framework and launch.unsharded:
        launch.assume(launch.unsharded)
        if path.suffix in (".yaml", ".yml") or launch.kind == "accelerate":
            told = "names neither FSDP nor DeepSpeed, so taken as replicas"
            launch.unset.append(f"{launch.name}: {told} (zero=0, offload=none)")
    return launch


def split_function(path: Path) -> tuple[Path, str | None]:
    """Return the file of `FILE:FUNCTION`, and its function; None without one."""
    file, colon, function = str(path).rpartition(":")
    is_function = colon and function.isidentifier() and file.endswith(".py")
    return (Path(file), function) if is_function else (path, None)


def _read_text(
    text: str,
    name: str,
    kind: str | None = None,
    function: str | None = None,
    overrides: Sequence[Setting] = (),
) -> Launch:
    found = kind or launch_kind(text)
    if found is None:
        accepted = ", ".join(kinds("launches"))
        seen = detect_log(text) or detect(text)
        hint = f"; this looks like {seen}" if seen else ""
        told = f"starts no training that is known; kinds: {accepted}{hint}"
        raise SpecError(f"{name}: {told}")
    launch = _parsed(found, text, name, ("launches",), function, overrides)
    assert isinstance(launch, Launch)
    return launch


def _beside(path: Path, named: Setting, launch: Launch) -> Launch | None:
    """Return the launch of a file that a setting names; None where there is none.

    Only a file below the folder of the launch is read, or below the current one where
    the launch is named by a path from there: programs are started above `examples/`.
    """
    written = launch.written.get(str(named.value))
    if written is not None:
        return _read_text(written, named.where.file, overrides=launch.overrides)
    if (beside := _path_below(path, named)) is not None:
        name = printable(str(beside))
        return _read_text(read_text(beside), name, overrides=launch.overrides)
    launch.unset.append(
        f"{named.where}: {printable(str(named))}: no such file beside it, so what it "
        "says is left open"
    )
    return None


def _path_below(path: Path, named: Setting) -> Path | None:
    """Return the file that a setting names, if it lies below the folder of `path`.

    Where `path` leads down from the current folder, it may lie below that one, too.
    What another folder has is not even looked at; links may lead there, too.
    """
    relative = Path(str(named.value))
    if relative.is_absolute() or ".." in relative.parts:
        return None
    leads_down = not path.is_absolute() and ".." not in path.parts
    for folder in (path.parent, *([Path()] if leads_down else [])):
        try:
            other = (folder / relative).resolve()
            is_below = other.is_relative_to(folder.resolve()) and other.is_file()
        except (OSError, ValueError, RuntimeError):
            return None
        if is_below:
            return folder / relative
    return None


def join(launch: Launch, other: Launch) -> None:
    """Add the values of another file to a launch.

    Raises:
        SpecError: the two contradict each other.
    """
    if launch.overrides:  # with which the other was read
        launch.values |= other.values
        launch.unknown.clear()
    for field, found in other.values.items():
        launch.set(field, found.value, found.setting)
    if other.fills_auto:
        launch.auto.clear()
    elif launch.fills_auto:
        other.auto.clear()
    for notes in ("auto", "idle", "unjudged", "unset", "ignored", "apart", "unknown"):
        both = [*getattr(launch, notes), *getattr(other, notes)]
        setattr(launch, notes, [*dict.fromkeys(both)])
    launch.fills_auto |= other.fills_auto
    launch.has_pairs |= other.has_pairs
    launch.trained_ends = launch.trained_ends or other.trained_ends
    launch.usual = launch.usual or other.usual
    if other.framework:
        launch.kind, launch.title = other.kind, other.title
        launch.framework = other.framework


WIDTH = 100
"""Columns of the data; every comment stays on one line."""


def as_yaml(made_from: str, notes: Iterable[str], data: dict[str, Any]) -> str:
    """Return data as YAML, below comments."""
    lines = [f"Made from {made_from}.", *notes]
    comments = "".join(f"# {printable(line)}\n" for line in lines)
    return comments + "".join(_field(name, value) for name, value in data.items())


def _field(name: str, value: Any) -> str:
    """Return a field as YAML; a list of mappings has one per line, where they fit."""
    if not (isinstance(value, list) and value and isinstance(value[0], dict)):
        return _dump({name: value}, None if isinstance(value, list | dict) else False)
    lines = [_dump([item], True).strip()[1:-1] for item in value]
    if max(map(len, lines)) > WIDTH:
        return _dump({name: value}, None)
    return f"{name}:\n" + "".join(f"- {line}\n" for line in lines)


def _dump(data: Any, style: bool | None) -> str:
    """Return data as YAML; characters that cannot be seen are escaped."""
    import yaml

    width = float("inf") if style else WIDTH
    form: dict[str, Any] = {"sort_keys": False, "default_flow_style": style}
    text = str(yaml.safe_dump(data, width=width, allow_unicode=True, **form))
    if printable_lines(text) == text:
        return text
    return str(yaml.safe_dump(data, width=width, **form))


def plain_data(value: Any) -> Any:
    """Return a value as YAML can hold it: dataclasses as dicts, sequences as lists.

    A key of two names becomes one text, 'GPU0 - GPU1'.
    """
    if is_dataclass(value):
        return {
            field.name: plain_data(getattr(value, field.name))
            for field in fields(value)
        }
    if isinstance(value, Mapping):
        return {_key(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return [plain_data(item) for item in sorted(value)]
    if isinstance(value, list | tuple):
        return [plain_data(item) for item in value]
    return value


def _key(key: Any) -> Any:
    if isinstance(key, tuple | frozenset):
        return " - ".join(map(str, sorted(key) if isinstance(key, frozenset) else key))
    return key
