"""Lets fences say `output`: text that the command above them prints."""

from __future__ import annotations

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    """Highlight such fences as plain text."""
    app.add_lexer("output", TextLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
