"""Tasks of a pool of the page that end when they are told to, or not even then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from meshwright.deadline import Interrupt


def answer(
    task: Mapping[str, Any], send: Callable[[Any], None], interrupt: Interrupt
) -> None:
    """Say that a task began, go on as long as it asks, and say that it ended."""
    send({"kind": "began", "task": task["name"]})
    while task["goes_on"] == "for ever" or (
        task["goes_on"] == "until stopped" and not interrupt.is_asked
    ):
        time.sleep(0.01)
    send({"kind": "ended", "task": task["name"]})
