"""Answers given lately, so that going back is free; their bytes are bounded."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import Any

MOST_BYTES = 64 * 2**20
"""Bytes of all answers that are kept."""


class KeptAnswers:
    """Lines of answers by the question, the ones used longest ago given up first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """Keep nothing yet."""
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lines: OrderedDict[str, tuple[bytes, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, fields: dict[str, Any]) -> tuple[bytes, ...]:
        """Return the lines of an answer, none where it is not kept."""
        key = _key(fields)
        with self._lock:
            if key in self._lines:
                self._lines.move_to_end(key)
            return self._lines.get(key, ())

    def keep(self, fields: dict[str, Any], lines: tuple[bytes, ...]) -> None:
        """Keep an answer."""
        key = _key(fields)
        with self._lock:
            self._bytes += _size(key, lines) - _size(key, self._lines.pop(key, None))
            self._lines[key] = lines
            while self._bytes > self._most_bytes:
                self._bytes -= _size(*self._lines.popitem(last=False))


def _key(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True)


def _size(key: str, lines: tuple[bytes, ...] | None) -> int:
    return 0 if lines is None else len(key) + sum(map(len, lines))
