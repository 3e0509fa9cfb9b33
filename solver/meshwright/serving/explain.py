"""Why a deployment wins or none does: conflict, repairs, marginal values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import get_args

from meshwright.deadline import Interrupt
from meshwright.explanations.compare import part_differences
from meshwright.explanations.conflict import NamedBits, smallest_conflict
from meshwright.explanations.decisions import (
    MEMORY,
    TP_LINK,
    memory_decision,
    pin_decisions,
    with_count,
    with_memory,
    with_pins,
    with_topology,
    without_decisions,
)
from meshwright.explanations.repairs import larger_gpus
from meshwright.planner.options import Options
from meshwright.reading.document import Document, Where, validated
from meshwright.results.outcome_parts import Conflict, Constraint
from meshwright.results.priced_plan import StageMemory
from meshwright.results.serving import (
    MarginalValue,
    ServingChanges,
    ServingExplanation,
    ServingOutcome,
    ServingRepair,
)
from meshwright.serving.deployment import make_serving_job
from meshwright.serving.lattice import build_lattice
from meshwright.serving.solve import last_true, solve_serving
from meshwright.spec.gpu import Gpu, PeakTflops
from meshwright.spec.plan_fields import Pins
from meshwright.spec.serving import ServingSpec
from meshwright.surface import option

_SLO = "inference.slo."

MACHINE_FACTORS = (2, 4, 8)
"""Factors by which the machines of a cluster are multiplied."""

MOST_EDITS = 3
"""Edits that are combined at most."""

Edited = tuple[str, ServingSpec]
"""An edit in words, and the spec after it."""

Edit = Callable[[ServingSpec], Edited | None]
"""Makes an edit; None where it changes nothing, or cannot help."""

MORE = 1.1
"""Factor by which hardware is improved."""


def explain_serving(
    spec: ServingSpec, plan: Pins | None, options: Options
) -> ServingExplanation:
    """Return why the best plan of a spec wins, or why there is none.

    With `plan`, its decisions are added to the pins of the spec, and the best plan is
    compared with that of the spec alone.

    Raises:
        SpecError: no deployment matches the plan.
    """
    asked = _asked(spec, plan) if plan else spec
    outcome = solve_serving(asked, options)
    answer = ServingExplanation(
        title=asked.title, fits=outcome.best is not None, outcome=outcome
    )

    def in_full() -> ServingExplanation:
        return answer.model_copy(update=_reasons(spec, asked, outcome, options))

    return options.interrupt.unless_asked(in_full, answer)


def _asked(spec: ServingSpec, plan: Pins) -> ServingSpec:
    """Return the spec with a plan pinned."""
    return validated(
        Document({}, {(): Where(option("plan"))}), ServingSpec, with_pins(spec, plan)
    )


def _reasons(
    spec: ServingSpec, asked: ServingSpec, outcome: ServingOutcome, options: Options
) -> dict[str, object]:
    """Return the fields of an explanation that say why."""
    if outcome.best is None:
        return _why_none_fits(asked, outcome)
    values: dict[str, object] = {"marginal_values": tuple(marginal_values(asked))}
    if asked is spec:
        return values
    best = solve_serving(spec, replace(options, interrupt=Interrupt()))
    assert best.best is not None
    gap = part_differences(outcome.best.objective_parts, best.best.objective_parts)
    return {**values, "best": best, "gap": gap}


def _why_none_fits(asked: ServingSpec, outcome: ServingOutcome) -> dict[str, object]:
    """Return the nearest miss, the smallest conflict and the repairs of a spec."""
    miss, constraints = outcome.near_miss, list(constraints_of(asked))
    memory = miss.memory if miss else None
    witness = miss.description if miss else ""
    return {
        "broken_rules": miss.broken_rules if miss else (),
        "memory": memory,
        "conflict": conflict_of(asked, constraints, witness),
        "repairs": tuple(repairs(asked, constraints, memory)),
    }


def constraints_of(spec: ServingSpec) -> Iterator[Constraint]:
    """Yield the pins, limits, latency limits and memory of a spec."""
    yield from pin_decisions(spec.pins)
    least = spec.limits.tp_min_link_gb_s
    if least is not None:
        sentence = f"tensor parallelism has links of {least:g} GB/s"
        yield Constraint(rule=TP_LINK, sentence=sentence)
    for name, limit_ms in spec.inference.slo:
        if limit_ms is not None:
            yield Constraint(rule=f"{_SLO}{name}", sentence=f"{name} is {limit_ms:g}")
    yield memory_decision(spec)


def without(spec: ServingSpec, rules: Sequence[str]) -> ServingSpec:
    """Return a spec with some of its constraints removed."""
    waits = [rule for rule in rules if rule.startswith(_SLO)]
    removed = {rule.removeprefix(_SLO): None for rule in waits}
    inference = spec.inference.having("slo", **removed)
    patient = spec.model_copy(update={"inference": inference})
    return without_decisions(patient, [rule for rule in rules if rule not in waits])


def has_plan(spec: ServingSpec) -> bool:
    """Return whether some deployment of a spec fits."""
    return bool(build_lattice(make_serving_job(spec)).possible.any())


def _has_pipelined_plan(spec: ServingSpec) -> bool:
    """Return whether one fits that has no more groups of requests than stages.

    Each further group saves activations, and reads all weights once more for a token.
    """
    lattice = build_lattice(make_serving_job(spec))
    few = lattice.rows.microbatches <= lattice.rows.pp
    return bool((lattice.possible & few).any())


def conflict_of(
    spec: ServingSpec, constraints: Sequence[Constraint], witness: str
) -> Conflict:
    """Return a smallest set of constraints that together leave no plan."""
    bits = NamedBits(tuple(constraint.rule for constraint in constraints))

    def is_possible(kept: int) -> bool:
        return has_plan(without(spec, bits.names_of(bits.every & ~kept)))

    conflict, _ = smallest_conflict(bits, [], is_possible)
    names = bits.names_of(conflict)
    rules = tuple(constraint for constraint in constraints if constraint.rule in names)
    return Conflict(rules=rules, is_minimal=True, witness=witness)


KINDS: tuple[ServingChanges, ...] = get_args(ServingChanges)


def repairs(
    spec: ServingSpec, constraints: Sequence[Constraint], fullest: StageMemory | None
) -> list[ServingRepair]:
    """Return the repairs with the fewest edits, those that ask least of a person first.

    Among those that ask alike, the best plan is first.
    """
    kinds = zip(KINDS, _kinds_of_edits(constraints, fullest), strict=True)
    edits = [(kind, edit) for kind, alike in kinds for edit in alike]
    for size in range(1, MOST_EDITS + 1):
        found = []
        for chosen in combinations(edits, size):
            asks = max(KINDS.index(kind) for kind, _ in chosen)
            repair = _repaired(spec, [edit for _, edit in chosen], KINDS[asks])
            if repair is not None:
                found.append((asks, repair.best.objective_s, repair))
        if found:
            return [repair for *_, repair in sorted(found, key=lambda one: one[:2])]
    return []


def _repaired(
    spec: ServingSpec, edits: Sequence[Edit], kind: ServingChanges
) -> ServingRepair | None:
    """Return the best plan after some edits, one on top of the other, if any fits."""
    words: list[str] = []
    for edit in edits:
        edited = edit(spec)
        if edited is None:
            return None
        words.append(edited[0])
        spec = edited[1]
    best = solve_serving(spec).best
    if best is None:
        return None
    return ServingRepair(edit=" and ".join(words), changes=kind, best=best)


def _kinds_of_edits(
    constraints: Sequence[Constraint], fullest: StageMemory | None
) -> Iterator[list[Edit]]:
    """Yield the edits to try by kind, in the order of what they ask of a person.

    There is a list for each of `KINDS`.
    """
    yield [
        partial(_open, constraint.rule)
        for constraint in constraints
        if constraint.rule != MEMORY
    ]
    precisions = [partial(_served, "precision", one) for one in ("fp8", "int8", "int4")]
    yield [*precisions, partial(_served, "kv_precision", "fp8")]
    yield [_more_machines]
    needed_gib = fullest.total_gib if fullest else None
    yield [partial(_larger_gpu, needed_gib)] if needed_gib else []
    yield [partial(_more_memory, needed_gib)] if needed_gib else []
    yield [partial(_fewer, "prompt_len"), partial(_fewer, "batch")]


def _open(rule: str, spec: ServingSpec) -> Edited:
    return f"leave {rule} open", without(spec, [rule])


def _served(name: str, value: str | int, spec: ServingSpec) -> Edited | None:
    """Return a spec with a field of `inference` changed, if its GPU can do it."""
    old = getattr(spec.inference, name)
    changed = spec.having("inference", **{name: value})
    known = spec.cluster.topology.gpu.peak_tflops.known
    if value == old or changed.matmul_precision not in known:
        return None
    return f"inference.{name}: {old or '16 bits'} -> {value}", changed


def _fewer(name: str, spec: ServingSpec) -> Edited | None:
    """Return a spec with a count of `inference` lowered to the most that has a plan.

    Plans with more groups of requests than stages count where there are no others.
    """
    asked = int(getattr(spec.inference, name))
    for fits in (_has_pipelined_plan, has_plan):
        if (edited := _lowered(name, asked, spec, fits)) is not None:
            return edited
    return None


def _lowered(
    name: str, asked: int, spec: ServingSpec, fits: Callable[[ServingSpec], bool]
) -> Edited | None:
    """Return a spec with a count lowered to the most with which a test holds."""

    def lowered(value: int) -> Edited | None:
        edited = _served(name, value, spec)
        return edited if edited and fits(edited[1]) else None

    if lowered(1) is None:
        return None
    return lowered(last_true(lambda value: lowered(value) is not None, 1, asked))


def _more_machines(spec: ServingSpec) -> Edited | None:
    """Return a spec with the fewest machines that have a plan, if any have."""
    cluster = spec.cluster
    if cluster.topology.scale_out is None:
        return None
    for count in (cluster.count * factor for factor in MACHINE_FACTORS):
        more = with_count(spec, count)
        if has_plan(more):
            break
    return f"cluster.count: {cluster.count} -> {count}", more


def _more_memory(needed_gib: float, spec: ServingSpec) -> Edited | None:
    """Return a spec that may use more of the memory that its GPU has."""
    most_gib = spec.cluster.topology.gpu.memory_gib
    if not spec.usable_gib < needed_gib <= most_gib:
        return None
    edit = f"usable memory of a GPU: {spec.usable_gib:.2f} -> {needed_gib:.2f} GiB"
    return edit, with_memory(spec, needed_gib * (1 + 1e-9))


def _larger_gpu(needed_gib: float, spec: ServingSpec) -> Edited | None:
    """Return a spec with the next bundled GPU that has the memory needed."""
    topology, present = spec.cluster.topology, spec.cluster.topology.gpu
    if spec.limits.memory_gib is not None:
        return None
    for gpu in larger_gpus(present):
        on_it = with_topology(spec, topology.model_copy(update={"gpu": gpu}))
        can_compute = spec.matmul_precision in gpu.peak_tflops.known
        if can_compute and on_it.usable_gib >= needed_gib:
            return f"cluster.topology.gpu: {present.name} -> {gpu.name}", on_it
    return None


def marginal_values(spec: ServingSpec) -> Iterator[MarginalValue]:
    """Yield the best plan on hardware a tenth better, and with doubled requests."""
    for change, changed in (*_hardware(spec), *_requests(spec)):
        yield MarginalValue(change=change, best=solve_serving(changed).best)


def _hardware(spec: ServingSpec) -> Iterator[tuple[str, ServingSpec]]:
    yield "memory +10 %", with_memory(spec, spec.usable_gib * MORE)
    topology = spec.cluster.topology
    gpu, peaks = topology.gpu, topology.gpu.peak_tflops
    wider = {"memory_gb_s": gpu.memory_gb_s * MORE}
    yield "memory bandwidth +10 %", _with_gpu(spec, gpu.model_copy(update=wider))
    known = {name: getattr(peaks, name) * MORE for name in peaks.known}
    quicker = {"peak_tflops": PeakTflops(**known)}
    yield "matmul peak +10 %", _with_gpu(spec, gpu.model_copy(update=quicker))
    for index, level in enumerate(topology.levels):
        levels = list(topology.levels)
        levels[index] = level.model_copy(update={"gb_s": level.gb_s * MORE})
        changed = topology.model_copy(update={"levels": tuple(levels)})
        yield f"{level.name} +10 %", with_topology(spec, changed)
        levels[index] = level.model_copy(update={"latency_us": level.latency_us / MORE})
        changed = topology.model_copy(update={"levels": tuple(levels)})
        yield f"{level.name} latency / 1.1", with_topology(spec, changed)


def _with_gpu(spec: ServingSpec, gpu: Gpu) -> ServingSpec:
    return with_topology(spec, spec.cluster.topology.model_copy(update={"gpu": gpu}))


def _requests(spec: ServingSpec) -> Iterator[tuple[str, ServingSpec]]:
    positions, inference = spec.model.learned_positions, spec.inference
    for name in ("batch", "prompt_len"):
        twice = inference.model_copy(update={name: 2 * getattr(inference, name)})
        if not positions or twice.context <= positions:
            yield f"{name} x 2", spec.model_copy(update={"inference": twice})
