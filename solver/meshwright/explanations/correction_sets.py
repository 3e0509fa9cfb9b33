"""Which decisions each legal plan goes against: the sets that free a plan when dropped.

Every row of the lattice of the spec with nothing decided breaks some of what the spec
decides. Rows that break the same decisions are told once, as bits of a whole number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, combinations

import numpy as np

from meshwright.bounds.memory_fit import Memory
from meshwright.cost.job import Job, make_job
from meshwright.explanations.fixed import HOST_MEMORY, MEMORY, TP_LINK, without
from meshwright.lattice.degrees import mesh_rows
from meshwright.lattice.lattice import Lattice, build_lattice
from meshwright.lattice.mesh_enumeration import enumerate_meshes
from meshwright.plans.columns import Bools, Ints
from meshwright.plans.rule import Rule
from meshwright.plans.skeletons import NONE, Skeletons
from meshwright.rules.legality import mesh_rules
from meshwright.rules.pins import degree_pins, plan_pins
from meshwright.spec.pins import Pins
from meshwright.spec.spec import Spec
from meshwright.topology.groups import price_groups


@dataclass(frozen=True)
class Decisions:
    """Names of decisions, and sets of them as bits."""

    names: tuple[str, ...]

    def bits(self, names: Iterable[str]) -> int:
        """Return a set of names as bits; what is no decision is left out."""
        return sum(1 << self.names.index(n) for n in set(names) if n in self.names)

    def named(self, bits: int) -> tuple[str, ...]:
        """Return the names of a set, in order."""
        return tuple(n for i, n in enumerate(self.names) if bits >> i & 1)

    @property
    def every(self) -> int:
        """Return the set of all of them."""
        return (1 << len(self.names)) - 1


def freeing_sets(spec: Spec, decisions: Decisions) -> list[int]:
    """Return the smallest sets of decisions without which a row has room, as bits.

    None of them holds another one. Stages that are pinned, links that are limited and
    where ranks sit are not looked at. Rows that break the least are asked for room
    first, and those that break all of a set that is known are not asked.
    """
    lattice = build_lattice(make_job(without(spec, decisions.names)))
    of_meshes = _against_meshes(spec, decisions, lattice)
    groups = list(_groups(spec, decisions, lattice))
    found: list[int] = []
    for size in range(len(decisions.names) + 1):
        for group in groups:
            own = group.rows(size, found)
            if not own.any():
                continue
            rows, against = lattice.take(np.flatnonzero(own)), group.against[own]
            fits = Memory(group.job, rows).fits()
            pairs = zip(rows.degree[fits].tolist(), against[fits].tolist(), strict=True)
            sets = {bits | mesh for d, bits in set(pairs) for mesh in of_meshes[d]}
            found = minimal([*found, *sets])
    return found


@dataclass(frozen=True)
class _Group:
    """The rows of a lattice under some capacities, and what they break with those."""

    job: Job
    """Has the capacities, and whether every layer is recomputed."""
    against: Ints

    def rows(self, size: int, found: list[int]) -> Bools:
        """Return the rows that break `size` decisions, and none of the sets found."""
        values, inverse = self._distinct
        asked = [
            bits.bit_count() == size and not any(own & bits == own for own in found)
            for bits in values.tolist()
        ]
        return np.array(asked, dtype=bool)[inverse]

    @cached_property
    def _distinct(self) -> tuple[Ints, Ints]:
        values, inverse = np.unique(self.against, return_inverse=True)
        return values, inverse


def minimal(sets: Iterable[int]) -> list[int]:
    """Return the sets that hold no other one, the smallest first."""
    kept: list[int] = []
    for own in sorted(set(sets), key=lambda bits: (bits.bit_count(), bits)):
        if not any(less & own == less for less in kept):
            kept.append(own)
    return kept


def broken_sets(
    names: Decisions,
    rules: Iterable[tuple[str, Rule]],
    spec: Spec,
    rows: Skeletons,
) -> Ints:
    """Return which names each row breaks a rule of, as bits."""
    result = np.zeros(len(rows), dtype=np.int64)
    for name, rule in rules:
        result |= np.where(rule.holds(spec, rows), 0, names.bits([name]))
    return result


def _against_pins(spec: Spec, decisions: Decisions, lattice: Lattice) -> Ints:
    """Return the pins that each row breaks."""
    rules = ((_decision(r), r) for r in (*degree_pins(spec), *plan_pins(spec)))
    return broken_sets(decisions, rules, spec, lattice.rows)


def _decision(rule: Rule) -> str:
    """Return the decision that a rule of pins and limits stands for."""
    if rule.name == "tp_link_bandwidth":
        return TP_LINK
    return "pins." + rule.name.removeprefix("pin ").partition(".")[0]


def _against_meshes(
    spec: Spec, decisions: Decisions, lattice: Lattice
) -> list[list[int]]:
    """Return, for each of the lattice's degrees, what its meshes break."""
    sizes, fabric = lattice.fabric.sizes, lattice.fabric
    if spec.limits.tp_min_link_gb_s is None and spec.pins.mesh is None:
        return [[0]] * len(lattice.degrees)
    result = []
    for degrees in lattice.degrees:
        meshes = enumerate_meshes(sizes, degrees)
        rows = mesh_rows(meshes, price_groups(fabric, meshes))
        rules = ((_decision(rule), rule) for rule in mesh_rules(spec, meshes))
        against = broken_sets(decisions, rules, spec, rows)
        result.append(minimal(against.tolist()))
    return result


def _groups(spec: Spec, decisions: Decisions, lattice: Lattice) -> Iterator[_Group]:
    """Yield the rows with all capacities kept, and with some dropped.

    Where all layers are to be recomputed, rows that do so and rows that choose how
    many are told apart: the second go against it.
    """
    pinned = _against_pins(spec, decisions, lattice)
    some = np.where(lattice.rows.recompute == NONE, 0, _every_layer(spec, decisions))
    every = Pins(recompute_layers="all")
    choices = (
        [(every, pinned), (Pins(), pinned | some)] if some.any() else [(Pins(), pinned)]
    )
    known = [name for name in (MEMORY, HOST_MEMORY) if name in decisions.names]
    for pins, against in choices:
        own = spec.model_copy(update={"pins": pins})
        for dropped in chain.from_iterable(
            combinations(known, n) for n in range(len(known) + 1)
        ):
            job = replace(lattice.table.job, spec=without(own, dropped))
            yield _Group(job, against | decisions.bits(dropped))


def _every_layer(spec: Spec, decisions: Decisions) -> int:
    """Return the pin that has every layer recomputed, if there is one."""
    own = spec.pins
    if not own.recomputes_all_layers or own.recompute == ("none",):
        return 0
    is_said = own.recompute_layers is not None
    return decisions.bits(["pins.recompute_layers" if is_said else "pins.recompute"])
