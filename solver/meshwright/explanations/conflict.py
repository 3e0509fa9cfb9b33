"""Why nothing fits: the smallest set of decisions that excludes every plan.

Skeletons are grouped by the set of decisions that they break. A smallest conflict meets
all of those sets; the cheapest repair is the lightest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations

import numpy as np

from meshwright.cost.job import Job, make_job
from meshwright.errors import InternalError
from meshwright.explanations.decisions import (
    HOST_MEMORY,
    LINK_SHARE,
    MEMORY,
    TP_LINK,
    USER_RULE,
    decisions_in,
    without_decisions,
)
from meshwright.frameworks.base.registry import offered_sets
from meshwright.planner.degrees import enumerate_meshes, mesh_rows
from meshwright.planner.legal_ways import LegalWays
from meshwright.planner.memory_fit import fitting
from meshwright.planner.rows import Lattice, build_lattice
from meshwright.planner.unplaced import recomputation
from meshwright.plans.columns import Ints, representatives
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import Skeletons
from meshwright.rules.legality import (
    chosen_degree_rules,
    chosen_plan_rules,
    rare_mesh_rules,
)
from meshwright.rules.user_rules import rule_name, split_dependent
from meshwright.spec.plan_fields import FIELD, RECOMPUTE_MODES, Pins, Range
from meshwright.spec.spec import Spec
from meshwright.topology.groups import price_groups

HasPlan = Callable[[Spec], bool]


@dataclass(frozen=True)
class Infeasibility:
    """Why a spec has no plan: its decisions, a conflict and the correction sets."""

    decisions: NamedBits
    conflict: int
    """A smallest set of decisions that no plan keeps together, as bits."""
    correction_sets: list[int]
    """Sets without which there is a plan, smallest first; all, if `is_complete`."""
    is_complete: bool


def analyse_infeasibility(spec: Spec, has_plan: HasPlan) -> Infeasibility:
    """Return which decisions of a spec without a plan conflict.

    `has_plan` is called only where the memory test of skeletons cannot tell whether a
    plan exists.
    """
    decisions = NamedBits(tuple(decision.rule for decision in decisions_in(spec)))
    solve_only = decisions.bits(solve_only_decisions(spec))
    is_complete = not solve_only and not spec.cluster.parts
    known: list[int] = []
    if not spec.cluster.parts:
        known = minimal_sets(
            dropped | solve_only for dropped in correction_sets(spec, decisions)
        )

    def is_possible(kept: int) -> bool:
        if is_complete:
            return any(not dropped & kept for dropped in known)
        open_names = decisions.names_of(~kept)
        return has_plan(without_decisions(spec, open_names))

    conflict, known = smallest_conflict(decisions, known, is_possible)
    return Infeasibility(decisions, conflict, known, is_complete)


def smallest_conflict(
    decisions: NamedBits, known: list[int], is_possible: Callable[[int], bool]
) -> tuple[int, list[int]]:
    """Return a smallest conflict as bits, and all correction sets known at the end.

    These are `known` and the sets found on the way. `is_possible` tells whether there
    is a plan that keeps a set of decisions.
    """
    count = len(decisions.names)
    while is_possible(conflict := smallest_hitting_set(known, count)):
        kept = _maximal_possible(conflict, count, is_possible)
        known = minimal_sets([*known, decisions.every & ~kept])
    return conflict, known


@dataclass(frozen=True)
class NamedBits:
    """One bit for each name, so that a set of names is an int."""

    names: tuple[str, ...]

    def bits(self, names: Iterable[str]) -> int:
        """Return a set of names as bits; unknown names are left out."""
        return sum(1 << self.names.index(n) for n in set(names) if n in self.names)

    def names_of(self, bits: int) -> tuple[str, ...]:
        """Return the names in a set, in the order of `names`."""
        return tuple(n for i, n in enumerate(self.names) if bits >> i & 1)

    @property
    def every(self) -> int:
        """Return the set of all names."""
        return (1 << len(self.names)) - 1


def correction_sets(spec: Spec, decisions: NamedBits) -> list[int]:
    """Return the smallest sets of decisions without which a skeleton fits, as bits.

    None of them contains another one. Pinned stages, limits on links and the placement
    of ranks are not looked at. Skeletons that break the fewest decisions are tested for
    memory first, up to one that fits; those that break all of a set already found are
    not tested.
    """
    lattice = build_lattice(make_job(_open(spec, decisions)))
    broken = BrokenSets.of(decisions, _chosen_rules(spec), spec, lattice)
    by_meshes = _broken_by_meshes(spec, decisions, lattice)
    jobs = _without_capacities(spec, decisions, lattice)
    found: list[int] = []
    pairs = [(dropped, value) for dropped in jobs for value in broken.values]
    for dropped, value in sorted(pairs, key=lambda pair: sum(pair).bit_count()):
        if not contains_any(dropped | value, found):
            rows = broken.breaking([value])
            meshes = _sets_of_meshes(jobs[dropped], rows, by_meshes)
            found = minimal_sets([*found, *(dropped | value | m for m in meshes)])
    return found


@dataclass(frozen=True)
class BrokenSets:
    """The skeletons of a lattice by the names that they break, as bits.

    Few sets of names occur; skeletons are listed only where they are asked for.
    """

    lattice: Lattice
    pattern: Ints
    """Pattern of each base skeleton."""
    bits: Ints
    """What the ways of each pattern break, (patterns, ways); -1 for illegal ways."""

    @classmethod
    def of(
        cls,
        names: NamedBits,
        rules: Sequence[tuple[str, Rule]],
        spec: Spec,
        lattice: Lattice,
    ) -> BrokenSets:
        """Return the sets of the names of rules that skeletons of a lattice break."""
        legal = lattice.unplaced.legal
        case, rows = lattice.unplaced.patterns(spec, [rule for _, rule in rules])
        bits = broken_rule_bits(names, rules, spec, rows)
        bits = bits.reshape(-1, lattice.unplaced.way_count)
        one, pattern = representatives(case * len(legal.allowed) + legal.pattern)
        allowed = legal.allowed[legal.pattern[one]]
        return cls(lattice, pattern, np.where(allowed, bits[case[one]], -1))

    @property
    def values(self) -> list[int]:
        """Return the sets that occur, as bits."""
        found: list[int] = np.unique(self.bits).tolist()
        return [bits for bits in found if bits >= 0]

    def breaking(self, values: Sequence[int]) -> Lattice:
        """Return the skeletons that break one of some sets."""
        legal = LegalWays(self.pattern, np.isin(self.bits, values))
        unplaced = replace(self.lattice.unplaced, legal=legal)
        return replace(self.lattice, unplaced=unplaced)


def _sets_of_meshes(
    job: Job, lattice: Lattice, by_meshes: Sequence[list[int]]
) -> set[int]:
    """Return the sets that meshes of the skeletons that fit break."""
    found: set[int] = set()
    for part in fitting(job, lattice):
        degrees = np.unique(part.degree).tolist()
        found.update(chain.from_iterable(by_meshes[degree] for degree in degrees))
        if 0 in found:
            break
    return found


def contains_any(bits: int, sets: Iterable[int]) -> bool:
    """Return whether a set contains one of others."""
    return any(smaller & bits == smaller for smaller in sets)


def minimal_sets(sets: Iterable[int]) -> list[int]:
    """Return the sets that contain no other one, the smallest first."""
    kept: list[int] = []
    for bits in sorted(set(sets), key=lambda bits: (bits.bit_count(), bits)):
        if not contains_any(bits, kept):
            kept.append(bits)
    return kept


def broken_rule_bits(
    names: NamedBits,
    rules: Iterable[tuple[str, Rule]],
    spec: Spec,
    rows: Skeletons,
) -> Ints:
    """Return, for each skeleton, the names of the rules that it breaks, as bits."""
    result = np.zeros(len(rows), dtype=np.int64)
    for name, rule in rules:
        result |= np.where(rule.holds(spec, rows), 0, names.bits([name]))
    return result


def _open(spec: Spec, decisions: NamedBits) -> Spec:
    """Return a spec without decisions, whose lattice still has the values of its pins.

    Sets of modules that free nothing are tried only where pins name them, and so are
    segments of many layers, and modes that a search leaves out.
    """
    relaxed, pins = without_decisions(spec, decisions.names), spec.pins
    open_pins: dict[str, object] = {}
    if pins.recompute_modules:
        offered = map(FIELD["recompute_modules"].decoded, offered_sets(spec))
        named = ("", *map(str, offered), *pins.recompute_modules)
        open_pins["recompute_modules"] = tuple(dict.fromkeys(named))
    if not {*(pins.recompute or ())} <= {"none", "selective", "full"}:
        modes = {RECOMPUTE_MODES[code] for code, *_ in recomputation(spec)}
        open_pins["recompute"] = tuple(sorted(modes, key=RECOMPUTE_MODES.index))
    if pins.recompute_segment:
        tried = {code for *_, code in recomputation(spec)}
        open_pins["recompute_segment"] = Range(values=tuple(sorted(tried)))
    return relaxed.having("pins", **open_pins)


def _chosen_rules(spec: Spec) -> list[tuple[str, Rule]]:
    """Return the rules of pins, of limits and of users, with their decisions."""
    chosen = (*chosen_degree_rules(spec), *chosen_plan_rules(spec))
    return [(_decision_of(rule), rule) for rule in chosen]


def _decision_of(rule: Rule) -> str:
    """Return the name of the decision that a rule of pins or limits enforces."""
    if rule.name == "tp_link_bandwidth":
        return TP_LINK
    if rule.name.startswith(USER_RULE):
        return rule.name
    return "pins." + rule.name.removeprefix("pin ").partition(".")[0]


def _broken_by_meshes(
    spec: Spec, decisions: NamedBits, lattice: Lattice
) -> list[list[int]]:
    """Return, for each tuple of degrees, the minimal sets that its meshes break."""
    sizes, fabric = lattice.fabric.sizes, lattice.fabric
    if spec.limits.tp_min_link_gb_s is None and spec.pins.mesh is None:
        return [[0]] * len(lattice.degrees)
    result = []
    for degrees in lattice.degrees:
        meshes = enumerate_meshes(sizes, degrees, spec.tp_levels)
        rows = mesh_rows(meshes, price_groups(fabric, meshes))
        rules = ((_decision_of(rule), rule) for rule in rare_mesh_rules(spec, meshes))
        broken = broken_rule_bits(decisions, rules, spec, rows)
        result.append(minimal_sets(broken.tolist()))
    return result


def _without_capacities(
    spec: Spec, decisions: NamedBits, lattice: Lattice
) -> dict[int, Job]:
    """Return the job without pins and rules of users, by capacities that it drops.

    A pin that recomputes all layers stands in the way of none: a stage takes no more
    memory with all of them recomputed than with some.
    """
    repinned = spec.model_copy(update={"pins": Pins(), "rules": ()})
    known = [name for name in (MEMORY, HOST_MEMORY) if name in decisions.names]
    jobs = {}
    for dropped in chain.from_iterable(
        combinations(known, n) for n in range(len(known) + 1)
    ):
        of_spec = without_decisions(repinned, dropped)
        jobs[decisions.bits(dropped)] = replace(lattice.table.job, spec=of_spec)
    return jobs


def solve_only_decisions(spec: Spec) -> list[str]:
    """Return the decisions that only a solve can check.

    The test whether a skeleton fits in memory does not cover them.
    """
    pins, limits = spec.pins, spec.limits
    is_decided = {
        "pins.layers": pins.layers is not None,
        "pins.recompute_layers": pins.stage_recompute is not None,
        LINK_SHARE: limits.max_link_utilisation is not None,
        TP_LINK: limits.tp_min_link_gb_s is not None and not spec.cluster.is_tree,
    }
    of_splits = [rule_name(rule) for rule in split_dependent(spec)]
    return [name for name, is_here in is_decided.items() if is_here] + of_splits


def any_skeleton_fits(spec: Spec) -> bool:
    """Return whether at least one skeleton of the lattice fits in memory."""
    job = make_job(spec)
    return any(len(part) for part in fitting(job, build_lattice(job)))


def smallest_hitting_set(sets: Sequence[int], count: int) -> int:
    """Return a smallest set that shares a member with every one of `sets`, as bits.

    Among several of that size, it is the one with the lowest bits. All sets have bits
    below `count`.

    Raises:
        InternalError: one of the sets is empty.
    """
    for size in range(count + 1) if all(sets) else ():
        for members in combinations(range(count), size):
            hit = sum(1 << member for member in members)
            if all(hit & members_of_set for members_of_set in sets):
                return hit
    raise InternalError("rows of the lattice have room where no plan was found")


def _maximal_possible(kept: int, count: int, is_possible: Callable[[int], bool]) -> int:
    """Return the set with every decision added that still allows a plan."""
    for member in range(count):
        more = kept | 1 << member
        if more != kept and is_possible(more):
            kept = more
    return kept
