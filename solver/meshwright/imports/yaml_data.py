"""Facts of a file as data that YAML can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def plain(value: Any) -> Any:
    """Return dataclasses and mappings as dicts, all that can be gone through as lists.

    A key of two names becomes one, 'GPU0 - GPU1'.
    """
    if is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name)) for field in fields(value)
        }
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return [plain(item) for item in sorted(value)]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _key(key: Any) -> Any:
    if isinstance(key, tuple | frozenset):
        return " - ".join(map(str, sorted(key) if isinstance(key, frozenset) else key))
    return key
