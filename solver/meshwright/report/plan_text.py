"""A plan in two or three lines of text."""

from __future__ import annotations

from meshwright.plans.plan import Plan
from meshwright.plans.schedules import schedule_named
from meshwright.spec.plan_fields import AXES


def plan_lines(plan: Plan) -> tuple[str, ...]:
    """Return a plan in two lines, and a third where ranks sit on chosen GPUs."""
    degrees = f"tp {plan.tp} · pp {plan.pp} · dp {plan.dp}"
    for name in ("vpp", "cp", "ep"):
        if getattr(plan, name) > 1:
            degrees += f" · {name} {getattr(plan, name)}"
    if plan.dp_shard > 1 and plan.dp_replicate > 1:
        degrees += f" ({plan.dp_replicate} replicas of {plan.dp_shard} shards)"
    batches = f"micro-batch {plan.micro_batch} x {plan.microbatches}"
    zero = f"ZeRO-{plan.zero}"
    features = ["sequence parallel"] if plan.sequence_parallel else []
    if plan.pp > 1:
        features.append(schedule_named(plan.schedule).title)
    if plan.offload != "none":
        features.append(f"{plan.offload} offloaded")
    features.append(plan.precision)
    lines = (
        " · ".join([degrees, batches, zero, *features]),
        f"recompute {_recompute_text(plan)} · mesh {mesh_text(plan)}",
    )
    return (*lines, _seats_text(plan)) if plan.seats else lines


def short_plan_text(plan: Plan) -> str:
    """Return the degrees of a plan above 1, its ZeRO stage and its micro-batch."""
    names = ("tp", "pp", "vpp", "cp", "ep", "dp")
    degrees = {name: getattr(plan, name) for name in names}
    words = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    words += [f"zero{plan.zero}"] if plan.zero else []
    words.append(f"mb{plan.micro_batch}x{plan.microbatches}")
    words += ["recompute"] if plan.recompute != "none" else []
    words += ["offload"] if plan.offload != "none" else []
    return " ".join(words)


def _seats_text(plan: Plan) -> str:
    """Return on which GPUs the ranks of a host sit, for every order that occurs."""
    orders = dict.fromkeys(" ".join(map(str, seats)) for seats in plan.seats)
    return f"ranks of a host, in order, on its GPUs {'; or '.join(orders)}"


def mesh_text(plan: Plan) -> str:
    """Return the factors of every used axis of the mesh, innermost level first."""
    used = [axis for axis in AXES if any(factor > 1 for factor in plan.mesh[axis])]
    shown = [f"{axis} " + "x".join(map(str, plan.mesh[axis])) for axis in used]
    return ", ".join(shown) or "one GPU"


def _recompute_text(plan: Plan) -> str:
    layers = sum(stage.layers for stage in plan.stages)
    recomputed = sum(stage.recompute_layers for stage in plan.stages)
    if not recomputed:
        return "none"
    modules = f" of {plan.recompute_modules}" if plan.recompute_modules else ""
    each = f" in segments of {plan.recompute_segment}" * (plan.recompute_segment > 1)
    return f"{plan.recompute}{modules}{each}, {recomputed} of {layers} layers"
