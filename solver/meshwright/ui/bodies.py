"""Bodies of requests: JSON objects up to a limit, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import Request

MOST_BYTES = 1_000_000
"""Most bytes of a request."""

MOST_LEVELS = 128
"""Most levels of nesting in a request: far from where Python's recursion ends."""


async def json_object(request: Request) -> dict[str, Any]:
    """Return the JSON object that a request has.

    Raises:
        HTTPException: it has something else, or too much.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "Content-Type: expected application/json")
    try:
        found = json.loads(await _bytes(request), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise HTTPException(400, "expected JSON") from None
    if not isinstance(found, dict):
        raise HTTPException(400, "expected a JSON object")
    for depth, _ in enumerate(levels(found), start=1):
        if depth > MOST_LEVELS:
            told = f"expected JSON with at most {MOST_LEVELS} levels of nesting"
            raise HTTPException(400, told)
    return found


def levels(value: Any) -> Iterator[list[Any]]:
    """Yield a value alone, then the values inside it, level by level."""
    level = [value]
    while level:
        yield level
        level = [inner for own in level for inner in _inner(own)]


def _inner(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


async def _bytes(request: Request) -> bytes:
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_BYTES:
            raise HTTPException(413, f"expected at most {MOST_BYTES:,} bytes")
    return content


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities, which are no JSON."""
    raise ValueError(name)
