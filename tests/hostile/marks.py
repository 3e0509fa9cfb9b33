"""Hostile text, and the fields of a schema that take text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

SHOWN = {
    "script": "</script><script>alert(1)</script>",
    "handler": '"><img src=x onerror=alert(1)>|a\\|b`c`',
    "formula": '=HYPERLINK("http://x","y")<!--${x} %{x} $data',
    "plus": "+1 A&B <lab> &lt; :warning: [bold]x[/bold]",
    "sum": "@SUM(1)[a](javascript:alert(1))![b](http://x)",
    "minus": "-1+1 [link=http://x]y[/link] *a* _b_ ~~c~~",
}
"""Text in which each character can be seen: every name may be such."""

HIDDEN = {
    "colour": "\x1b[31mred",
    "link": "\x1b]8;;http://x\x07y\x1b]8;;\x07",
    "c1": "\x9b31m",
    "bidi": "\u202egnp-x",
    "isolate": "\u2066a\u2069",
    "line": "a\n| b | c |\n<b>d</b>",
    "return": "\rhidden",
    "tab": "\t=1",
    "separator": "\u2028\u2029",
    "blank": "\u200b\ufeff",
}
"""Text that holds what a terminal obeys or nobody sees: names of specs may not."""

MARKS = SHOWN | HIDDEN

TOKEN = re.compile(r"X[a-z]+\d*X")
"""How text is told that harmless documents have where they take text."""

FieldPath = tuple[str, ...]

Node = dict[str, Any]


def substituted(data: Any, mark: str) -> Any:
    """Return data with a mark before each token, keys of mappings included."""
    if isinstance(data, str):
        return TOKEN.sub(lambda found: mark + found[0], data)
    if isinstance(data, dict):
        return {substituted(k, mark): substituted(v, mark) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [substituted(one, mark) for one in data]
    return data


def tokens(text: str) -> set[str]:
    return set(TOKEN.findall(text))


def text_fields(schema: type[BaseModel]) -> set[FieldPath]:
    """Return the fields of a schema that take any text; `*` is an item or a key."""
    root = schema.model_json_schema()
    return set(_texts(root, root.get("$defs", {}), ()))


def _texts(
    node: dict[str, Any], known: dict[str, Any], path: FieldPath
) -> Iterator[FieldPath]:
    if "$ref" in node:
        node = known[node["$ref"].rpartition("/")[2]]
    if node.get("type") == "string" and not {"enum", "const", "pattern"} & node.keys():
        yield path
    for choice in (*node.get("anyOf", ()), *node.get("allOf", ())):
        yield from _texts(choice, known, path)
    for name, one in node.get("properties", {}).items():
        yield from _texts(one, known, (*path, name))
    items = (node.get("items"), node.get("additionalProperties"))
    for one in (*items, *node.get("prefixItems", ())):
        if isinstance(one, dict):
            yield from _texts(one, known, (*path, "*"))


def token_fields(data: Any, path: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield where a document has tokens."""
    if isinstance(data, str) and TOKEN.fullmatch(data):
        yield path
    elif isinstance(data, dict):
        for name, one in data.items():
            step = "*" if TOKEN.fullmatch(name) else name
            yield from token_fields(one, (*path, step))
            if step == "*":
                yield (*path, step)
    elif isinstance(data, list):
        for one in data:
            yield from token_fields(one, (*path, "*"))
