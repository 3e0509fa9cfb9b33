"""The memory that rules of the user leave to a GPU: `max(memory_gib) <= 60`."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from meshwright.reading.expression import Call, Compared, Constant, Field, Joined, Node
from meshwright.spec.spec import Spec

ROUNDING = 1e-5
"""Share of a cap, and GiB, by which it is raised: memory is rounded up before it."""


def memory_cap_gib(spec: Spec) -> float:
    """Return the most memory that every plan may use by rules alone; else infinity.

    Rules that say so beside other things (`or zero >= 1`) leave it open.
    """
    caps = [cap for rule in spec.rules for cap in _caps(rule.tree)]
    return min(caps, default=inf) * (1 + ROUNDING) + ROUNDING


def _caps(node: Node) -> Iterator[float]:
    if isinstance(node, Joined) and node.is_all:
        for operand in node.operands:
            yield from _caps(operand)
    if not (isinstance(node, Compared) and len(node.operands) == 2):
        return
    left, right = node.operands
    if node.operations[0] in (">", ">="):
        left, right = right, left
    elif node.operations[0] not in ("<", "<="):
        return
    if _is_fullest(left) and isinstance(right, Constant):
        yield float(right.value)


def _is_fullest(node: Node) -> bool:
    match node:
        case Call(function="max", arguments=(Field(name="memory_gib", index=None),)):
            return True
    return False
