"""HTML pages that contain their scripts and data, and load and run nothing else.

The data is in a separate element, as JSON in which no markup can begin; the scripts
read it from there. A policy in the head lists the hashes of the scripts that may run.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from string import Template

from meshwright.escape import in_html, in_script

STRICT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; script-src"
)
"""Only the scripts of the page run."""

POLICY = f"{STRICT_POLICY} 'unsafe-eval'"
"""The drawing libraries compile code at run time, hence unsafe-eval."""


def filled_page(
    template: str,
    title: str,
    json: str,
    scripts: Sequence[str],
    style: str = "",
    policy: str = POLICY,
) -> str:
    """Return a page: the template filled with title, data, style and scripts.

    Args:
        template: HTML with $policy, $title, $data and $scripts, and $style if it has
            one.
        title: any text; it is escaped.
        json: the data as JSON; it is escaped.
        scripts: the libraries and the script of the page, in the order of execution.
        style: CSS.
        policy: what the page may load and run, beside these scripts.
    """
    stripped = [script.strip() for script in scripts]
    return Template(template).substitute(
        policy=" ".join([policy, *map(_fingerprint, stripped)]),
        title=in_html(title),
        style=style,
        data=in_script(json),
        scripts="\n".join(f"<script>{script}</script>" for script in stripped),
    )


def _fingerprint(script: str) -> str:
    """Return the hash by which a policy allows this script."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
