"""What options are called where a question is asked: typed `--plan`, or sent as `plan`.

Sentences that name an option have its name from here, so that whoever reads them can do
what they say: an agent sends arguments, and types no command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

TYPED = {"file": "{}", "spec": "{}", "output": "-o {}"}
"""How values are typed that have another form than `--name VALUE`."""

SENT = {"set": "{} in the spec", "save": "as spec", "output": ""}
"""How values are sent that are no arguments of their own."""

TOOLS = {"import": "import_launch"}
"""The tools that have another name than their command."""

_IS_TYPED = ContextVar("is_typed", default=True)
_WORDS: ContextVar[Mapping[str, str] | None] = ContextVar("words", default=None)


@contextmanager
def sent() -> Iterator[None]:
    """Name options as arguments of calls, in Python or by an agent, in this block."""
    known = _IS_TYPED.set(False)
    try:
        yield
    finally:
        _IS_TYPED.reset(known)


@contextmanager
def worded(**words: str) -> Iterator[None]:
    """Name some options by other words inside this block: by what said their values."""
    known = _WORDS.set(words)
    try:
        yield
    finally:
        _WORDS.reset(known)


def option(name: str, *values: str) -> str:
    """Return an option, with values if there are any: `--plan tp=8`, or `plan=tp=8`."""
    if words := (_WORDS.get() or {}).get(name):
        return " ".join([words, *values])
    if _IS_TYPED.get():
        plain = f"--{name.replace('_', '-')}"
        form, between = TYPED.get(name, plain + " {}"), " "
    else:
        plain, between = SENT.get(name, name), ", "
        form = SENT.get(name, name + "={}")
    return between.join(form.format(value) for value in values) if values else plain


def command(verb: str, *options: str) -> str:
    """Return a command with its options, or the tool that does the same."""
    name = f"meshwright {verb}" if _IS_TYPED.get() else TOOLS.get(verb, verb)
    return " ".join(filter(None, [name, *options]))


def asked_place() -> str:
    """Return the place of what is asked in no file, for messages."""
    return "command line" if _IS_TYPED.get() else "arguments"
