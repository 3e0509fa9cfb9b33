"""`ray.cluster_resources()`: how many GPUs and nodes of which kind a Ray cluster has.

It is a Python dictionary or JSON: `{'GPU': 16.0, 'accelerator_type:H100': 2.0, ...}`,
also as `ray status` lists it: `0.0/16.0 GPU`.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.imports.registry import FactsImporter
from meshwright.imports.text import check_length, fail, shown

ACCELERATOR, NODE = "accelerator_type:", "node:"

UNTYPED = "gpu"
"""Stands for GPUs whose kind no resource names."""

MOST_LITERAL = 1_000_000
MOST = 1_000_000

_STATUS = re.compile(
    r"(?m)^\s{0,20}([\d.]{1,20})/([\d.]{1,20})\s{1,9}(GPU|accelerator_type:\S{1,80})"
)
_ACTIVE = re.compile(r"(?m)^\s{0,9}(\d{1,7})\s{1,9}node_\w{1,80}")


@dataclass(frozen=True)
class RayCluster:
    """The sums over all nodes."""

    name: str
    gpus: int
    nodes: int | None
    """Nodes of all kinds; None where the file does not say."""
    types: tuple[str, ...] = ()
    """The kinds of accelerator of its nodes."""
    nodes_by_type: Mapping[str, int] = field(default_factory=dict)

    @property
    def gpus_by_type(self) -> dict[str, int]:
        """Return the GPUs by type: all of one type, or of none that is known."""
        return {self.types[0] if len(self.types) == 1 else UNTYPED: self.gpus}


def parse(text: str, name: str) -> RayCluster:
    """Return the resources of a cluster.

    Raises:
        SpecError: no dictionary of resources, or a number that is none.
    """
    check_length(text, name)
    resources = _status(text) or _literal(text, name)
    gpus = _count(resources.get("GPU", 0), "GPU", name)
    by_type = {
        key.removeprefix(ACCELERATOR): _count(value, key, name)
        for key, value in resources.items()
        if key.startswith(ACCELERATOR)
    }
    nodes = [key for key in resources if key.startswith(NODE) and "__" not in key]
    if not gpus:
        fail(name, 0, "no GPU; expected ray.cluster_resources(), as in {'GPU': 16.0}")
    active = sum(int(match[1]) for match in _ACTIVE.finditer(text[:200_000]))
    return RayCluster(name, gpus, len(nodes) or active or None, (*by_type,), by_type)


def _status(text: str) -> dict[str, Any]:
    """Return the totals that `ray status` lists."""
    found = _STATUS.finditer(text[:200_000])
    return {match[3]: match[2] for match in found}


def _literal(text: str, name: str) -> dict[str, Any]:
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start or end - start > MOST_LITERAL:
        fail(name, 0, "no dictionary; expected ray.cluster_resources()")
    try:
        data = ast.literal_eval(text[start : end + 1])
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        fail(name, 0, "not a dictionary; expected ray.cluster_resources()")
    if not isinstance(data, dict):
        fail(name, 0, "not a dictionary; expected ray.cluster_resources()")
    return {str(key): value for key, value in data.items()}


def _count(value: Any, key: str, name: str) -> int:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= MOST:
        told = f"{shown(key)}: {shown(str(value))}: expected a number up to {MOST:,}"
        fail(name, 0, told)
    return round(number)


IMPORTERS = {
    "ray": FactsImporter(
        sign=r"['\"](?:accelerator_type:|object_store_memory['\"]\s{0,9}:)"
        r"|/[\d.]{1,20} GPU\b",
        parse=parse,
    ),
}
