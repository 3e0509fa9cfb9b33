"""The cover: a tree of decisions whose leaves say what refuses all skeletons below.

Every value of every decision has a place, also of plans that are not legal. A leaf that
is refused by memory or time may hold plans that rules refuse too: of those nothing is
said. Leaves that refuse for the same reason are one, with the least of their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.certificates.domain import (
    DECISIONS,
    DEGREES,
    FREEING,
    Domain,
    RuleList,
)
from meshwright.certificates.survey import (
    MEASURED_AT_ONCE,
    MEMORY,
    SLOWER,
    Refusal,
    Row,
    Survey,
    told_terms,
)
from meshwright.plans.columns import Bools, Floats, Ints, ranges
from meshwright.plans.simplicity import WHOLE
from meshwright.spec.plan_fields import AXES

RULE, OPEN = 0, 3
"""The kinds of what is not legal, and of what is listed in all ways to free memory."""


@dataclass
class Leaf:
    """The refusal of everything below one or several values of a decision."""

    kind: int
    refusal: Refusal | None = None
    rules: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """Which rules refuse all of it, where it is not legal."""
    unit: int = WHOLE
    """The least price of a tick below it."""
    rows: list[tuple[tuple[int, ...], Ints]] = field(default_factory=list)
    """Rows that a rule refuses, by their degrees."""

    @property
    def value(self) -> int:
        """Return the number of its refusal."""
        assert self.refusal is not None
        return self.refusal.value


@dataclass
class Branch:
    """One decision, and a subtree for each group of its values."""

    level: int
    of: list[tuple[list[int], Leaf | Branch]]


Node = Leaf | Branch

Asked = tuple[Row, bool, dict[str, Any]]
"""A skeleton whose terms are told, whether with times, and where."""


class Cover:
    """Builds the tree from a survey."""

    def __init__(self, domain: Domain, survey: Survey) -> None:
        """State the refusals for each of the degrees."""
        self.domain, self.survey, self.need = domain, survey, survey.need
        self.rule_list = RuleList(domain)
        self._asked: list[Asked] = []
        lattice = survey.lattice
        order = [AXES.index(name) for name in DECISIONS[:DEGREES]]
        names = [tuple(row) for row in lattice.degrees[:, order].tolist()]
        by_degree = np.argsort(survey.degree, kind="stable")
        edges = np.searchsorted(survey.degree[by_degree], np.arange(len(names) + 1))
        self._families = {
            name: by_degree[edges[place] : edges[place + 1]]
            for place, name in enumerate(names)
        }
        self._near_of = np.zeros(len(survey.families) + 1, dtype=np.int64)
        count = np.where(survey.is_slow, 0, survey.families.count)
        self._near_of[1:] = np.cumsum(count)

    def told(self) -> dict[str, Any]:
        """Return the tree as the certificate has it."""
        results = [self._of_degrees(degrees) for degrees in self.domain.degrees]
        tree = self._joined(0, list(zip(self.domain.degrees, results, strict=True)))
        if isinstance(tree, Leaf):
            values = dict.fromkeys(degrees[0] for degrees in self.domain.degrees)
            tree = Branch(0, [([*values], tree)])
        told = self._told(tree)
        self._fill_terms()
        return told

    def _joined(self, level: int, below: list[tuple[tuple[int, ...], Node]]) -> Node:
        """Return the node of some degrees that are equal in the first decisions."""
        nodes = [node for _, node in below]
        if level == DEGREES:
            return nodes[0]
        # Memory and time refuse the skeletons of one set of degrees at a time.
        leaves = [node for node in nodes if isinstance(node, Leaf)]
        if len(leaves) == len(nodes) and all(leaf.kind == RULE for leaf in leaves):
            whole = self.one_leaf(leaves)
            if whole is not None:
                return whole
        values = dict.fromkeys(degrees[level] for degrees, _ in below)
        children = [
            (value, self._joined(level + 1, [b for b in below if b[0][level] == value]))
            for value in values
        ]
        return self.merged(level, children)

    def one_leaf(self, leaves: Sequence[Leaf]) -> Leaf | None:
        """Return one leaf in place of several, None if they do not refuse alike."""
        legal = [leaf for leaf in leaves if leaf.kind != RULE]
        if not legal:
            rules: Bools = np.all([leaf.rules for leaf in leaves], axis=0)
            rows = [row for leaf in leaves for row in leaf.rows]
            return Leaf(RULE, rules=rules, rows=rows) if rules.any() else None
        kinds = {leaf.kind for leaf in legal}
        if len(kinds) > 1:
            return None
        if kinds == {MEMORY}:
            return max(legal, key=lambda leaf: leaf.value)
        slowest = min(legal, key=lambda leaf: leaf.value)
        unit = min(leaf.unit for leaf in leaves)
        whole = Leaf(SLOWER, slowest.refusal, unit=unit)
        return whole if self.is_enough(whole) else None

    def is_enough(self, leaf: Leaf) -> bool:
        """Return whether the bound of a leaf refuses a group of skeletons."""
        return bool(self.are_enough(np.array([leaf.value]), np.array([leaf.unit]))[0])

    def are_enough(self, ticks: Ints | Floats, unit: Ints) -> Bools:
        """Return whether bounds refuse groups whose ticks cost at least some units."""
        need = self.need
        price = ticks * (unit if need.pricing.is_doubted else 1)
        is_dear = (price > need.most) & (price >= need.least)
        return np.asarray(is_dear & (ticks >= max(need.ticks, need.most_near + 1)))

    def merged(self, level: int, children: list[tuple[int, Node]]) -> Branch:
        """Return a branch whose leaves that refuse alike are one."""
        of: list[tuple[list[int], Node]] = []
        left: dict[int, list[tuple[int, Leaf]]] = {RULE: [], MEMORY: [], SLOWER: []}
        for value, node in children:
            if isinstance(node, Branch) or self._stands_alone(node, level):
                of.append(([value], node))
            else:
                left[node.kind].append((value, node))
        of += self._alike(left[MEMORY])
        of += self._alike(left[SLOWER])
        rules = left[RULE]
        while rules:
            counts = np.sum([leaf.rules for _, leaf in rules], axis=0)
            rule = int(counts.argmax())
            alike = [(v, leaf) for v, leaf in rules if _refuses(leaf, rule)]
            rules = [(v, leaf) for v, leaf in rules if not _refuses(leaf, rule)]
            whole = self.one_leaf([leaf for _, leaf in alike])
            assert whole is not None
            of.append(([value for value, _ in alike], whole))
        return Branch(level, sorted(of, key=lambda branch: branch[0][0]))

    def _stands_alone(self, leaf: Leaf, level: int) -> bool:
        """Return whether a leaf is not joined with others of its kind.

        Memory and time refuse the skeletons of one set of degrees at a time.
        """
        is_open = leaf.kind == SLOWER and not self.is_enough(leaf)
        return is_open or (leaf.kind != RULE and level < DEGREES)

    def _alike(self, leaves: list[tuple[int, Leaf]]) -> list[tuple[list[int], Node]]:
        """Return leaves of memory, or of time, as few as refuse all of them."""
        whole = self.one_leaf([leaf for _, leaf in leaves]) if leaves else None
        if whole is not None:
            return [([value for value, _ in leaves], whole)]
        found: list[tuple[list[int], Node]] = []
        for unit in sorted({leaf.unit for _, leaf in leaves}):
            alike = [(value, leaf) for value, leaf in leaves if leaf.unit == unit]
            one = self.one_leaf([leaf for _, leaf in alike])
            assert one is not None
            found.append(([value for value, _ in alike], one))
        return found

    def _of_degrees(self, degrees: tuple[int, ...]) -> Node:
        """Return the refusals of all skeletons of some degrees."""
        refused = self.domain.refused_degrees.get(degrees)
        if refused is not None:
            rest = len(self.domain.rules) - len(refused)
            rules = np.append(refused, np.zeros(rest, dtype=bool))
            return Leaf(RULE, rules=rules, rows=[(degrees, np.zeros((0, 0), int))])
        families = self._families[degrees]
        if len(families) and self.survey.is_slow[families].all():
            leaf = self._slowest(families)
            if self.is_enough(leaf):
                return leaf
        rows = _rows_of(self, degrees, families)
        return rows.node(DEGREES, 0, len(rows.rows))

    def _slowest(self, families: Ints) -> Leaf:
        """Return families as one leaf with the least of their bounds."""
        first = int(self.survey.families.lower[families].argmin())
        return Leaf(SLOWER, self.survey.of_family(int(families[first])))

    @property
    def ways(self) -> int:
        """Return in how many ways each row may free memory."""
        return len(self.domain.offloads) * len(self.domain.ways)

    def unit_of(self, degrees: tuple[int, ...], rows: Ints) -> Ints:
        """Return the price of a tick of rows."""
        return self.need.pricing.of(self.domain.skeletons(degrees, rows))

    def near_places(self, family: int) -> Ints:
        """Return the places in the survey of the skeletons of a family."""
        return np.arange(self._near_of[family], self._near_of[family + 1])

    def _told(self, node: Node) -> dict[str, Any]:
        if isinstance(node, Branch):
            of = [[values, self._told(child)] for values, child in node.of]
            return {"by": DECISIONS[node.level], "of": of}
        if node.kind == RULE:
            rule = int(node.rules.argmax())
            return {"rule": self.rule_list.number(rule, node.rows)}
        refusal = node.refusal
        assert refusal is not None
        kind = "memory" if node.kind == MEMORY else "slower"
        terms = self._terms_of(refusal.row, has_times=node.kind != MEMORY)
        told = {kind: refusal.value, "terms": terms}
        if refusal.demands:
            told["demands"] = [
                {
                    "equal": int(demand.equal_stages),
                    "whole": int(demand.whole_recompute),
                    "ticks": ticks,
                    "terms": self._terms_of(row),
                }
                for demand, ticks, row in refusal.demands
            ]
        return told

    def _terms_of(self, row: Row, *, has_times: bool = True) -> dict[str, Any]:
        """Return a mapping that will hold the terms of a skeleton."""
        self._asked.append((row, has_times, {}))
        return self._asked[-1][2]

    def _fill_terms(self) -> None:
        """Tell all terms that were asked for, those of one table of costs at once."""
        tables: dict[tuple[int, bool, bool], list[Asked]] = {}
        for asked in self._asked:
            row, has_times, _ = asked
            key = id(row.costs), row.has_memory, has_times
            tables.setdefault(key, []).append(asked)
        for alike in tables.values():
            for start in range(0, len(alike), MEASURED_AT_ONCE):
                self._fill(alike[start : start + MEASURED_AT_ONCE])

    def _fill(self, alike: list[Asked]) -> None:
        """Tell the terms of skeletons of one table of costs, or of the lattice."""
        row, has_times, _ = alike[0]
        places = np.array([row.place for row, *_ in alike])
        if row.costs is None:
            which = {"has_memory": row.has_memory, "has_times": has_times}
            costs = self.survey.best_case(places, **which)
        else:
            costs = row.costs.take(places)
        found = told_terms(
            self.domain, costs, has_times=has_times, has_stages=row.has_memory
        )
        for (*_, told), terms in zip(alike, found, strict=True):
            told.update(terms)


def _refuses(leaf: Leaf, rule: int) -> bool:
    return bool(leaf.rules[rule])


@dataclass
class _Rows:
    """Rows of some degrees, in order, each with its refusal."""

    cover: Cover
    degrees: tuple[int, ...]
    rows: Ints
    kind: Ints
    value: Ints
    source: Ints
    """The place in the survey of what refuses a row, or -1 less the family."""
    broken: Bools
    """Which rules refuse each row, (rules, rows)."""
    unit: Ints
    """The least price of a tick of each."""
    finer: _Rows | None = None
    """The rows that have a place in `at`, crossed with all ways to free memory."""
    at: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Where the finer rows of each row start, -1 without any."""

    def node(self, level: int, start: int, end: int) -> Node:
        """Return the node of rows that are equal in all decisions before one."""
        part, last = slice(start, end), DEGREES + self.rows.shape[1]
        if level == last and self.finer is not None and self.at[start] >= 0:
            first, ways = int(self.at[start]), self.cover.ways
            return self.finer.node(level, first, first + ways)
        kind = self.kind[part]
        legal = kind[kind > 0]
        if not len(legal):
            rules = np.asarray(self.broken[:, part].all(axis=1))
            if rules.any():
                rows = [(self.degrees, self.rows[part])]
                return Leaf(RULE, rules=rules, rows=rows, unit=self._unit(part))
        elif legal[0] != OPEN and (legal == legal[0]).all():
            leaf = self._leaf(part, int(legal[0]))
            is_one = level == len(DECISIONS)
            if leaf.kind == MEMORY or is_one or self.cover.is_enough(leaf):
                return leaf
        column = self.rows[part, level - DEGREES]
        edges = np.flatnonzero(np.diff(column)) + 1
        starts = [0, *edges.tolist(), len(column)]
        children = [
            (int(column[a]), self.node(level + 1, start + a, start + b))
            for a, b in pairwise(starts)
        ]
        leaves = [node for _, node in children if isinstance(node, Leaf)]
        if len(leaves) == len(children) and OPEN in kind:
            whole = self.cover.one_leaf(leaves)
            if whole is not None:
                return whole
        return self.cover.merged(level, children)

    def _unit(self, part: slice) -> int:
        return int(self.unit[part].min())

    def _leaf(self, part: slice, kind: int) -> Leaf:
        """Return legal rows that are refused alike as one leaf."""
        here = np.flatnonzero(self.kind[part] == kind)
        value = self.value[part][here]
        best = part.start + here[value.argmin() if kind == SLOWER else value.argmax()]
        source = int(self.source[best])
        if source >= 0:
            refusal = self.cover.survey.refusal(source)
        else:
            refusal = self.cover.survey.of_family(-1 - source)
        return Leaf(kind, refusal, unit=self._unit(part))


