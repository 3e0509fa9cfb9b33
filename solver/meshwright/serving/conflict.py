"""The smallest set of pins and limits of a spec that leaves it no plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.explanations.conflict import smallest_conflict
from meshwright.explanations.correction_sets import NamedBits
from meshwright.explanations.decisions import (
    TP_LINK,
    memory_decision,
    pin_decisions,
    without_decisions,
)
from meshwright.results.explanation import Conflict, Constraint
from meshwright.serving.job import make_serving_job
from meshwright.serving.lattice import build_lattice
from meshwright.spec.serving import ServingSpec

_SLO = "inference.slo."


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
    slo = spec.inference.slo.model_copy(update=removed)
    inference = spec.inference.model_copy(update={"slo": slo})
    patient = spec.model_copy(update={"inference": inference})
    return without_decisions(patient, [rule for rule in rules if rule not in waits])


def has_plan(spec: ServingSpec) -> bool:
    """Return whether some deployment of a spec fits."""
    return bool(build_lattice(make_serving_job(spec)).possible.any())


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
