"""How much a run of the tests looks at: the gate's share, or everything."""

from __future__ import annotations

import os
from typing import TypeVar

ALL = "MESHWRIGHT_TESTS"
"""The environment's variable that `python -m tests --all` sets to `all`."""

IS_ALL = os.environ.get(ALL) == "all"

Extent = TypeVar("Extent")


def gate(share: Extent, *, everything: Extent) -> Extent:
    """Return what the gate looks at, or under `--all` everything."""
    return everything if IS_ALL else share
