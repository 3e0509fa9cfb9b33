"""Reads a file that starts training, and the files beside it that it names."""

from __future__ import annotations

from pathlib import Path

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.imports.launch import Launch
from meshwright.imports.registry import detect, importer, kinds
from meshwright.imports.settings.setting import Setting
from meshwright.imports.text_file import read_text

MOST_FILES = 4
"""Most files that one launch is read from."""


def launch_kind(text: str) -> str | None:
    """Return the kind of launch that a text is, None where it is none."""
    return detect(text, "launches")


def read_launch(path: Path, kind: str | None = None) -> Launch:
    """Return what a file says, and the files that it names and that stand beside it.

    Args:
        path: A file of a kind of launch.
        kind: Its kind; without, it is told by the text.

    Raises:
        SpecError: the file is none of the kind, or what is in the files contradicts.
    """
    launch = _read(path, kind)
    todo, read = [*launch.files], 1
    while todo and read < MOST_FILES:
        named = todo.pop(0)
        other = _beside(path, named, launch)
        read += 1
        if other is not None:
            todo += other.files
            join(launch, other)
    return launch


def _read(path: Path, kind: str | None) -> Launch:
    text = read_text(path)
    found = kind or launch_kind(text)
    name = printable(str(path))
    if found is None:
        accepted = ", ".join(kinds("launches"))
        raise SpecError(f"{name}: starts no training that is known; kinds: {accepted}")
    try:
        launch = importer(found).parse(text, name)
    except SpecError as error:
        seen = launch_kind(text)
        hint = f"; this looks like {seen}" if seen not in (None, found) else ""
        raise SpecError(f"{error}{hint}") from None
    assert isinstance(launch, Launch)
    return launch


def _beside(path: Path, named: Setting, launch: Launch) -> Launch | None:
    """Return what a file says that a setting names; None where there is none.

    Only a file below the folder of the launch is read.
    """
    relative = Path(str(named.value))
    try:
        other = (path.parent / relative).resolve()
        is_below = other.is_relative_to(path.parent.resolve()) and other.is_file()
    except (OSError, ValueError, RuntimeError):
        is_below = False
    if is_below:
        return _read(path.parent / relative, None)
    launch.unset.append(
        f"{named.where}: {printable(str(named))}: no such file beside it, so what it "
        "says is left open"
    )
    return None


def join(launch: Launch, other: Launch) -> None:
    """Add what another file says to a launch.

    Raises:
        SpecError: the two contradict each other.
    """
    for field, said in other.said.items():
        launch.say(field, said.value, said.setting)
    launch.idle += other.idle
    launch.unjudged += other.unjudged
    launch.unset += other.unset
    launch.ignored += other.ignored
    if other.framework:
        launch.kind, launch.title = other.kind, other.title
        launch.framework = other.framework
