"""How the site is built: `python -m sphinx -W docs build/docs`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "solver"), str(ROOT / "docs")]

project = "Meshwright"
version = release = import_module("meshwright").__version__
author = "The authors of Meshwright"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "extensions.commands",
    "extensions.fields",
    "extensions.frameworks",
    "extensions.mathml",
    "extensions.output",
    "extensions.public",
    "extensions.sources",
]
exclude_patterns = ["extensions"]

default_role = "literal"

html_theme = "furo"
html_title = f"Meshwright {release}"
html_theme_options = {
    "footer_icons": [],
    "navigation_with_keys": True,
}
html_copy_source = False
html_show_copyright = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

autodoc_typehints = "description"
