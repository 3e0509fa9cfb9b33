"""Text of other tools: in any encoding, as numbered lines without colours; XML."""

from __future__ import annotations

import codecs
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from xml.parsers import expat

from meshwright.errors import SpecError
from meshwright.reading.document import Where
from meshwright.reading.yaml_and_csv import read_bytes

MAX_CHARS = 8_000_000
"""Most characters of a text; a fabric of 10,000 ports takes about 2 million."""

_COLOUR = re.compile(
    r"(?:\x1b|\^\[|\\x1b|\\033|\\e|\\u001b)?\[[0-9;]{1,8}m|\x1b\[[0-9;?]{0,8}[A-Za-z]"
)
"""Select Graphic Rendition, also where a copy lost or spelled out the escape; other
control sequences with it alone."""

CONTROLS = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127))
"""Characters that no tool prints, other than tabs and line ends."""

_LINE_END = re.compile(r"\r\n|\r|\n")


class Line(NamedTuple):
    """A line of a file, counted from one."""

    number: int
    text: str
    file: str

    def fail(self, sentence: str) -> NoReturn:
        """Raise the error that names file and line."""
        fail(self.file, self.number, sentence)


def fail(name: str, line: int, sentence: str) -> NoReturn:
    """Raise the error that names file and line; line 0 is the whole file."""
    raise SpecError(f"{Where(name, line)}: {sentence}")


def check_length(text: str, name: str, most: int = MAX_CHARS) -> None:
    """Refuse text that is longer than any tool prints."""
    if len(text) > most:
        fail(name, 0, f"expected at most {most:,} characters")


def without_colours(text: str) -> str:
    """Return a text without the codes that change a terminal's colours."""
    return _COLOUR.sub("", text)


_FENCED = re.compile(
    r"(\s{0,100})```[\w+.-]{0,40}[ \t]*(\r?\n.*?)\n[ \t]*```\s*", re.DOTALL
)


def unfenced(text: str) -> str:
    """Return a text without the marks of a block of code around all of it.

    Language models send YAML so. Lines keep their numbers.
    """
    found = _FENCED.fullmatch(text)
    return text if found is None else f"{found[1]}{found[2]}\n"


def read_lines(text: str, name: str) -> list[Line]:
    """Return the lines of a text without colours, control characters and odd blanks."""
    plain = without_colours(text.lstrip("\ufeff").replace("\xa0", " "))
    lines = _LINE_END.split(plain.translate(CONTROLS))
    return [Line(number, line, name) for number, line in enumerate(lines, 1)]


def whole(text: str, most: int = 10**15) -> int | None:
    """Return a whole number that is written in plain digits; None for others."""
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        return None
    return int(text) if int(text) <= most else None


def number_in(value: object) -> float:
    """Return the number that a value is, or the text of one; NaN for others."""
    try:
        return float(value if isinstance(value, int | float) else str(value)[:40])
    except (ValueError, OverflowError):
        return math.nan


def data_in(text: str) -> Any:
    """Return the data of a text in JSON; None where it is none."""
    try:
        return json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError):
        return None


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a value that is a mapping; an empty one for others."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """Return a value that is a list; an empty one for others."""
    return value if isinstance(value, list) else []


def mappings(value: Any) -> list[dict[str, Any]]:
    """Return the mappings of a list; none of a value that is no list."""
    return [one for one in listed(value) if isinstance(one, dict)]


def shown(value: str) -> str:
    """Return a text as messages quote it: shortened and printable."""
    return repr(value if len(value) <= 60 else value[:57] + "...")


def known(names: Iterable[str]) -> str:
    """Return the end of a message, which lists the accepted values."""
    return "accepted: " + ", ".join(names)


MAX_BYTES = 50_000_000
"""Most bytes of a file; the limits of most kinds are lower."""

_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""The first bytes of a file that `>` of PowerShell writes."""

SEEN = 2_000
"""Bytes from the start of a file by which its encoding is told."""

_MARKS = ("\ufffd", "\0")
"""Characters that no text has: for an undecodable byte, and the zero byte."""

EXPECTED = "what a tool has printed"

MOST_MARKS = 0.1
"""Largest share of marks in a text: a log of a terminal has a few, binaries many."""


STDIN = Path("-")
"""Stands for the standard input, which is read once."""


def read_text(path: Path) -> str:
    """Return the text of a file, with a mark for each byte that is no text.

    Raises:
        SpecError: there is no such file, it cannot be read, it is too long, or it is
            hardly text.
    """
    content = _stdin() if path == STDIN else read_bytes(path, MAX_BYTES, EXPECTED)
    if content.startswith(_PICKLED):
        told = "a pickle, which is never read: it can run code; write it as JSON"
        raise SpecError(f"{Where(str(path))}: {told}")
    text = content.decode(_encoding(content), errors="replace")
    if sum(map(text.count, _MARKS)) > MOST_MARKS * len(text):
        raise SpecError(f"{Where(str(path))}: not text; expected {EXPECTED}")
    return text


