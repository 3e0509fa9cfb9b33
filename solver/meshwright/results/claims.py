"""The claims about the plans of an answer, each claim in one wording.

Two plans have names: the recommended plan, and the fastest plan. They are the same one
unless a simpler plan is hardly slower. A third may be what makers publish. Terminal,
markdown, reports, the page, JSON and notebooks all print these sentences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from meshwright.plans.plan import Plan
from meshwright.plans.schedules import schedule_named
from meshwright.spec.plan_fields import AXES, FIELDS
from meshwright.spec.units import few_digits
from meshwright.surface import option

if TYPE_CHECKING:
    from meshwright.plans.rule import BrokenRule
    from meshwright.results.outcome import Outcome, SafetyChoice
    from meshwright.results.outcome_parts import Conflict, PublishedPlan, Repair
    from meshwright.results.priced_plan import PricedPlan

RECOMMENDED = "the recommended plan"

FASTEST = "the fastest plan"

MOST_LIMITS, LEAST_LIMIT = 3, 0.02
"""Most parts of the step, and the least share of one, that a sentence names."""

SURE = 0.995
"""Probabilities above it, and so near to 0, are not told: tails are not known."""

SAME = 1e-9
"""Step times that differ by a smaller share are equal up to rounding."""


def seconds_text(seconds: float) -> str:
    """Return seconds with three or four digits."""
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{few_digits(seconds * 1e3)} ms"


def name_of(outcome: Outcome, plan: Plan) -> str:
    """Return the name that a plan has in an answer; empty if it is neither plan."""
    if outcome.best is not None and plan == outcome.best.plan:
        return RECOMMENDED
    if outcome.optimum is not None and plan == outcome.optimum.plan:
        return FASTEST
    return ""


def headline(outcome: Outcome) -> str:
    """Return the first sentence of an answer: how fast the recommended plan is.

    It is empty where there is no plan. What is proven stands in `proof_claim` alone.
    """
    best = outcome.best
    if best is None:
        return ""
    name = RECOMMENDED if proof_claim(outcome) else "the plan"
    return (
        f"{name[0].upper()}{name[1:]} takes {seconds_text(best.step_s)} a step, "
        f"{best.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, MFU {best.mfu:.1%}."
    )


def speed_claim(best: PricedPlan) -> str:
    """Return the step time and the rates of a plan."""
    return (
        f"{seconds_text(best.step_s)} · MFU {best.mfu:.1%} · "
        f"{best.tokens_per_s_per_gpu:,.0f} tokens/s/GPU"
    )


NONE_FITS = "No plan fits."
"""The sentence of every surface where no plan fits."""


def conflict_claim(conflict: Conflict | None, broken: Sequence[BrokenRule]) -> str:
    """Return why no plan fits, with the numbers of the rules that the closest breaks.

    Degrees that do not multiply to the number of GPUs are told before all else: the
    smallest conflict may name a framework's rule on degrees that nobody asked for.
    Without a conflict the model, the GPUs and the framework leave no plan.
    """
    product = next((rule for rule in broken if rule.rule == "world_size"), None)
    if product is not None:
        return f"Because of world_size: {product.arithmetic}."
    rules = conflict.rules if conflict else ()
    names = _joined([rule.rule for rule in rules])
    clash = next((f": {rule.arithmetic}" for rule in rules if rule.arithmetic), "")
    why = names or "the model, the GPUs and the framework alone"
    return f"Because of {why}{memory_need(broken) or clash}."


def _joined(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def memory_need(broken: Sequence[BrokenRule]) -> str:
    """Return the memory that the closest plan needs, if it is too much."""
    miss = next((rule for rule in broken if rule.rule == "memory"), None)
    if miss is None or miss.need is None or miss.have is None:
        return ""
    return f": {miss.where} needs {miss.need:.1f} GiB, {miss.have:.1f} usable"


def repair_claim(repair: Repair | None) -> str:
    """Return what to change where no plan fits."""
    return f"Change {repair.sentence}." if repair else "No repair is known."


def miss_claims(outcome: Outcome) -> Iterator[str]:
    """Yield why no plan fits and what to change, where both were looked for."""
    if outcome.conflict is not None:
        miss = outcome.near_miss
        yield conflict_claim(outcome.conflict, miss.broken_rules if miss else ())
        yield repair_claim(outcome.repair)


def plan_claims(outcome: Outcome) -> Iterator[str]:
    """Yield which plan is recommended and which is the fastest, a sentence each."""
    best, fastest = outcome.best, outcome.fastest
    if best is None:
        return
    both = "" if fastest else f", which is {FASTEST}{_found(outcome)},"
    yield f"{_told(RECOMMENDED + both, best)}"
    if fastest is not None:
        yield f"{_told(FASTEST + _found(outcome), fastest)}"


def _told(name: str, priced: PricedPlan) -> str:
    told = f"{name} takes {seconds_text(priced.step_s)} a step: {priced.plan}"
    known = familiarity_claim(priced)
    return told[0].upper() + told[1:] + (f" ({known})" if known else "")


def familiarity_claim(priced: PricedPlan) -> str:
    """Return how near a plan is to what was run; empty where nothing is known."""
    found = priced.familiarity
    if found is None:
        return ""
    if not found.beyond and not found.runs:
        return "run before with fewer stages, and with more"
    if not found.beyond:
        return f"run before: {found.runs} known run{'s' * (found.runs != 1)} like it"
    count, named = len(found.beyond), ", ".join(found.beyond)
    decisions = f"{count} decision{'s' * (count != 1)}"
    return f"{decisions} beyond the nearest known runs ({found.like}): {named}"


FAR = 0.1
"""Share by which a plan may claim to be faster than what its makers publish."""


def published_claims(outcome: Outcome) -> Iterator[str]:
    """Yield what makers publish for the job, and what is claimed beyond it."""
    best, published, highest = outcome.best, outcome.published, outcome.highest_mfu
    if best is None:
        return
    if published is not None:
        yield _published_claim(outcome, best, published)
    if highest is not None:
        yield (
            f"No published run like this on {highest.gpu} in {highest.precision} has "
            f"an MFU above {highest.mfu:.1%} ({highest.runs:,} runs; "
            f"{_where(highest.source)}): {best.mfu:.1%} is more than was measured."
        )


def _where(source: str) -> str:
    """Return the publication alone, without the place in it."""
    return source.partition(",")[0]


def _broken_claim(broken: Sequence[BrokenRule]) -> str:
    """Return why a plan does not fit: the memory it needs, or else a rule it breaks."""
    first = next(iter(broken), None)
    return memory_need(broken) or (f": {first.sentence}" if first else "")


def _published_claim(
    outcome: Outcome, best: PricedPlan, published: PublishedPlan
) -> str:
    where = _where(published.source)
    told = f"Published for {published.gpus:,} GPUs ({where}): "
    told += published.plan
    if published.gradients:
        told += f", gradients in {published.gradients}"
    if published.expert_dispatch:
        told += f", expert_dispatch {published.expert_dispatch}"
    if published.tokens_per_s_per_gpu:
        told += f"; measured: {published.tokens_per_s_per_gpu:,.0f} tokens/s/GPU"
    if published.priced is None:
        return f"{told}. It does not fit here{_broken_claim(published.broken_rules)}."
    step_s, least_s = published.priced.step_s, best.step_s
    over = step_s / least_s - 1
    tolerance = outcome.certificate.tolerance if outcome.certificate else 0.0
    remark = ""
    if abs(over) < SAME:
        remark = f": as long as {RECOMMENDED}"
    elif over > FAR:
        remark = ": measure both before you count on that"
    elif abs(over) <= tolerance:
        remark = ": the model cannot tell them apart"
    elif over < 0 and published.asks_for:
        asked = option("set", *published.asks_for)
        remark = f": solve may choose it with {asked}"
    more = "" if abs(over) < SAME else f", {over:+.1%}"
    told += f". It takes {seconds_text(step_s)} here{more}{remark}."
    if published.is_for_job and outcome.certificate and outcome.certificate.doubt:
        told += (
            " For this very job other degrees or another ZeRO stage must be "
            f"{outcome.certificate.doubt:.0%} faster to be recommended."
        )
    return " ".join((told, *_caveats(step_s, published, published.priced)))


def _caveats(
    step_s: float, published: PublishedPlan, priced: PricedPlan
) -> Iterator[str]:
    """Yield that a plan may not fit, and that the very job was slower when measured."""
    if published.is_risky:
        yield f"It fits with probability {priced.fit_probability:.2f}, less than asked."
    error = (published.measured_s or 0.0) / step_s - 1
    if error > FAR:
        yield f"Measured it takes {error:.0%} more, and {RECOMMENDED} may, too."


def _found(outcome: Outcome) -> str:
    """Return that the fastest plan is only the fastest so far, where that is open."""
    return "" if outcome.status == "optimal" else " found so far"


def proof_claim(outcome: Outcome) -> str:
    """Return as a sentence the proven claims about the recommended and fastest plan.

    It is empty where there is no plan, or nothing was proven.
    """
    fastest, certificate = outcome.optimum, outcome.certificate
    if fastest is None or certificate is None:
        return ""
    where, simplicity = _scope(outcome), outcome.simplicity
    step, least = map(seconds_text, (fastest.step_s, certificate.bound_s))
    more = f"; {RECOMMENDED} takes {simplicity.loss:.2%} more" if simplicity else ""
    if outcome.status != "optimal":
        found_gap = 1 - certificate.bound_s / fastest.step_s
        open_gap = certificate.gap if outcome.open is not None else 0.0
        choices = (
            f"a choice that was left open may be {open_gap:.2%} better; "
            if open_gap > found_gap + SAME
            else ""
        )
        return (
            f"Not proven: {choices}no plan{where} takes less than {least}, "
            f"{FASTEST} found so far {step} (gap {max(found_gap, 0.0):.2%}){more}."
        )
    count = certificate.counts.skeletons
    none = f"none of {count:,} legal plan{'s' * (count != 1)}{where} is faster"
    if simplicity:
        proven = f"{FASTEST} takes {step}, and {none}{more}"
    else:
        proven = f"{none} than {RECOMMENDED} ({step})"
    if not certificate.tolerance:
        return f"Proven: {proven}."
    simpler = f"none within {certificate.tolerance:.1%} of {FASTEST} is simpler"
    if certificate.doubt:
        simpler = (
            f"counting {certificate.doubt:.0%} more for each decision beyond the "
            f"nearest known runs, none within {certificate.tolerance:.1%} of the least "
            "step is simpler"
        )
    if certificate.is_simplest:
        return f"Proven: {proven}, and {simpler}."
    return f"Proven: {proven}. Not proven: that {simpler}."


def _scope(outcome: Outcome) -> str:
    """Return which machines the plans use, if there was a choice."""
    if outcome.open is not None:
        return " of this choice"
    is_part = outcome.certificate is not None and outcome.certificate.levels
    return " of this use of the parts" if is_part else ""


def safety_claims(outcome: Outcome) -> Iterator[str]:
    """Yield the plan to run at each other risk of running out of memory, in sentences.

    It is compared with the plan that is recommended at the risk asked for.
    """
    best = outcome.best
    if best is not None:
        yield from (_safety_claim(best, choice) for choice in outcome.safety)


def _safety_claim(best: PricedPlan, choice: SafetyChoice) -> str:
    at = f"Where {1 - choice.oom_risk:.4g} is asked,"
    if choice.step_s is None or choice.plan is None:
        return f"{at} {'none fits' if choice.is_proven else 'no plan is known'}."
    change = choice.step_s / best.step_s - 1
    if abs(change) < SAME:
        return f"{at} {RECOMMENDED} takes the same time."
    unproven = "" if choice.is_proven else ", not proven to be the best"
    fields = _changed_fields(best.plan, choice.plan)
    return f"{at} {RECOMMENDED} takes {change:+.1%}: {fields}{unproven}."


def _changed_fields(before: Plan, after: Plan) -> str:
    """Return the fields in which a plan differs from another, with their values."""
    changed = [
        f"{field.name}={getattr(after, field.name)}"
        for field in FIELDS
        if getattr(after, field.name) != getattr(before, field.name)
        and field.name != "microbatches"
    ]
    return ", ".join(changed) or "other layers per stage, or another mesh"


def fullest_claim(best: PricedPlan) -> str:
    """Return the memory of the fullest GPU by part, and how likely the plan fits."""
    fullest = max(best.stages, key=lambda stage: stage.total_gib / stage.usable_gib)
    parts = [f"{name} {gib:.2f}" for name, gib in fullest.parts.items() if gib >= 0.005]
    host = f" · {fullest.host_gib:.2f} GiB on the host for this GPU"
    host = host if fullest.host_gib else ""
    return (
        f"fullest GPU {fullest.total_gib:.2f} of {fullest.usable_gib:.2f} GiB usable: "
        f"{', '.join(parts)}{host} · fits with probability "
        f"{probability_text(best.fit_probability)}"
    )


def limit_claim(best: PricedPlan) -> str:
    """Return the parts that take most of the step, and the link that is busiest."""
    parts = sorted(best.time_parts.items(), key=lambda part: -part[1])[:MOST_LIMITS]
    is_alone = best.plan.dp == best.plan.cp == 1
    names = {"dp": "copies of the embedding"} if is_alone else {}
    shares = [
        f"{names.get(name, name)} {seconds / best.step_s:.0%}"
        for name, seconds in parts
        if seconds >= LEAST_LIMIT * best.step_s
    ]
    busiest = max(best.links, key=lambda load: load.seconds, default=None)
    link = (
        f" · busiest link {busiest.link}, {busiest.utilisation:.1%}" if busiest else ""
    )
    return f"the step is {', '.join(shares)}{link}"


def probability_text(probability: float) -> str:
    """Return a probability with two digits, rounded down."""
    if probability > SURE:
        return "above 0.99"
    if probability < 1 - SURE:
        return "below 0.01"
    return f"{math.floor(probability * 100) / 100:.2f}"


def plan_lines(plan: Plan) -> tuple[str, ...]:
    """Return a plan in two lines, and a third where ranks sit on chosen GPUs."""
    degrees = f"tp {plan.tp} · pp {plan.pp} · dp {plan.dp}"
    for name in ("vpp", "cp", "ep", "etp"):
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
        f"recompute {_recompute_text(plan)} · mesh {mesh_text(plan)}{_uneven(plan)}",
    )
    return (*lines, _seats_text(plan)) if plan.seats else lines


MOST_STAGES = 8
"""Stages whose layers are told one by one, as pins have them."""


def _uneven(plan: Plan) -> str:
    """Return the layers of unlike stages; of many, with stages that are alike."""
    layers = [stage.layers for stage in plan.stages]
    if len(set(layers)) == 1:
        return ""
    if len(layers) <= MOST_STAGES:
        return f" · layers {layers}"
    runs = [(one, len(list(alike))) for one, alike in groupby(layers)]
    told = (f"{one} x {count}" if count > 1 else str(one) for one, count in runs)
    return f" · layers [{', '.join(told)}]"


def short_plan_text(plan: Plan) -> str:
    """Return the degrees of a plan above 1, its ZeRO stage and its micro-batch."""
    names = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")
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