def _rows_of(cover: Cover, degrees: tuple[int, ...], families: Ints) -> _Rows:
    """Return all rows of some degrees; those that families do not refuse, in all ways.

    Rows are many, and times the ways to free memory very many: so these are listed of
    rows alone that need them.
    """
    domain, survey = cover.domain, cover.survey
    start = survey.families.start[families]
    lower, is_slow = survey.families.lower[families], survey.is_slow[families]
    rows = domain.rows(degrees)
    unit = cover.unit_of(degrees, domain.keeping(rows))
    at = _places(domain, rows, domain.own_rows(start)[:, :-FREEING])
    kind, value, source = _unknown(len(rows))
    is_refused = is_slow & cover.are_enough(lower, unit[at])
    # Ways to offload may be families of one row: the least bound is the row's.
    last = np.lexsort((-lower, ~is_refused))
    kind[at[last]] = np.where(is_refused, SLOWER, OPEN)[last]
    value[at[last]], source[at[last]] = lower[last], -1 - families[last]
    broken = domain.refused_all_ways(degrees, rows) & (kind == 0)
    kind[(kind == 0) & ~broken.any(axis=0)] = OPEN
    is_open = kind == OPEN
    found = _Rows(cover, degrees, rows, kind, value, source, broken, unit)
    if is_open.any():
        found.at = np.where(is_open, np.cumsum(is_open) - 1, -1) * cover.ways
        found.finer = _finer(cover, degrees, rows[is_open], families[is_open[at]])
    return found