_PICKLED = tuple(bytes([0x80, version]) for version in range(2, 6))
"""How pickles begin, by the version of their format."""


@cache
def _stdin() -> bytes:
    content = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise SpecError(f"-: expected at most {MAX_BYTES:,} bytes; {EXPECTED}")
    return content


def _encoding(content: bytes) -> str:
    """Return the encoding of a file: UTF-16 also without its first two bytes."""
    if content.startswith(_WIDE):
        return "utf-16"
    start = content[:SEEN]
    zeros = [start[at::2].count(0) for at in (0, 1)]
    if max(zeros) > 0.4 * len(start) and not min(zeros):
        return "utf-16-be" if zeros[0] else "utf-16-le"
    return "utf-8-sig"


MAX_ELEMENTS = 200_000
MAX_DEPTH = 200

HARMLESS_DOCTYPES = frozenset(
    {("topology", "hwloc.dtd"), ("topology", "hwloc2.dtd")}
) | {("nvidia_smi_log", f"nvsmi_device_v{version}.dtd") for version in range(1, 30)}
"""Root element and system name of the document types that hwloc and nvidia-smi declare;
none is read."""


@dataclass
class Element:
    """One element and where it starts."""

    tag: str
    attributes: dict[str, str]
    line: int
    file: str
    number: int
    """Its place among all elements of the file."""
    children: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """The pieces of text between its children."""

    def fail(self, sentence: str) -> NoReturn:
        """Raise the error that names file and line."""
        fail(self.file, self.line, sentence)

    @property
    def text(self) -> str:
        """Return the text in the element, without that of its children."""
        return "".join(self.texts)

    def get(self, key: str, default: str = "") -> str:
        """Return an attribute, without blanks around it."""
        return self.attributes.get(key, default).strip()

    def walk(self) -> Iterator[Element]:
        """Yield this element and all below it, in the order of the file."""
        return (element for element, _ in self.placed())

    def placed(self) -> Iterator[tuple[Element, tuple[Element, ...]]]:
        """Yield the same, each with the elements around it, outermost first."""
        waiting: list[tuple[Element, tuple[Element, ...]]] = [(self, ())]
        while waiting:
            element, around = waiting.pop()
            yield element, around
            inner = (*around, element)
            waiting += [(child, inner) for child in reversed(element.children)]

    def all(self, *tags: str) -> list[Element]:
        """Return this element and those below it that have one of these tags."""
        return [element for element in self.walk() if element.tag in tags]


def parse_xml(text: str, name: str) -> Element:
    """Return the root of a document.

    Blank lines and a byte order mark before the first tag, as in copies, are skipped.

    Raises:
        SpecError: the text is not well-formed, declares entities or a document type
            (other than those of hwloc and nvidia-smi, which are not read), or passes a
            limit.
    """
    body = text.lstrip("\ufeff \t\r\n")
    skipped = text[: len(text) - len(body)].count("\n")
    builder = _Builder(name, skipped)
    try:
        builder.parser.Parse(body.encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        problem = expat.errors.messages[error.code]
        fail(name, error.lineno + skipped, f"not well-formed XML: {problem}")
    assert builder.root is not None  # expat refuses a document without a root
    return builder.root


class _Builder:
    """Builds the tree of elements while expat reads."""

    def __init__(self, name: str, skipped: int) -> None:
        self.name, self.skipped, self.count = name, skipped, 0
        self.root: Element | None = None
        self.open: list[Element] = []
        self.parser = expat.ParserCreate("utf-8")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.EntityDeclHandler = self._entity

    @property
    def line(self) -> int:
        return self.parser.CurrentLineNumber + self.skipped

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MAX_ELEMENTS or len(self.open) >= MAX_DEPTH:
            limit = f"{MAX_ELEMENTS:,} elements and {MAX_DEPTH} levels of nesting"
            fail(self.name, self.line, f"expected at most {limit}")
        element = Element(tag, attributes, self.line, self.name, self.count)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def _end(self, _tag: str) -> None:
        self.open.pop()

    def _text(self, text: str) -> None:
        self.open[-1].texts.append(text)

    def _doctype(
        self, root: str, system: str | None, _public: str | None, has_subset: int
    ) -> None:
        if has_subset or (root, system) not in HARMLESS_DOCTYPES:
            sentence = f"<!DOCTYPE {shown(root)}>: expected XML without declarations"
            fail(self.name, self.line, sentence)

    def _entity(self, entity: str, *_rest: object) -> None:
        sentence = f"<!ENTITY {shown(entity)}>: expected XML without entities"
        fail(self.name, self.line, sentence)
