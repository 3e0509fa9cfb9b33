"""The skeleton of every page: answers, searches, charts, and that of the browser.

A page that is one file holds its scripts and data, and loads and runs nothing else. The
data is in a separate element, as JSON in which no markup can begin; the scripts read it
from there. A policy in the head lists the hashes of the scripts that may run. A served
page names its files instead. All share `page.css`, `dom.js` and `colours.js`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from string import Template

from meshwright.escape import in_html, in_script

FILES = Path(__file__).with_name("files")

SHARED = ("dom", "colours")
"""Scripts that run first on every page."""

STRICT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; script-src"
)
"""Only the scripts of the page run."""

POLICY = f"{STRICT_POLICY} 'unsafe-eval'"
"""The drawing libraries compile code at run time, hence unsafe-eval."""


def file_text(name: str, folder: Path = FILES) -> str:
    """Return the text of a file that pages are made of."""
    return (folder / name).read_text(encoding="utf-8")


def filled_page(
    body: str,
    title: str,
    json: str,
    scripts: Sequence[str],
    style: str = "",
    policy: str = STRICT_POLICY,
) -> str:
    """Return a page that is one file.

    Args:
        body: HTML of what the scripts fill; $title in it is the title.
        title: any text; it is escaped.
        json: the data as JSON; it is escaped.
        scripts: the libraries and the scripts of the page after the shared ones, in the
            order of execution.
        style: CSS beside that of all pages.
        policy: what the page may load and run, beside these scripts.
    """
    shared = [file_text(f"{name}.js") for name in SHARED]
    stripped = [script.strip() for script in (*shared, *scripts)]
    allowed = " ".join([policy, *map(_fingerprint, stripped)])
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}">\n'
        f"<style>\n{file_text('page.css')}{style}</style>"
    )
    tags = [f"<script>{script}</script>" for script in stripped]
    return _page(head, title, body, json, tags)


def served_page(
    body: str, title: str, json: str, scripts: Sequence[str], styles: Sequence[str]
) -> str:
    """Return a page whose scripts and styles a server has under these names."""
    links = [f'<link rel="stylesheet" href="{name}">' for name in styles]
    head = "\n".join(['<link rel="icon" href="data:,">', *links])
    tags = [f'<script src="{name}"></script>' for name in scripts]
    return _page(head, title, body, json, tags)


def _page(head: str, title: str, body: str, json: str, tags: Sequence[str]) -> str:
    escaped = in_html(title)
    return Template(file_text("skeleton.html")).substitute(
        head=head,
        title=escaped,
        body=Template(body).safe_substitute(title=escaped).strip(),
        data=in_script(json),
        scripts="\n".join(tags),
    )


def _fingerprint(script: str) -> str:
    """Return the hash by which a policy allows this script."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
