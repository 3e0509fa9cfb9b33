"""Why no deployment fits, and what would mend it: every repair is solved again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

from pydantic import ValidationError

from meshwright.deadline import Interrupt
from meshwright.errors import SpecError
from meshwright.explanations.changed_spec import with_count, with_memory, with_pins
from meshwright.explanations.conflict import smallest_conflict
from meshwright.explanations.correction_sets import NamedBits
from meshwright.explanations.decisions import (
    MEMORY,
    TP_LINK,
    memory_decision,
    pin_decisions,
    without_decisions,
)
from meshwright.explanations.time_differences import part_differences
from meshwright.reading.messages import explain
from meshwright.reading.places import Document, Where
from meshwright.results.explanation import Conflict, Constraint
from meshwright.results.priced_plan import StageMemory
from meshwright.results.serving import ServingOutcome
from meshwright.results.serving_explanation import ServingExplanation, ServingRepair
from meshwright.serving.job import make_serving_job
from meshwright.serving.lattice import build_lattice
from meshwright.serving.margins import marginal_values
from meshwright.serving.solve import solve_serving
from meshwright.solver.options import Options
from meshwright.spec.pins import Pins
from meshwright.spec.serving import ServingSpec

_SLO = "inference.slo."
TIMES = (2, 4, 8)
"""How many times the machines of a cluster are tried."""

MOST_EDITS = 3

Done = tuple[str, ServingSpec]
"""An edit in words, and the spec after it."""

Edit = Callable[[ServingSpec], Done | None]
"""Makes an edit; None where it is none, or cannot help."""


def explain_serving(
    spec: ServingSpec, plan: Pins | None, options: Options
) -> ServingExplanation:
    """Return why the best plan of a spec wins, or why there is none.

    `plan` is decided beside what the spec pins.

    Raises:
        SpecError: no deployment has such a plan.
    """
    asked = _asked(spec, plan) if plan else spec
    outcome = solve_serving(asked, options)
    told = ServingExplanation(
        title=asked.title, fits=outcome.best is not None, outcome=outcome
    )
    return options.interrupt.unless_asked(
        lambda: told.model_copy(update=_reasons(spec, asked, outcome, options)), told
    )


def _reasons(
    spec: ServingSpec, asked: ServingSpec, outcome: ServingOutcome, options: Options
) -> dict[str, object]:
    """Return why a plan wins, or loses to the best one, or why there is none."""
    if outcome.best is not None:
        values: dict[str, object] = {"marginal_values": tuple(marginal_values(asked))}
        if asked is spec:
            return values
        best = solve_serving(spec, replace(options, interrupt=Interrupt()))
        assert best.best is not None
        own = outcome.best.objective_parts, best.best.objective_parts
        return {**values, "best": best, "gap": part_differences(*own)}
    miss, fixed = outcome.near_miss, list(_fixed_in(asked))
    return {
        "broken_rules": miss.broken_rules if miss else (),
        "memory": miss.memory if miss else None,
        "conflict": _smallest_conflict(asked, fixed, miss.description if miss else ""),
        "repairs": tuple(_repairs(asked, _edits(fixed, miss.memory if miss else None))),
    }


def _asked(spec: ServingSpec, plan: Pins) -> ServingSpec:
    try:
        return ServingSpec.model_validate(with_pins(spec, plan))
    except ValidationError as error:
        document = Document({}, {(): Where("--plan")})
        raise SpecError(explain(document, error, ServingSpec)) from None


def _fixed_in(spec: ServingSpec) -> Iterator[Constraint]:
    """Yield the pins, limits, objectives and capacities of a spec."""
    yield from pin_decisions(spec.pins)
    least = spec.limits.tp_min_link_gb_s
    if least is not None:
        sentence = f"tensor parallelism has links of {least:g} GB/s"
        yield Constraint(rule=TP_LINK, sentence=sentence)
    for name, limit_ms in spec.inference.slo:
        if limit_ms is not None:
            yield Constraint(rule=f"{_SLO}{name}", sentence=f"{name} is {limit_ms:g}")
    yield memory_decision(spec)


def _without(spec: ServingSpec, rules: Sequence[str]) -> ServingSpec:
    """Return a spec with some of what is fixed left open."""
    waits = [rule for rule in rules if rule.startswith(_SLO)]
    open_ = {rule.removeprefix(_SLO): None for rule in waits}
    slo = spec.inference.slo.model_copy(update=open_)
    inference = spec.inference.model_copy(update={"slo": slo})
    patient = spec.model_copy(update={"inference": inference})
    return without_decisions(patient, [rule for rule in rules if rule not in waits])


def _is_possible(spec: ServingSpec) -> bool:
    return bool(build_lattice(make_serving_job(spec)).possible.any())


def _smallest_conflict(
    spec: ServingSpec, fixed: Sequence[Constraint], witness: str
) -> Conflict:
    """Return a smallest set of decisions that leaves no plan, all others open."""
    decisions = NamedBits(tuple(own.rule for own in fixed))

    def is_possible(kept: int) -> bool:
        open_ = decisions.names_of(decisions.every & ~kept)
        return _is_possible(_without(spec, open_))

    conflict, _ = smallest_conflict(decisions, [], is_possible)
    names = decisions.names_of(conflict)
    rules = tuple(own for own in fixed if own.rule in names)
    return Conflict(rules=rules, is_minimal=True, witness=witness)


def _repairs(spec: ServingSpec, edits: Sequence[Edit]) -> list[ServingRepair]:
    """Return what becomes possible by the fewest edits, the best first."""
    for size in range(1, MOST_EDITS + 1):
        found = []
        for chosen in combinations(edits, size):
            repair = _repaired(spec, chosen)
            if repair is not None:
                found.append(repair)
        if found:
            return sorted(found, key=lambda own: own.best.objective_s)
    return []


def _repaired(spec: ServingSpec, edits: Sequence[Edit]) -> ServingRepair | None:
    """Return what edits one after the other make possible, None if nothing."""
    told: list[str] = []
    for edit in edits:
        done = edit(spec)
        if done is None:
            return None
        told.append(done[0])
        spec = done[1]
    best = solve_serving(spec).best
    if best is None:
        return None
    return ServingRepair(edit=" and ".join(told), best=best)


def _edits(fixed: Sequence[Constraint], fullest: StageMemory | None) -> list[Edit]:
    """Return what may be changed; what is counted down comes last."""
    edits: list[Edit] = [
        partial(_open, own.rule) for own in fixed if own.rule != MEMORY
    ]
    edits += [partial(_served, "precision", name) for name in ("fp8", "int8", "int4")]
    edits.append(partial(_served, "kv_precision", "fp8"))
    edits += [partial(_machines, times) for times in TIMES]
    if fullest is not None:
        edits.append(partial(_memory, fullest.total_gib))
    return [*edits, partial(_fewer, "prompt_len"), partial(_fewer, "batch")]


def _open(rule: str, spec: ServingSpec) -> Done:
    return f"leave {rule} open", _without(spec, [rule])


def _served(name: str, value: str | int, spec: ServingSpec) -> Done | None:
    """Return a spec with something else to serve, where its GPU can."""
    old = getattr(spec.inference, name)
    own = spec.inference.model_copy(update={name: value})
    changed = spec.model_copy(update={"inference": own})
    known = spec.cluster.topology.gpu.peak_tflops.known
    if value == old or changed.matmul_precision not in known:
        return None
    return f"inference.{name}: {old or '16 bits'} -> {value}", changed


def _fewer(name: str, spec: ServingSpec) -> Done | None:
    """Return a spec with the most of something, below what is asked, that can be."""
    low, high = 1, int(getattr(spec.inference, name))

    def changed(value: int) -> Done | None:
        done = _served(name, value, spec)
        return done if done and _is_possible(done[1]) else None

    if changed(low) is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if changed(middle) else (low, middle)
    return changed(low)


def _machines(times: int, spec: ServingSpec) -> Done | None:
    cluster = spec.cluster
    if cluster.topology.scale_out is None:
        return None
    count = cluster.count * times
    return f"cluster.count: {cluster.count} -> {count}", with_count(spec, count)


def _memory(needed_gib: float, spec: ServingSpec) -> Done | None:
    if needed_gib <= spec.usable_gib:
        return None
    edit = f"usable memory of a GPU: {spec.usable_gib:.2f} -> {needed_gib:.2f} GiB"
    return edit, with_memory(spec, needed_gib * (1 + 1e-9))
