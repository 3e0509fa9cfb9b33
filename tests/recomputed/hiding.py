"""How much of the traffic compute hides: each second of it one of traffic, once."""

from __future__ import annotations

from typing import NamedTuple

from tests.recomputed.case import Case
from tests.recomputed.kernels import Pass

Parts = dict[str, float]


SLOWED = 0.3
"""What a second of a collective beside them adds to kernels: it takes processors."""


def _behind(
    traffic_s: float, compute_s: float, share: float, slowed: float = 0.0
) -> tuple[float, float]:
    """What is seen of some traffic, and what is left of the compute that hides it."""
    hidden_s = min(share * traffic_s, compute_s)
    return traffic_s - (1 - slowed) * hidden_s, compute_s - hidden_s


class Seen(NamedTuple):
    """One pass of a layer: what is seen of its parts."""

    parts: Parts
    left: float
    """Compute and waits that hide nothing."""
    wait: float
    """For the host."""
    hiding: float
    """Compute of both halves of a backward that hides something."""


def in_pass(case: Case, parts: Parts, one_pass: Pass, host_s: float) -> Seen:
    """One pass of a layer, as long as its GPU or its host takes.

    The ring goes beside the attention that it feeds; then, as far as the code base lets
    them, the tensor group beside its matmuls, experts, ZeRO and copies beside the rest.
    """
    share, left_s = case.rates["gather_overlap"], one_pass.seconds
    seen = dict(parts)
    if case.exchange == "ring":
        seen["cp"], attention_s = _behind(parts.get("cp", 0.0), one_pass.core, share)
        left_s -= one_pass.core - attention_s
    of_halves_s = left_s
    if "tp" in case.overlap:
        # Pieces by rank, of which one has nothing beside it; inside a node.
        plan, node = case.plan, case.spec.cluster.fan_outs[0]
        has_pieces = plan.sequence_parallel and plan.tp <= node
        pieces = 1 - 1 / plan.tp if has_pieces else 0.0
        tp_s = parts.get("tp", 0.0)
        hidden_s = min(
            case.rates["tp_overlap"] * pieces * tp_s, one_pass.matmuls, left_s
        )
        seen["tp"], left_s = tp_s - hidden_s, left_s - hidden_s
    if "ep" in case.overlap and _hides_experts(case):
        seen["ep"], left_s = _behind(parts.get("ep", 0.0), left_s, share)
    seen["zero"], left_s = _fetched(case, seen, left_s, share)
    seen["offload"], left_s = _behind(parts["offload"], left_s, share)
    alone_s = 0.0 if case.replays else one_pass.awaited
    wait_s = max(host_s - sum(seen.values()), alone_s)
    hiding_s = of_halves_s - left_s
    return Seen(seen | {"host": wait_s}, left_s + wait_s, wait_s, hiding_s)


def _hides_experts(case: Case) -> bool:
    """Megatron Core needs chunks in a pipeline, and experts that run once."""
    plan = case.plan
    if case.spec.framework != "megatron":
        return True
    again = {"none": False, "full": True}.get(plan.recompute)
    if again is None:
        again = "moe" in (plan.recompute_modules or "").split("+")
    in_16_bits = plan.precision not in ("fp32", "tf32")
    return (plan.pp == 1 or plan.vpp > 1) and not again and in_16_bits


def _fetched(
    case: Case, parts: Parts, compute_s: float, share: float
) -> tuple[float, float]:
    """What is seen of ZeRO's weights and gradients in a pass, and what is left."""
    on = {"zero": "parameters", "zero gradients": "gradients"}
    hides = sum(parts.get(name, 0.0) for name, one in on.items() if one in case.overlap)
    rest = sum(parts.get(name, 0.0) for name in on) - hides
    seen_s, left_s = _behind(hides, compute_s, share, SLOWED)
    parts.pop("zero gradients", None)
    return seen_s + rest, left_s


def beside(case: Case, parts: Parts, compute_s: float) -> Parts:
    """Embedding or head, beside so much compute: ZeRO first, copies then."""
    share = case.rates["gather_overlap"]
    parts = dict(parts)
    zero_s, left_s = _fetched(case, parts, compute_s, share)
    copies_s, _ = _behind(parts["offload"], left_s, share)
    return parts | {"zero": zero_s, "offload": copies_s}


def at_end(
    case: Case, dp: Parts, down_s: float, compute_s: float
) -> tuple[float, float]:
    """The end of a step beside what one backward has left: links, then copies.

    `dp` is what gradients and what parameters take on the links.
    """
    share = case.rates["grad_overlap"]
    hides = sum(one for name, one in dp.items() if name in case.overlap)
    dp_s, left_s = _behind(hides, compute_s, share, SLOWED)
    dp_s += sum(dp.values()) - hides
    return dp_s, _behind(down_s, left_s, share)[0]