def _finer(cover: Cover, degrees: tuple[int, ...], rows: Ints, families: Ints) -> _Rows:
    """Return rows in all ways to free memory, whose legal skeletons are of families."""
    domain, survey = cover.domain, cover.survey
    count, is_slow = survey.families.count[families], survey.is_slow[families]
    rows = domain.freed(rows)
    kind, value, source = _unknown(len(rows))
    index = ranges(survey.families.start[families], count)
    if len(index):
        at = _places(domain, rows, domain.own_rows(index))
        family = np.repeat(families, count)
        kind[at], source[at] = SLOWER, -1 - family
        value[at] = survey.families.lower[family]
        near = at[np.repeat(~is_slow, count)]
        places = [cover.near_places(f) for f in families[~is_slow]]
        if places:
            where = np.concatenate(places)
            kind[near], value[near] = survey.kind[where], survey.value[where]
            source[near] = where
    broken = domain.refused(degrees, rows, kind > 0)
    unit = cover.unit_of(degrees, rows)
    return _Rows(cover, degrees, rows, kind, value, source, broken, unit)


def _unknown(count: int) -> tuple[Ints, Ints, Ints]:
    """Return kinds, values and sources of rows that are not known to be legal."""
    none = np.zeros(count, dtype=np.int64)
    return none, none.copy(), none - 1


def _places(domain: Domain, rows: Ints, some: Ints) -> Ints:
    """Return where some rows are among all."""
    keys = domain.keys(rows)
    order = np.argsort(keys, kind="stable")
    return order[np.searchsorted(keys[order], domain.keys(some))]
