"""The rules of the framework that make decisions conflict.

Decisions conflict because the rules of legality leave no way around them. Every
skeleton that keeps the decisions of the conflict, legal or not, breaks some rules. A
smallest set of rules that shares one with each of those sets of broken rules is named
beside the conflict: without these rules there might be a plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from meshwright.bounds.memory_fit import MemoryFit
from meshwright.cost.job import Job, make_job
from meshwright.explanations.conflict import smallest_hitting_set, solve_only_decisions
from meshwright.explanations.correction_sets import (
    NamedBits,
    broken_rule_bits,
    minimal_sets,
)
from meshwright.explanations.decisions import (
    HOST_MEMORY,
    MEMORY,
    decisions_in,
    without_decisions,
)
from meshwright.lattice.degrees import degree_rows, enumerate_degrees
from meshwright.lattice.lattice import Lattice
from meshwright.lattice.mesh_table import MeshTable, legal_meshes
from meshwright.lattice.unplaced_choices import even_chunks, list_layouts, list_unplaced
from meshwright.plans.columns import Ints
from meshwright.plans.rule import Rule, holding
from meshwright.results.explanation import Constraint
from meshwright.rules.legality import framework_degree_rules, framework_rules
from meshwright.rules.pins import degree_pins, plan_pins
from meshwright.spec.pins import Pins
from meshwright.spec.plan_fields import OFFLOADS
from meshwright.spec.spec import Spec

WORLD_SIZE = Constraint(
    rule="world_size", sentence="the degrees multiply to the number of GPUs"
)
EVEN_CHUNKS = Constraint(
    rule="chunks_even",
    sentence="under interleaving vpp divides the layers of the largest stage",
)
ALL_LAYERS_PLACED = Constraint(
    rule="layers_placed", sentence="the stages hold all layers"
)


def rules_behind(spec: Spec, conflict: Iterable[str]) -> tuple[Constraint, ...]:
    """Return a smallest set of rules that makes the decisions of a conflict clash.

    It is empty where the decisions conflict under any rules of the framework, and where
    only a solve tells whether a decision holds.
    """
    kept = set(conflict)
    if "pins.layers" in kept and sum(spec.pins.layers or ()) != spec.model.n_layers:
        return (ALL_LAYERS_PLACED,)
    if kept & set(solve_only_decisions(spec)) or spec.cluster.parts:
        return ()
    others = [d.rule for d in decisions_in(spec) if d.rule not in kept]
    relaxed = without_decisions(spec, others)
    job = make_job(relaxed)
    degrees = _degrees_within_pins(job)
    if not len(degrees):
        return (WORLD_SIZE,)
    degrees = degrees[[_has_mesh(job, one) for one in degrees]]
    lattice = _skeletons_within_pins(job, degrees)
    if not len(lattice) and "pins.vpp" in kept:
        return (EVEN_CHUNKS,)
    if kept & {MEMORY, HOST_MEMORY}:
        lattice = lattice.take(np.flatnonzero(MemoryFit(job, lattice).is_fitting()))
    rules = [(rule.name, rule) for rule in _legality_rules(relaxed)]
    sentences = {name: rule.sentence for name, rule in reversed(rules)}
    names = NamedBits(tuple(dict.fromkeys(name for name, _ in rules)))
    sets = np.unique(broken_rule_bits(names, rules, relaxed, lattice.rows)).tolist()
    hit = smallest_hitting_set(minimal_sets(sets), len(names.names))
    return tuple(Constraint(rule=n, sentence=sentences[n]) for n in names.names_of(hit))


def _degrees_within_pins(job: Job) -> Ints:
    """Return all degrees, legal or not, that keep the pins on degrees."""
    spec = job.spec
    degrees, _ = enumerate_degrees((math.prod(job.fabric.sizes),))
    return degrees[holding(degree_pins(spec), spec, degree_rows(degrees))]


def _has_mesh(job: Job, degrees: Ints) -> bool:
    """Return whether some mesh of these degrees keeps the pins and limits on meshes."""
    is_free = job.spec.pins.mesh is None and job.spec.limits.tp_min_link_gb_s is None
    return is_free or len(legal_meshes(job, degrees)) > 0


def _skeletons_within_pins(job: Job, degrees: Ints) -> Lattice:
    """Return all skeletons, legal or not, that keep the pins.

    Unless pinned, schedules other than 1F1B and interleaved chunks are left out: they
    need no less memory and break no fewer rules.
    """
    spec = _with_plain_pins(job.spec)
    layouts = list_layouts(spec, degrees)
    chunks = even_chunks(spec, layouts.rows)
    rows = list_unplaced(spec, layouts, plan_pins(spec), chunks)
    copies = np.ones(len(degrees), dtype=np.int64)
    return Lattice(job.fabric, rows, degrees, copies, MeshTable(job))


def _with_plain_pins(spec: Spec) -> Spec:
    """Return the spec with schedule and chunks pinned to 1F1B, unless pinned already.

    All offloads are allowed, since what a framework offloads is one of its rules.
    """
    plain: dict[str, object] = {"schedule": ("1f1b",), "vpp": {"values": (1,)}}
    if spec.cluster.topology.host is not None:
        plain["offload"] = OFFLOADS
    given = {k: v for k, v in plain.items() if getattr(spec.pins, k) is None}
    pins = Pins.model_validate(spec.pins.model_dump() | given)
    return spec.model_copy(update={"pins": pins})


def _legality_rules(spec: Spec) -> list[Rule]:
    """Return the rules of legality that apply to a spec."""
    return [*framework_degree_rules(spec), *framework_rules(spec)]
