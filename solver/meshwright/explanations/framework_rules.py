"""Which rules of the framework a conflict leans on: without one there might be plans.

Decisions clash because rules of legality leave them no way around each other. Every
way to split the job that keeps the decisions of the conflict, legal or not, breaks
some rules; a smallest set of rules that meets all of those is named beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from meshwright.bounds.memory_fit import Memory
from meshwright.cost.job import Job, make_job
from meshwright.explanations.conflict import costly_decisions, smallest_hit
from meshwright.explanations.correction_sets import Decisions, broken_sets, minimal
from meshwright.explanations.fixed import HOST_MEMORY, MEMORY, fixed_in, without
from meshwright.lattice.degrees import degree_rows, enumerate_degrees
from meshwright.lattice.lattice import Lattice
from meshwright.lattice.mesh_table import MeshTable, legal_meshes
from meshwright.lattice.unplaced_choices import coarse_rows, even_chunks, with_choices
from meshwright.plans.columns import Ints
from meshwright.plans.rule import Rule, holding
from meshwright.results.explanation import Fixed
from meshwright.rules.legality import framework_degree_rules, framework_rules
from meshwright.rules.pins import degree_pins, plan_pins
from meshwright.spec.pins import Pins
from meshwright.spec.plan_fields import OFFLOADS
from meshwright.spec.spec import Spec

WORLD = Fixed(rule="world_size", sentence="the degrees multiply to the number of GPUs")
CHUNKS = Fixed(
    rule="chunks_even",
    sentence="under interleaving pp x vpp divides the layers",
)
PLACED = Fixed(rule="layers_placed", sentence="the stages hold all layers")


def rules_behind(spec: Spec, conflict: Iterable[str]) -> tuple[Fixed, ...]:
    """Return a smallest set of rules that leaves a conflict's decisions no plan.

    It is empty where the decisions leave none whatever the framework's rules, and
    where only a solve tells whether a decision holds.
    """
    kept = set(conflict)
    if "pins.layers" in kept and sum(spec.pins.layers or ()) != spec.model.n_layers:
        return (PLACED,)
    if kept & set(costly_decisions(spec)) or spec.cluster.parts:
        return ()
    own = without(spec, [one.rule for one in fixed_in(spec) if one.rule not in kept])
    job = make_job(own)
    degrees = _kept_degrees(job)
    if not len(degrees):
        return (WORLD,)
    degrees = degrees[[_has_mesh(job, each) for each in degrees]]
    lattice = _any_rows(job, degrees)
    if not len(lattice) and "pins.vpp" in kept:
        return (CHUNKS,)
    if kept & {MEMORY, HOST_MEMORY}:
        lattice = lattice.take(np.flatnonzero(Memory(job, lattice).fits()))
    rules = [(rule.name, rule) for rule in _rules(own)]
    sentences = {name: rule.sentence for name, rule in reversed(rules)}
    names = Decisions(tuple(dict.fromkeys(name for name, _ in rules)))
    sets = np.unique(broken_sets(names, rules, own, lattice.rows)).tolist()
    hit = smallest_hit(minimal(sets), len(names.names))
    return tuple(Fixed(rule=n, sentence=sentences[n]) for n in names.named(hit))


def _kept_degrees(job: Job) -> Ints:
    """Return the degrees that keep the pins on them, legal or not."""
    spec = job.spec
    degrees, _ = enumerate_degrees((math.prod(job.fabric.sizes),))
    return degrees[holding(degree_pins(spec), spec, degree_rows(degrees))]


def _has_mesh(job: Job, degrees: Ints) -> bool:
    """Return whether some mesh of the degrees keeps the decisions on where axes lie."""
    is_free = job.spec.pins.mesh is None and job.spec.limits.tp_min_link_gb_s is None
    return is_free or len(legal_meshes(job, degrees)) > 0


def _any_rows(job: Job, degrees: Ints) -> Lattice:
    """Return every row with the pins kept, legal or not.

    Where nothing is said, schedules other than 1F1B and chunks are left out: they hold
    no less, and break no fewer rules.
    """
    spec = _plain(job.spec)
    layouts = coarse_rows(spec, degrees)
    chunks = even_chunks(spec, layouts.rows)
    every = with_choices(spec, layouts, plan_pins(spec), chunks)
    copies = np.ones(len(degrees), dtype=np.int64)
    return Lattice(job.fabric, every, degrees, copies, MeshTable(job))


def _plain(spec: Spec) -> Spec:
    """Return a spec with what is open pinned to the plainest, or to all there is.

    What a framework offloads is a rule of its own, so that all of it is tried.
    """
    plain: dict[str, object] = {"schedule": ("1f1b",), "vpp": {"values": (1,)}}
    if spec.cluster.topology.host is not None:
        plain["offload"] = OFFLOADS
    given = {k: v for k, v in plain.items() if getattr(spec.pins, k) is None}
    pins = Pins.model_validate(spec.pins.model_dump() | given)
    return spec.model_copy(update={"pins": pins})


def _rules(spec: Spec) -> list[Rule]:
    """Return the rules of legality that apply to a spec."""
    return [*framework_degree_rules(spec), *framework_rules(spec)]
