"""Bodies of requests: JSON objects up to a limit, and nothing else."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import Request

MOST_BYTES = 1_000_000
"""Most bytes of a request."""


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
    return found


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
