"""One collective, message by message: its seconds, and the bytes of each member."""

from __future__ import annotations

from typing import NamedTuple

from tests.recomputed.case import Case
from tests.recomputed.ranks import Groups, Path, group_size


class Call(NamedTuple):
    """One collective that a rank takes part in."""

    part: str
    """Of the step, in which its time counts."""
    operation: str
    group: str
    whole_bytes: float
    members: int = 0
    """Where they are fewer than the group's: the two ends of a pipeline."""
    bucket_share: float = 1.0
    """Of what is sent at once, which pays for the way once."""


class Network(NamedTuple):
    """The groups of a case, and what they pay."""

    case: Case
    groups: dict[str, Groups]
    paths: dict[str, Path]

    def members(self, call: Call) -> int:
        return call.members or group_size(self.groups[call.group])

    def sent(self, call: Call) -> list[float]:
        """The bytes of each message that a member sends, one after the other.

        Thakur et al. 2005, section 4: a ring passes 1/n of the whole n - 1 times; an
        all-reduce is a reduce-scatter and an all-gather.
        """
        n = self.members(call)
        if call.operation == "send":
            return [call.whole_bytes]
        if call.operation == "broadcast":
            # All but the last of a chain pass the whole on.
            return [call.whole_bytes * (n - 1) / n]
        rounds = 2 if call.operation == "all_reduce" else 1
        return [call.whole_bytes / n] * (n - 1) * rounds

    def passed_bytes(self, call: Call) -> float:
        """What each member passes on; a tree's is taken to be a ring's."""
        return sum(self.sent(call))

    def seconds(self, call: Call) -> float:
        n = self.members(call)
        if n < 2 or not call.whole_bytes:
            return 0.0
        s_per_byte, latency_s, _ = self.paths[call.group]
        s_per_byte /= self.case.rates["link"]
        latency_s *= self.case.rates["latency"] * call.bucket_share
        if call.operation == "all_to_all":
            # All messages are under way at once.
            return sum(one * s_per_byte for one in self.sent(call)) + latency_s
        if call.operation == "broadcast":
            layers = self.case.model.n_layers / self.case.plan.pp
            chains = min(n / layers, 7)
            return call.whole_bytes * s_per_byte + chains * (n - 1) * 3 * latency_s
        ring_s = sum(one * s_per_byte + latency_s for one in self.sent(call))
        if call.operation != "all_reduce":
            return ring_s
        return min(ring_s, _tree_s(call.whole_bytes, n, s_per_byte, latency_s))


def _tree_s(whole: float, n: int, s_per_byte: float, latency_s: float) -> float:
    """Up a binary tree and down again (Jeaugey 2019): everything passes twice."""
    depth = 0
    while 2**depth < n:
        depth += 1
    return 2 * (whole * s_per_byte + depth * latency_s)
