"""The fewest edits of a spec after which a plan fits, each found by solving again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations

from meshwright.explanations.changed_spec import (
    with_count,
    with_memory,
    with_topology,
)
from meshwright.explanations.decisions import MEMORY
from meshwright.explanations.gpu_repairs import larger_gpus
from meshwright.results.explanation import Constraint
from meshwright.results.priced_plan import StageMemory
from meshwright.results.serving_explanation import ServingRepair
from meshwright.serving.bisection import last_true
from meshwright.serving.conflict import has_plan, without
from meshwright.serving.solve import solve_serving
from meshwright.spec.serving import ServingSpec

MACHINE_FACTORS = (2, 4, 8)
"""Factors by which the machines of a cluster are multiplied."""

MOST_EDITS = 3
"""Edits that are combined at most."""

Edited = tuple[str, ServingSpec]
"""An edit in words, and the spec after it."""

Edit = Callable[[ServingSpec], Edited | None]
"""Makes an edit; None where it changes nothing, or cannot help."""


def repairs(
    spec: ServingSpec, constraints: Sequence[Constraint], fullest: StageMemory | None
) -> list[ServingRepair]:
    """Return what the fewest edits make possible, the best plan first."""
    edits = _edits(constraints, fullest)
    for size in range(1, MOST_EDITS + 1):
        tried = (_repaired(spec, chosen) for chosen in combinations(edits, size))
        found = [repair for repair in tried if repair is not None]
        if found:
            return sorted(found, key=lambda repair: repair.best.objective_s)
    return []


def _repaired(spec: ServingSpec, edits: Sequence[Edit]) -> ServingRepair | None:
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
    return ServingRepair(edit=" and ".join(words), best=best)


def _edits(
    constraints: Sequence[Constraint], fullest: StageMemory | None
) -> list[Edit]:
    """Return the edits to try; those that serve less come last."""
    edits: list[Edit] = [
        partial(_open, constraint.rule)
        for constraint in constraints
        if constraint.rule != MEMORY
    ]
    edits += [partial(_served, "precision", name) for name in ("fp8", "int8", "int4")]
    edits.append(partial(_served, "kv_precision", "fp8"))
    edits += [partial(_more_machines, factor) for factor in MACHINE_FACTORS]
    if fullest is not None:
        edits.append(partial(_more_memory, fullest.total_gib))
        edits.append(partial(_larger_gpu, fullest.total_gib))
    return [*edits, partial(_fewer, "prompt_len"), partial(_fewer, "batch")]


def _open(rule: str, spec: ServingSpec) -> Edited:
    return f"leave {rule} open", without(spec, [rule])


def _served(name: str, value: str | int, spec: ServingSpec) -> Edited | None:
    """Return a spec with a field of `inference` changed, if its GPU can do it."""
    old = getattr(spec.inference, name)
    inference = spec.inference.model_copy(update={name: value})
    changed = spec.model_copy(update={"inference": inference})
    known = spec.cluster.topology.gpu.peak_tflops.known
    if value == old or changed.matmul_precision not in known:
        return None
    return f"inference.{name}: {old or '16 bits'} -> {value}", changed


def _fewer(name: str, spec: ServingSpec) -> Edited | None:
    """Return a spec with a count of `inference` lowered to the most that has a plan."""

    def lowered(value: int) -> Edited | None:
        edited = _served(name, value, spec)
        return edited if edited and has_plan(edited[1]) else None

    if lowered(1) is None:
        return None
    asked = int(getattr(spec.inference, name))
    return lowered(last_true(lambda value: lowered(value) is not None, 1, asked))


def _more_machines(factor: int, spec: ServingSpec) -> Edited | None:
    cluster = spec.cluster
    if cluster.topology.scale_out is None:
        return None
    count = cluster.count * factor
    return f"cluster.count: {cluster.count} -> {count}", with_count(spec, count)


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
