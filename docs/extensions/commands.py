"""The `commands` directive: every command with its arguments and options.

The text is that of `meshwright COMMAND --help`, read off the commands' signatures.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Container, Iterator
from enum import Enum
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

HEADING = ("| argument or option | meaning |", "| --- | --- |")

SHARED = 4
"""Commands from which on an option that means the same in all is told once."""


class Parameter(NamedTuple):
    """One argument or option of a command."""

    name: str
    type: Any
    info: Any
    """What typer was told about it: an ArgumentInfo or an OptionInfo."""
    default: Any

    @property
    def is_argument(self) -> bool:
        """Return whether it is told by its place and not by its name."""
        return type(self.info).__name__ == "ArgumentInfo"

    @property
    def spelled(self) -> str:
        """Return how it is written, as markdown."""
        if self.is_argument:
            return f"`{self.place}`"
        decls = self._spellings or (f"--{self.name.replace('_', '-')}",)
        if self.type is bool:
            return ", ".join(f"`{own}`" for decl in decls for own in decl.split("/"))
        return ", ".join(f"`{own} {self._value}`" for own in decls)

    @property
    def _spellings(self) -> tuple[str, ...]:
        """Return the names that were given; typer keeps the first as a default."""
        first = self.info.default
        given = (first,) if isinstance(first, str) else ()
        return (*given, *(self.info.param_decls or ()))

    @property
    def place(self) -> str:
        """Return an argument as a usage line shows it."""
        name: str | None = self.info.metavar
        if name is None:
            name = self.name.upper() + ("..." if _is_list(self.type) else "")
        is_needed = self.default is inspect.Parameter.empty
        return name if is_needed else f"[{name.strip('[]')}]"

    @property
    def meaning(self) -> str:
        """Return the help, with its default."""
        text = (self.info.help or "").strip().replace("|", "\\|")
        default = self.default.value if isinstance(self.default, Enum) else self.default
        is_told = isinstance(default, str | int | float) and self.type is not bool
        text += f" Default: `{default}`." if is_told else ""
        is_told = not _is_list(self.type) or "repeatable" in text
        return text if is_told else f"{text} Repeatable."

    @property
    def row(self) -> str:
        """Return its line of a table, as markdown."""
        return f"| {self.spelled} | {self.meaning} |"

    @property
    def _value(self) -> str:
        own = _bare(self.type)
        if isinstance(own, type) and issubclass(own, Enum):
            return "\\|".join(str(member.value) for member in own)
        if get_origin(own) is Literal:
            return "\\|".join(get_args(own))
        words = {int: "N", float: "NUMBER", str: "TEXT"}
        return str(self.info.metavar or words.get(own, "PATH"))


def reference() -> str:
    """Return the reference of the command line as markdown."""
    from meshwright.cli import app

    found = {
        own.name or own.callback.__name__: own.callback
        for own in app.registered_commands
        if own.callback is not None
    }
    options = [own for call in found.values() for own in parameters(call)]
    rows = Counter(own.row for own in options if not own.is_argument)
    shared = [row for row, uses in rows.items() if uses >= SHARED]
    lines = ["## Options of several commands", "", *HEADING, *shared, ""]
    for name, callback in found.items():
        lines += _command(name, callback, shared)
    return "\n".join(lines)


def parameters(function: Callable[..., Any]) -> list[Parameter]:
    """Return the parameters of a command."""
    hints = get_type_hints(function, include_extras=True)
    found = []
    for name, own in inspect.signature(function).parameters.items():
        plain, info, *_ = get_args(hints[name])
        found.append(Parameter(name, _bare(plain, keep_list=True), info, own.default))
    return found


def _command(
    name: str, function: Callable[..., Any], shared: Container[str]
) -> Iterator[str]:
    told = parameters(function)
    places = [own.place for own in told if own.is_argument]
    yield f"## meshwright {name}"
    yield ""
    yield inspect.getdoc(function) or ""
    yield ""
    yield f"Usage: `{' '.join(['meshwright', name, *places, '[OPTIONS]'])}`"
    yield ""
    yield from HEADING
    yield from (own.row for own in told if own.row not in shared)
    yield ""
    also = [own.spelled.split("`")[-2] for own in told if own.row in shared]
    names = (f"`{spelled.split()[0]}`" for spelled in also)
    yield f"And, as above: {', '.join(names)}." if also else ""
    yield ""


def _is_list(of: Any) -> bool:
    return get_origin(of) is list


def _bare(of: Any, keep_list: bool = False) -> Any:
    """Return a type without None, and a list's items."""
    if get_origin(of) in (Union, UnionType):
        (of,) = (own for own in get_args(of) if own is not type(None))
    if _is_list(of) and not keep_list:
        return get_args(of)[0]
    return of


class Commands(SphinxDirective):
    """Puts the reference of the command line in its place."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the generated text."""
        return self.parse_text_to_nodes(reference(), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
