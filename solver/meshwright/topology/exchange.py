"""All-to-alls: what leaves the GPUs, switches and nodes of a group in one.

Plain ones send every member an equal part. Dispatchers of experts (DeepEP, HybridEP)
send a token once to each node that has one of its experts, and on from there, so that
fewer copies cross the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Exchange(Protocol):
    """An all-to-all, in shares of all that a member sends to others."""

    def leaving(self, below: Floats, on_node: Ints, size: Ints) -> Floats:
        """Return the share of what members send that leaves a child, (..., levels).

        Args:
            below: How many members lie below each child, (..., levels).
            on_node: How many members lie on each node, (...).
            size: The members of the group, (...).
        """


@dataclass(frozen=True)
class EvenExchange:
    """Each member sends every other an equal part, straight to it."""

    def leaving(self, below: Floats, on_node: Ints, size: Ints) -> Floats:
        """Return the share for members that are not below the same child."""
        del on_node
        others = size[..., None]
        return np.asarray((others - below) / np.maximum(others - 1, 1))


@dataclass(frozen=True)
class TokenExchange:
    """A token crosses the network once for each node that has experts of it.

    The GPU that gets it there passes it on to each GPU of the node that has one or more
    (DeepSeek-AI 2024, DeepSeek-V3, section 3.2.2; DeepEP, internode.cu). Tokens choose
    their experts evenly.
    """

    experts: int
    top_k: int
    groups: int = 1
    """Groups of experts that are neighbours."""
    groups_per_token: int = 1
    """Groups that the experts of a token are in, at most."""

    def leaving(self, below: Floats, on_node: Ints, size: Ints) -> Floats:
        """Return the share of `top_k` copies of each token that leaves a child."""
        nodes = size // on_node
        on_gpus = self._parts_with_experts(size) * (1 - below / on_node[..., None])
        on_nodes = self._parts_with_experts(nodes) * (
            1 - np.maximum(below, on_node[..., None]) / size[..., None]
        )
        is_inside = below < on_node[..., None]
        copies = self.top_k * (size - 1) / size
        return np.asarray(
            (np.where(is_inside, on_gpus, 0.0) + on_nodes)
            / np.maximum(copies, 1e-9)[..., None]
        )

    def _parts_with_experts(self, parts: Ints) -> Floats:
        """Return how many of equal parts have experts of a token, (..., 1)."""
        numbers, inverse = np.unique(parts, return_inverse=True)
        found = [self._expected(int(number)) for number in numbers]
        return np.array(found)[inverse].reshape((*parts.shape, 1))

    def _expected(self, parts: int) -> float:
        # Where experts are no whole number on each part, none are exchanged.
        if self.experts % parts:
            return float(self.top_k)
        return parts_with_experts(self, parts)


@cache
def parts_with_experts(routing: TokenExchange, parts: int) -> float:
    """Return the expected number of parts that have one or more experts of a token.

    Experts are neighbours on `parts` equal parts. A token first chooses its groups,
    then `top_k` experts in them. It passes a part by with the chance that all its
    experts are elsewhere in the chosen groups: hypergeometric.
    """
    own, in_group = routing.experts // parts, routing.experts // routing.groups
    chosen = in_group * routing.groups_per_token
    ways = math.comb(chosen, routing.top_k)
    result = 0.0
    for part in range(parts):
        start = part * own
        shared = [
            max(0, min(start + own, end) - max(start, end - in_group))
            for end in range(in_group, routing.experts + 1, in_group)
        ]
        missed = math.fsum(
            chance * math.comb(chosen - on_part, routing.top_k) / ways
            for on_part, chance in _experts_offered(shared, routing.groups_per_token)
        )
        result += 1 - missed
    return result


def _experts_offered(shared: list[int], choose: int) -> list[tuple[int, float]]:
    """Return how many experts of a part are in the chosen groups, with their chances.

    `shared` has the experts of the part in each group, of which `choose` are chosen.
    """
    ways: dict[tuple[int, int], int] = {(0, 0): 1}
    for experts in shared:
        grown = dict(ways)
        for (taken, offered), count in ways.items():
            if taken < choose:
                key = taken + 1, offered + experts
                grown[key] = grown.get(key, 0) + count
        ways = grown
    every = math.comb(len(shared), choose)
    return [
        (offered, count / every)
        for (taken, offered), count in ways.items()
        if taken == choose
    ]


EVEN = EvenExchange()

Exchanges = tuple[tuple[str, Exchange], ...]
"""The groups that send all to all, by name, and how."""

EXPERTS_EXCHANGE: Exchanges = (("ep", EVEN),)
"""The groups that send all to all where context parallelism is no exchange too."""
