"""The last model of a solve goes through HiGHS too: both find the same least step.

Every constraint of CP-SAT's model is written once more as rows of a mixed-integer
program, and the step held to what CP-SAT found: HiGHS must not find less. Steps are
scaled by that and rows by their largest factor, since in nanoseconds the tolerances of
floating point are larger than what they decide.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import csr_array

import meshwright as mw
from meshwright.planner.model import ANY_SPLIT, STEP, PlanModel
from meshwright.planner.options import Options
from meshwright.planner.pipeline import LARGEST_HORIZON
from meshwright.planner.prove import Search
from meshwright.planner.solve import solve
from tests.helpers.extent import gate
from tests.helpers.strategies import expert_specs, specs

FEASIBLE, INFEASIBLE = 0, 2
"""Codes of HiGHS's answers."""

ENDLESS = 2**60

SAME = 1e-6
"""Share by which the steps of two solvers may differ: HiGHS's tolerance of a row."""


SCALE = 1_000
"""How far steps may lie apart that are looked for at once."""


class Program:
    """A mixed-integer program that is written row by row."""

    def __init__(
        self, model: PlanModel, objective: str, most: int, at_least: int = 0
    ) -> None:
        """State the variables and constraints of a model; a literal is 0 or 1.

        The objective is at most `most`: rows that take longer are not chosen.
        """
        proto, table = model.cp.proto, model.table
        domains = [list(variable.domain) for variable in proto.variables]
        self.low = [float(domain[0]) for domain in domains]
        self.high = [float(domain[-1]) for domain in domains]
        # Literals are whole; quantities follow from them, and are scaled by their size.
        self._unit = np.maximum(np.maximum(np.abs(self.low), np.abs(self.high)), 1.0)
        self._timed = {model[name].index for name in (STEP, table.price)}
        for one in self._timed:
            self._unit[one] = max(most, 1)
        place = model[objective].index
        self.high[place], self.low[place] = float(most), float(at_least)
        least = table.least_ticks[ANY_SPLIT].astype(float) * table.scale(objective)
        for literal, ticks in zip(model.chosen, least.tolist(), strict=True):
            self.high[literal.index] = float(ticks <= most)
        self.rows: list[tuple[dict[int, float], float, float]] = []
        for constraint in proto.constraints:
            self._add(constraint)

    def _add(self, constraint: Any) -> None:
        if constraint.has_exactly_one():
            self._count(list(constraint.exactly_one.literals), 1.0, 1.0)
        elif constraint.has_bool_or():
            literals = list(constraint.bool_or.literals)
            literals += [-1 - one for one in constraint.enforcement_literal]
            self._count(literals, 1.0, np.inf)
        else:
            assert constraint.has_linear()
            self._add_linear(constraint)

    def _count(self, literals: list[int], low: float, high: float) -> None:
        """Add that so many of some literals are true; -1 - i is the negation of i."""
        factors: dict[int, float] = {}
        for literal in literals:
            place, sign = (literal, 1.0) if literal >= 0 else (-1 - literal, -1.0)
            factors[place] = factors.get(place, 0.0) + sign
        negated = sum(literal < 0 for literal in literals)
        self.rows.append((factors, low - negated, high - negated))

    def _add_linear(self, constraint: Any) -> None:
        linear, domain = constraint.linear, list(constraint.linear.domain)
        factors = dict(zip(linear.vars, map(float, linear.coeffs), strict=True))
        literals = list(constraint.enforcement_literal)
        if len(domain) > 2:
            self._add_choice(factors, domain)
            return
        low, high = float(domain[0]), float(domain[1])
        ends = [
            sorted((factor * self.low[one], factor * self.high[one]))
            for one, factor in factors.items()
        ]
        least, most = (sum(end[side] for end in ends) for side in (0, 1))
        if low > least:
            self._enforced(factors, low, least, literals)
        if high < most:
            negative = {one: -factor for one, factor in factors.items()}
            self._enforced(negative, -high, -most, literals)

    def _enforced(
        self, factors: dict[int, float], low: float, least: float, literals: list[int]
    ) -> None:
        """Add that a sum is at least `low` where literals are true, else `least`."""
        row, gap = dict(factors), low - least
        for literal in literals:
            place, is_plain = (literal, True) if literal >= 0 else (-1 - literal, False)
            row[place] = row.get(place, 0.0) + (-gap if is_plain else gap)
            low -= gap if is_plain else 0.0
        self.rows.append((row, low, np.inf))

    def _add_choice(self, factors: dict[int, float], domain: list[int]) -> None:
        """Add that a sum is in one of several ranges, a further literal for each."""
        first = len(self.low)
        ranges = list(zip(domain[::2], domain[1::2], strict=True))
        places = range(first, first + len(ranges))
        self.low += [0.0] * len(ranges)
        self.high += [1.0] * len(ranges)
        self._unit = np.append(self._unit, np.ones(len(ranges)))
        self._count(list(places), 1.0, 1.0)
        for side, low, high in (0, 0.0, np.inf), (1, -np.inf, 0.0):
            edges = {
                place: -float(one[side])
                for place, one in zip(places, ranges, strict=True)
            }
            self.rows.append(({**factors, **edges}, low, high))

    def least(self, variable: int) -> OptimizeResult:
        """Return HiGHS's answer to what a variable is at least, in its unit."""
        data, columns, starts, lows, highs = [], [], [0], [], []
        for factors, low, high in self.rows:
            scaled = {
                each: factor * self._unit[each]
                for each, factor in factors.items()
                if factor and self.low[each] < self.high[each]
            }
            fixed = {*factors} - {*scaled}
            moved = sum(factors[one] * self.low[one] for one in fixed)
            largest = max(map(abs, scaled.values()), default=1.0)
            columns += list(scaled)
            data += [factor / largest for factor in scaled.values()]
            starts.append(len(data))
            lows.append((low - moved) / largest)
            highs.append((high - moved) / largest)
        shape = len(self.rows), len(self.low)
        matrix = csr_array((data, columns, starts), shape=shape)
        objective = np.zeros(len(self.low))
        objective[variable] = 1.0
        return milp(
            objective,
            constraints=LinearConstraint(matrix, lows, highs),
            integrality=(self._unit == 1).astype(int),
            bounds=Bounds(self.low / self._unit, self.high / self._unit),
            options={"mip_rel_gap": 0.0},
        )

    def exact(self, model: PlanModel, variable: int) -> OptimizeResult:
        """Return HiGHS's answer of a row whose memory and counts keep every limit.

        A row that is over a limit by less than HiGHS's tolerance is one KiB over: it
        is forbidden, and HiGHS asked again.
        """
        while True:
            answer = self.least(variable)
            if answer.status != FEASIBLE or self._keeps(answer):
                return answer
            values = [answer.x[literal.index] for literal in model.chosen]
            self.high[model.chosen[int(np.argmax(values))].index] = 0.0

    def _keeps(self, answer: OptimizeResult) -> bool:
        """Return whether whole numbers keep all rows but those of scaled times."""
        values = np.rint(answer.x * self._unit).astype(np.int64).tolist()
        sums = (
            (sum(int(factor) * values[one] for one, factor in factors.items()), *ends)
            for factors, *ends in self.rows
            if not self._timed & factors.keys()
        )
        return all(low <= value <= high for value, low, high in sums)

    def ticks(self, variable: int, answer: OptimizeResult) -> float:
        """Return the value of a variable in an answer."""
        return float(answer.x[variable] * self._unit[variable])


