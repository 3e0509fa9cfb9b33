"""What the page saves: one file for a click, as browsers hold back a second one."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Mapping

FIRST_DATE = (1980, 1, 1, 0, 0, 0)
"""The first date of the zip format: the same files make the same archive."""


def download(name: str, text: str) -> dict[str, str]:
    """Return a file as a message to the page."""
    return _message(name, text.encode())


def archive(name: str, files: Mapping[str, str]) -> dict[str, str]:
    """Return files as one message: a file alone as it is, several as a zip archive."""
    if len(files) == 1:
        return download(*next(iter(files.items())))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as zipped:
        for own, text in files.items():
            entry = zipfile.ZipInfo(own, FIRST_DATE)
            entry.external_attr = (0o755 if own.endswith(".sh") else 0o644) << 16
            zipped.writestr(entry, text)
    return _message(f"{name}.zip", packed.getvalue())


def _message(name: str, content: bytes) -> dict[str, str]:
    return {"kind": "file", "name": name, "base64": base64.b64encode(content).decode()}
