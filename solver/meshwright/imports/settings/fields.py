"""Settings from nested fields: YAML, TOML and Hjson, with dotted names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.imports.settings.setting import Setting, canonical
from meshwright.reading.document import Document, FieldPath, dotted


def fields(document: Document, path: FieldPath = ()) -> Iterator[Setting]:
    """Yield the fields of a document that are no mappings, with dotted names."""
    value: Any = document.value(path)
    if isinstance(value, dict) and value:
        for key in value:
            yield from fields(document, (*path, key))
        return
    name = dotted(path)
    yield Setting(canonical(name), value, document.where(path), name)
