"""The `public` directive: every name of `import meshwright`, from its docstring.

Functions come with their arguments, results with their methods and a table of fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.util.docutils import SphinxDirective

from extensions.fields import table_of

METHODS = ("to_dict", "to_json", "from_json")
"""What results can do, where they do it."""


def reference() -> str:
    """Return the reference of the public names as markdown."""
    import meshwright

    names = [name for name in meshwright.__all__ if not name.startswith("_")]
    found = {name: getattr(meshwright, name) for name in names}
    functions = {n: own for n, own in found.items() if inspect.isfunction(own)}
    classes = {n: own for n, own in found.items() if inspect.isclass(own)}
    lines = ["## Functions", ""]
    for name in functions:
        lines += [f"### {name}", "", *_directive("autofunction", name), ""]
    lines += ["## Types", ""]
    for name, own in classes.items():
        lines += [f"### {name}", "", *_of_class(name, own), ""]
    return "\n".join(lines)


def _directive(kind: str, name: str) -> Iterator[str]:
    yield "```{eval-rst}"
    yield f".. {kind}:: meshwright.{name}"
    yield "```"


def _of_class(name: str, own: Any) -> Iterator[str]:
    yield "```{eval-rst}"
    yield f".. py:class:: meshwright.{name}"
    yield ""
    text = str(GoogleDocstring(inspect.getdoc(own) or ""))
    yield from (f"   {line}" for line in text.splitlines())
    yield "```"
    for method in METHODS:
        if hasattr(own, method):
            yield from _directive("automethod", f"{name}.{method}")
    if issubclass(own, BaseModel):
        yield ""
        yield table_of(own.model_json_schema(mode="serialization"))


class Public(SphinxDirective):
    """Puts the reference of the public names in its place."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the generated text."""
        return self.parse_text_to_nodes(reference(), allow_section_headings=True)


def _as_written(_app: Sphinx, *told: Any) -> None:
    """Keep stars of a docstring as they are: they are of patterns, not of emphasis."""
    lines: list[str] = told[-1]
    lines[:] = [
        line if line.lstrip().startswith((">>>", "...")) else line.replace("*", r"\*")
        for line in lines
    ]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive; docstrings are read before napoleon sees them."""
    app.add_directive("public", Public)
    app.connect("autodoc-process-docstring", _as_written, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
