"""How much of the traffic compute hides: each second of it one of traffic, once."""

from __future__ import annotations

from tests.recomputed.case import Case
from tests.recomputed.kernels import Pass

Parts = dict[str, float]


def _behind(traffic_s: float, compute_s: float, share: float) -> tuple[float, float]:
    """What is seen of some traffic, and what is left of the compute that hides it."""
    hidden_s = min(share * traffic_s, compute_s)
    return traffic_s - hidden_s, compute_s - hidden_s


def in_pass(case: Case, parts: Parts, own: Pass) -> tuple[Parts, float]:
    """One pass of a layer, and what of its compute hides nothing.

    Nothing hides what compute waits for (tp, ep, and cp where it is no ring). The ring
    goes beside the attention that it feeds, and while the GPU waits for the host; ZeRO
    beside the rest, copies beside what that leaves.
    """
    share = case.rates["gather_overlap"]
    is_ring = case.exchange == "ring"
    beside_s = own.core + own.wait if is_ring else 0.0
    ring_s, left_s = _behind(parts.get("cp", 0.0), beside_s, share)
    zero_s, left_s = _behind(
        parts.get("zero", 0.0), left_s + own.seconds - beside_s, share
    )
    copies_s, left_s = _behind(parts["offload"], left_s, share)
    return parts | {"cp": ring_s, "zero": zero_s, "offload": copies_s}, left_s


def beside(case: Case, parts: Parts, compute_s: float) -> Parts:
    """Embedding or head, beside so much compute: ZeRO first, copies then."""
    share = case.rates["gather_overlap"]
    zero_s, left_s = _behind(parts.get("zero", 0.0), compute_s, share)
    copies_s, _ = _behind(parts["offload"], left_s, share)
    return parts | {"zero": zero_s, "offload": copies_s}


def at_end(
    case: Case, dp_s: float, down_s: float, compute_s: float
) -> tuple[float, float]:
    """The end of a step beside what one backward has left: gradients, then copies."""
    share = case.rates["grad_overlap"]
    dp_s, left_s = _behind(dp_s, compute_s, share)
    return dp_s, _behind(down_s, left_s, share)[0]
