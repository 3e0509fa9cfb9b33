"""The parts of a certificate of serving: deployments as a tree of decisions.

Deployments are few enough to be listed. Of those that differ in their mesh alone the
best is told. Leaves that refuse alike are one, as in `cover`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshwright.certificates.domain import ARITHMETIC, MESHES
from meshwright.certificates.survey import runs_of
from meshwright.errors import InternalError
from meshwright.planner.integer_costs import capacity_chunks
from meshwright.planner.pipeline import Pipeline
from meshwright.plans.columns import Bools, Ints
from meshwright.results.serving import ServingOutcome, ServingPlan
from meshwright.serving.deployment import TP_LINK, make_serving_job, serving_rules
from meshwright.serving.lattice import bounded, enumerate_deployments, make_pipeline
from meshwright.spec.serving import ServingSpec

DECISIONS = ("tp", "pp", "dp_replicate", "microbatches", "attention_dp")
"""The decisions of a deployment, in the order in which the tree splits by them."""

DEGREES = 3
"""How many of them are degrees, whose product is the number of GPUs."""

LOOKS_AT = {"kv_heads_divisible": ("tp", "attention_dp"), "whole_patterns": ("pp",)}
"""Decisions that rules without arithmetic look at; meshes are those of the degrees."""


@dataclass
class Leaf:
    """The refusal of all deployments below some values of a decision."""

    kind: str
    """`rule`, `memory` or `slower`."""
    number: int = 0
    """The most layers that fit, or the least ticks."""
    row: int = -1
    """The deployment whose terms are told."""
    rules: frozenset[str] = frozenset()
    """Names of the rules that refuse all of it."""
    at: list[tuple[int, ...]] = field(default_factory=list)
    """The deployments that rules refuse."""


Tree = Leaf | list[tuple[list[int], Any]]
"""A leaf, or the groups of values of a decision, each with what is below it."""


def parts_of(spec: ServingSpec, outcome: ServingOutcome) -> dict[str, Any]:
    """Return the parts of the certificate of an answer, but for its profile.

    Raises:
        InternalError: a plan is better than the answer.
    """
    return _Served(spec, outcome.best.plan if outcome.best else None).parts()


class _Served:
    """Deployments of a spec, each with its refusal."""

    def __init__(self, spec: ServingSpec, plan: ServingPlan | None) -> None:
        self.spec, self.plan, self.job = spec, plan, make_serving_job(spec)
        self.rows, meshes = enumerate_deployments(self.job)
        self.at = np.stack([getattr(self.rows, name) for name in DECISIONS], axis=1)
        self.lattice = bounded(self.job, self.rows, meshes)
        of_mesh, self.rules = [], dict[str, Any]()
        self.broken = dict[str, Bools]()
        for rule in serving_rules(spec, meshes):
            breaks = ~np.broadcast_to(rule.holds(spec, self.rows), len(self.rows))
            if rule.name == TP_LINK.name or rule.name.startswith("pin mesh."):
                of_mesh.append(breaks)
            else:
                self.rules[rule.name], self.broken[rule.name] = rule, breaks
        self.rules[MESHES.name] = MESHES
        every = [*self.broken.values(), *of_mesh]
        self.is_legal = ~np.any(every, axis=0)
        self.tables = dict[str, set[tuple[int, ...]]]()
        self.fastest = None if plan is None else self._told_plan(plan)
        self.best = self.fastest["ticks"] if self.fastest else 0

    def parts(self) -> dict[str, Any]:
        order = np.lexsort(self.at.T[::-1])
        tree = self._node(order, 0)
        if isinstance(tree, Leaf):
            tree = [(np.unique(self.at[:, 0]).tolist(), tree)]
        cover = self._told(tree, 0)
        status = "infeasible" if self.plan is None else "optimal"
        nothing = dict.fromkeys(("cheapest", "recommended", "near"))
        return {
            "spec": self.spec.model_dump(mode="json"),
            "facts": self._facts(),
            "rules": [self._told_rule(name) for name in self.tables],
            "cover": cover,
            "claims": {"status": status, "fastest": self.fastest, **nothing},
        }

    def _node(self, rows: Ints, level: int) -> Tree:
        """Return the node of rows that are equal in all decisions before one."""
        if level == len(DECISIONS):
            return self._leaf(rows)
        values, start = np.unique(self.at[rows, level], return_index=True)
        parts = zip(values.tolist(), np.split(rows, start[1:]), strict=True)
        nodes = [(value, self._node(part, level + 1)) for value, part in parts]
        whole = _joined([node for _, node in nodes], level)
        if whole is not None:
            return whole
        groups = list[tuple[list[int], Tree]]()
        for value, node in nodes:
            for place, (alike, other) in enumerate(groups):
                whole = _joined([other, node], level)
                if whole is not None:
                    groups[place] = [*alike, value], whole
                    break
            else:
                groups.append(([value], node))
        return groups

    def _leaf(self, rows: Ints) -> Leaf:
        """Return the refusal of rows that differ in their mesh alone.

        Raises:
            InternalError: they have a plan that is better than the answer.
        """
        legal = rows[self.is_legal[rows]]
        if not len(legal):
            names = [name for name, breaks in self.broken.items() if breaks[rows].all()]
            rules = frozenset(names or [MESHES.name])
            return Leaf("rule", rules=rules, at=[tuple(self.at[rows[0]].tolist())])
        lattice, fits = self.lattice, legal[self.lattice.possible[legal]]
        if not len(fits):
            held = [self._held(row) for row in legal.tolist()]
            best = int(np.argmax(held))
            return Leaf("memory", held[best], int(legal[best]))
        lower, upper = lattice.lower[fits], lattice.upper[fits]
        least = np.where(lower >= self.best, lower, upper)
        best = int(least.argmin())
        if self.plan is None or least[best] < self.best:
            raise InternalError(f"{self.spec.title}: a plan is better than the answer")
        return Leaf("slower", int(least[best]), int(fits[best]))

    def _pipeline(self, row: int) -> Pipeline:
        return make_pipeline(self.job, self.rows.take(np.array([row])))

    def _held(self, row: int) -> int:
        """Return how many layers the stages of a row hold at most, 0 if one too few."""
        pipeline = self._pipeline(row)
        pins = pipeline.pinned_layers or (pipeline.layers,) * len(pipeline.stages)
        most = [
            min(s.most_layers, pin)
            for s, pin in zip(pipeline.stages, pins, strict=True)
        ]
        least = pipeline.pinned_layers or [s.fewest_layers for s in pipeline.stages]
        few = any(m < n for m, n in zip(most, least, strict=True))
        return 0 if few else sum(most)

    def _terms(self, row: int, *, has_times: bool) -> dict[str, Any]:
        pipeline = self._pipeline(row)
        room, held, times = capacity_chunks(self.spec.usable_gib), [], []
        for stage in pipeline.stages:
            fill, pace, per_layer = stage.fill, stage.pace, stage.memory.per_layer
            times.append(
                (fill.fixed, fill.per_layer, 0, pace.fixed, pace.per_layer, 0, 0, 0)
            )
            by_memory = stage.capacity // max(per_layer, 1)
            # Where memory leaves the least room, waits say no more.
            is_memory = per_layer > 0 and stage.most_layers >= by_memory
            most = pipeline.layers if is_memory else stage.most_layers
            held.append(
                (0, room - stage.capacity, per_layer, 0, stage.fewest_layers, most)
            )
        told = {"at": self.at[row].tolist(), "scope": 0, "stages": runs_of(held)}
        return told | ({"times": runs_of(times)} if has_times else {})

    def _told(self, tree: Tree, level: int) -> dict[str, Any]:
        if not isinstance(tree, Leaf):
            of = [[values, self._told(node, level + 1)] for values, node in tree]
            return {"by": DECISIONS[level], "of": of}
        if tree.kind != "rule":
            terms = self._terms(tree.row, has_times=tree.kind == "slower")
            return {tree.kind: tree.number, "terms": terms}
        name = min(tree.rules)
        table = self.tables.setdefault(name, set())
        places = [DECISIONS.index(one) for one in self._looks_at(name)]
        table.update(tuple(one[place] for place in places) for one in tree.at)
        return {"rule": [*self.tables].index(name)}

    def _looks_at(self, name: str) -> tuple[str, ...]:
        return LOOKS_AT.get(name, DECISIONS[:DEGREES])

    def _told_rule(self, name: str) -> dict[str, Any]:
        rule = self.rules[name]
        words = {"name": name, "sentence": rule.sentence, "source": rule.source}
        if name in ARITHMETIC or name.startswith("pin "):
            return words
        table = [list(row) for row in sorted(self.tables[name])]
        return {**words, "looks_at": list(self._looks_at(name)), "table": table}

    def _told_plan(self, plan: ServingPlan) -> dict[str, Any]:
        """Return the plan with its split and terms; of its meshes, the fastest."""
        at = [getattr(plan, name) for name in DECISIONS]
        rows = np.flatnonzero((self.at == at).all(axis=1) & self.is_legal)
        row = int(rows[self.lattice.upper[rows].argmin()])
        stages, layers = self._pipeline(row).stages, plan.layers
        fill = [
            s.fill.fixed + n * s.fill.per_layer
            for s, n in zip(stages, layers, strict=True)
        ]
        pace = [
            s.pace.fixed + n * s.pace.per_layer
            for s, n in zip(stages, layers, strict=True)
        ]
        return {
            "split": [[n, 0] for n in layers],
            "ticks": sum(fill) + max(*pace, 0),
            "terms": self._terms(row, has_times=True),
        }

    def _facts(self) -> dict[str, Any]:
        """Return the numbers behind the decisions; those of training are empty."""
        lists = ("offloads", "ways", "runs", "common_runs")
        mappings = ("words", "techniques", "published", "makers", "rates")
        return {
            "gpus": int(np.prod(self.job.fabric.sizes)),
            "leading": self.spec.model.leading_layers,
            "capacity_kib": [capacity_chunks(self.spec.usable_gib)],
            **dict.fromkeys(("node_gpus", "schedules", "percent"), 0),
            **dict.fromkeys(("stores_scores", "has_uneven_chunks"), False),
            **{name: [] for name in lists},
            **{name: {} for name in mappings},
        }


def _joined(nodes: list[Tree], level: int) -> Leaf | None:
    """Return one leaf in place of several, None if they do not refuse alike.

    Memory and time refuse the deployments of one set of degrees at a time.
    """
    leaves = [node for node in nodes if isinstance(node, Leaf)]
    legal = [leaf for leaf in leaves if leaf.kind != "rule"]
    kinds = {leaf.kind for leaf in legal}
    if len(leaves) < len(nodes) or len(kinds) > 1 or (kinds and level < DEGREES):
        return None
    if legal:
        choose: Callable[..., Leaf] = max if kinds == {"memory"} else min
        return choose(legal, key=lambda leaf: leaf.number)
    rules = frozenset.intersection(*(leaf.rules for leaf in leaves))
    at = [one for leaf in leaves for one in leaf.at]
    return Leaf("rule", rules=rules, at=at) if rules else None
