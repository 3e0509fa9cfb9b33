"""Files of an export, and the settings in them with their reasons."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import Field, field_validator

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.spec.base import SpecModel

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class ExportedFile(SpecModel):
    """One file of an export."""

    name: str = Field(description="Its name in the folder; never a path.")
    text: str = Field(description="All of it.")

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _PLAIN_NAME.fullmatch(name):
            raise ValueError("expected the plain name of a file")
        return name


class Export(SpecModel):
    """A plan as files that start a training framework.

    Example:
        >>> import meshwright as mw
        >>> spec = mw.load("gpt-1.3b-2xh100-nvlink")
        >>> exported = mw.export(spec, mw.solve(spec), to="megatron")
        >>> [file.name for file in exported.files]
        ['launch.sh', 'model.md']
    """

    target: str = Field(
        description="What starts the plan: `megatron`, `torchtitan`, ..."
    )
    version: str = Field(description="The versions that the files are written for.")
    files: tuple[ExportedFile, ...] = Field(description="In no order.")

    def __getitem__(self, name: str) -> str:
        """Return the text of the file of a name.

        Raises:
            SpecError: no file has this name.
        """
        texts = {file.name: file.text for file in self.files}
        if name not in texts:
            raise SpecError(f"{name!r} is no file of it; there are {', '.join(texts)}")
        return texts[name]


@dataclass(frozen=True)
class Setting:
    """An argument, a key or a variable, its value, and where the value comes from."""

    name: str
    value: Any = None
    """None for an argument that has no value, a tuple for one that has several."""
    why: str = ""

    @property
    def words(self) -> list[str]:
        """Return the words of a command line."""
        if isinstance(self.value, tuple):
            return [self.name, *map(str, self.value)]
        return [self.name] if self.value is None else [self.name, self.text]

    @property
    def text(self) -> str:
        """Return the value as command lines, YAML and JSON write it."""
        if isinstance(self.value, bool):
            return str(self.value).lower()
        return str(self.value)


def commented(lines: Iterable[tuple[str, str]], indent: str = "  ") -> Iterator[str]:
    """Yield lines of code with their comments in one column, each ended."""
    texts = [(indent + code, printable(why)) for code, why in lines]
    width = min(max((len(code) for code, _ in texts), default=0), 60)
    for code, why in texts:
        yield f"{code:<{width}}  # {why}\n" if why else f"{code}\n"


_WHOLE_POWER = re.compile(r"(?<![\w.\"])(-?\d+)e([+-]?\d+)")


def yaml_value(value: Any) -> str:
    """Return a value on one line, as YAML 1.1 reads it: 1e-05 is a text there."""
    text = json.dumps(value)
    return text if isinstance(value, str) else _WHOLE_POWER.sub(r"\1.0e\2", text)


def bash_array(name: str, settings: Iterable[Setting]) -> str:
    """Return a bash array of quoted words, a line with its comment per setting."""
    lines = [(shlex.join(setting.words), setting.why) for setting in settings]
    return f"{name}=(\n{''.join(commented(lines))})\n"


def bash_exports(settings: Iterable[Setting]) -> str:
    """Return the exported variables of a bash script, a line per setting."""
    lines = [
        (f"export {setting.name}={shlex.quote(setting.text)}", setting.why)
        for setting in settings
    ]
    return "".join(commented(lines, indent=""))
