"""Reads XML safely: no entities, no other files, limits on size, lines in errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from meshwright.imports.text import check_length, fail, shown

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
    children: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """The pieces of text between its children."""

    @property
    def text(self) -> str:
        """Return the text in the element, without that of its children."""
        return "".join(self.texts)

    def get(self, key: str, default: str = "") -> str:
        """Return an attribute, without blanks around it."""
        return self.attributes.get(key, default).strip()

    def walk(self) -> Iterator[Element]:
        """Yield this element and all below it, in the order of the file."""
        waiting = [self]
        while waiting:
            element = waiting.pop()
            yield element
            waiting += reversed(element.children)

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
    check_length(text, name)
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
        element = Element(tag, attributes, self.line)
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