def models_of(spec: mw.Spec, options: Options) -> list[PlanModel]:
    """Return the models of the searches of a solve, with all cuts."""
    found: list[PlanModel] = []

    class Kept(Search):
        """A search whose model is kept."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.append(self.model)

    with patch("meshwright.planner.plans.Search", Kept):
        solve(spec, options)
    return found


def compare(spec: mw.Spec) -> int:
    """Compare both solvers on all models of a solve; return how many there were."""
    models = models_of(spec, Options(tolerance=0.02, has_near_miss=False))
    for model in models:
        for name in {STEP, model.table.price}:
            choice = model.least(name, ENDLESS)
            if choice is None:
                assert not finds_a_plan(model, name)
                continue
            program = Program(model, name, choice.price)
            answer = program.exact(model, model[name].index)
            assert answer.status == FEASIBLE, answer.message
            ticks = program.ticks(model[name].index, answer)
            assert ticks == pytest.approx(choice.price, rel=SAME, abs=2)
    return len(models)


def finds_a_plan(model: PlanModel, name: str) -> bool:
    """Return whether HiGHS finds a plan at all, looked for on every scale of time.

    Where none is there, no step tells the scale; on one that is a million times too
    large, what links carry in a step is less than the tolerance.
    """
    most = LARGEST_HORIZON
    while most:
        program = Program(model, name, most, at_least=most // SCALE)
        answer = program.exact(model, model[name].index)
        assert answer.status in (FEASIBLE, INFEASIBLE), answer.message
        if answer.status == FEASIBLE:
            return True
        most //= SCALE
    return False


SMALL = ("llama3-8b-2xh100-nvlink", "gpt2-xl-2x4090-pcie")
LARGE = (
    *("llama2-13b-8xa100", "llama3-70b-16xh100", "llama3-70b-128xa100"),
    *("gpt3-175b-1024xa100", "llama3-405b-16384xh100", "mixtral-8x7b-64xh100"),
    *("mpt-30b-512xh100", "llama3-8b-512xa100-degraded", "gpt-1.3b-dgx-1v"),
)


@pytest.mark.parametrize("name", gate(SMALL, everything=(*SMALL, *LARGE)))
def test_both_solvers_agree_on_bundled_specs(name: str) -> None:
    assert compare(mw.load(name, mw.Spec))


@pytest.mark.slow
@settings(
    max_examples=gate(4, everything=200),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(specs(most_layers=6) | expert_specs(most_layers=4))
def test_both_solvers_agree_on_random_specs(spec: mw.Spec) -> None:
    assume(not spec.rules)
    assume(compare(spec))
