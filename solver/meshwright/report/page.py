"""Pages that hold their scripts and their data, and run and load nothing else.

Data stands in an element of its own, as JSON in which no markup can begin, and scripts
read it from there. A policy in the head lists the hashes of the scripts that may run.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from string import Template

from meshwright.escape import in_html, in_script

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; script-src 'unsafe-eval'"
)
"""The libraries that draw compile their own drawing code, hence the eval."""


def filled_page(
    template: str, title: str, json: str, scripts: Sequence[str], style: str = ""
) -> str:
    """Return a page: its template with title, data, style and scripts.

    Args:
        template: HTML with $policy, $title, $data and $scripts, and $style if it has
            one.
        title: any text.
        json: the data.
        scripts: of the page and its libraries, in the order in which they run.
        style: CSS.
    """
    own = [script.strip() for script in scripts]
    return Template(template).substitute(
        policy=" ".join([POLICY, *map(_fingerprint, own)]),
        title=in_html(title),
        style=style,
        data=in_script(json),
        scripts="\n".join(f"<script>{script}</script>" for script in own),
    )


def _fingerprint(script: str) -> str:
    """Return what lets this very script run."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
