"""Sources of specs: a file, a bundled name, YAML text, or plain data."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from meshwright.loading.named_files import USER_FILES, Files
from meshwright.reading.document import Document, Where
from meshwright.reading.yaml_text import parse_yaml, read_yaml

Source = str | os.PathLike[str] | Mapping[str, Any] | Document
"""A path or a bundled name, YAML text, the fields themselves, or what was read."""


def open_source(source: Source, kind: str, files: Files = USER_FILES) -> Document:
    """Return the data of a source, and where each value of it was written.

    Text is YAML where it has several lines or opens a mapping with a brace; other text
    names a file, or a bundled one of the `kind`. Relative paths in text and in fields
    start in the working directory.

    Raises:
        SpecError: there is no such file, or it is not YAML.
    """
    if isinstance(source, Document):
        return source
    if isinstance(source, Mapping):
        return Document(copy.deepcopy(dict(source)), {(): Where("fields")})
    if isinstance(source, str) and not is_name(source, files):
        return parse_yaml(source, "text")
    return read_yaml(files.named(kind, os.fspath(source), Path()))


def is_name(
    source: Source, files: Files = USER_FILES
) -> TypeGuard[str | os.PathLike[str]]:
    """Return whether a source is a path or a bundled name, not YAML or fields."""
    if not isinstance(source, str):
        return isinstance(source, os.PathLike)
    is_text = "\n" in source.strip() or source.lstrip().startswith("{")
    return not is_text or files.file(source, Path()) is not None
