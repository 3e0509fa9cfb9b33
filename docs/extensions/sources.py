"""Turns links to files of the repository into links that work on the site.

Pages link to files outside of docs/ as they would on the forge: `../specs/x.yaml`. On
the site the file is copied beside the pages where it is text; folders are named only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).parents[2]


class RepositoryLinks(SphinxTransform):
    """Replaces links that leave docs/ by downloads of the file, or by its name."""

    default_priority = 5

    def apply(self, **kwargs: Any) -> None:
        """Look at every link of one page.

        Raises:
            ValueError: a link leads nowhere.
        """
        for found in list(self.document.findall(_is_link)):
            target = found.get("reftarget", "")
            if target.startswith("../"):
                found.replace_self(self._replacement(found, target))

    def _replacement(self, found: nodes.Element, target: str) -> nodes.Node:
        path = (ROOT / "docs" / target).resolve()
        if not path.is_relative_to(ROOT) or not path.exists():
            raise ValueError(f"{self.env.docname}: no such file: {target}")
        name = path.relative_to(ROOT).as_posix()
        if path.is_dir():
            return nodes.literal("", found.astext() or f"{name}/")
        children = found.deepcopy().children
        return download_reference("", "", *children, reftarget=f"/{target}")


def _is_link(node: nodes.Node) -> bool:
    return isinstance(node, pending_xref | download_reference)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform."""
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
