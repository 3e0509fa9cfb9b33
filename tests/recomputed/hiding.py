"""How much of the traffic compute hides."""

from __future__ import annotations

from tests.recomputed.case import Case

Parts = dict[str, float]


def _behind(traffic_s: float, compute_s: float, share: float) -> tuple[float, float]:
    """What is seen of some traffic, and what is left of the compute that hides it."""
    hidden_s = min(share * traffic_s, compute_s)
    return traffic_s - hidden_s, compute_s - hidden_s


def in_pass(case: Case, parts: Parts, core_s: float) -> Parts:
    """One pass of a layer: each second of compute hides one of traffic, once.

    Nothing hides what compute waits for (tp, ep). The ring goes beside the attention
    that it feeds, ZeRO beside the rest, copies beside what that leaves.
    """
    share = case.rates["gather_overlap"]
    ring_s, left_of_core_s = _behind(parts.get("cp", 0.0), core_s, share)
    left_s = parts["compute"] - (core_s - left_of_core_s)
    zero_s, left_s = _behind(parts.get("zero", 0.0), left_s, share)
    copies_s, _ = _behind(parts["offload"], left_s, share)
    return parts | {"cp": ring_s, "zero": zero_s, "offload": copies_s}


def beside(case: Case, parts: Parts, compute_s: float) -> Parts:
    """Embedding or head, beside so much compute: ZeRO first, copies then."""
    share = case.rates["gather_overlap"]
    zero_s, left_s = _behind(parts.get("zero", 0.0), compute_s, share)
    copies_s, _ = _behind(parts["offload"], left_s, share)
    return parts | {"zero": zero_s, "offload": copies_s}


def at_end(
    case: Case, dp_s: float, down_s: float, compute_s: float
) -> tuple[float, float]:
    """The end of a step beside a backward: gradients first, copies then."""
    share = case.rates["grad_overlap"]
    dp_s, left_s = _behind(dp_s, compute_s, share)
    return dp_s, _behind(down_s, left_s, share)[0]
