"""The user's problem as one CP-SAT model: the decisions of a plan, and what they cost.

Each row is one complete set of decisions. In the formulas x_r is 1 for the chosen row r
and 0 for all others; every decision and every quantity is a variable with its name,
which has the value v_r of the chosen row:

    value = sum of v_r x_r over the rows

The layers of a row are split over its stages by another model (`best_split`), for a
model that holds the splits of many rows has a weak relaxation: two hundred rows take a
minute, and a fiftieth of a second each alone. This model knows of a split that no step
is below `least_ticks`, and each proven split comes back as a cut on its row. Two
decisions say what a split must be, `equal_stages` and `whole_recompute`: with more
asked of a split, a step takes longer.

Rows are stated by one literal each: a table constraint takes CP-SAT 4 s at six thousand
rows, and literals 0.6 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from meshwright.cpsat.ortools import (
    UNBOUNDED,
    CpModel,
    CpSolver,
    Domain,
    IntVar,
    LinearExpr,
    cp_model,
    solve_until,
)
from meshwright.deadline import NEVER
from meshwright.errors import InternalError
from meshwright.planner.best_split import Bools, Ints
from meshwright.planner.pipeline import LARGEST_HORIZON, LARGEST_OBJECTIVE, SHARE_UNIT

ENDLESS_TICKS = 2**50
"""Stands for the step of a row that no split of its layers makes a plan: 13 days."""

STEP = "step_ticks"

DOUBTED = "doubted_step"
"""The doubted step, in hundredths of a tick."""

DEMANDED_BY = {
    "uneven_stages": "equal_stages",
    "partial_recompute": "whole_recompute",
}
"""The decision about splits that keeps a plan simple, by criterion."""


EQUAL, AT_LEAST, AT_MOST = (0, 0), (0, UNBOUNDED), (-UNBOUNDED, 0)
"""How far above the value of the chosen row a variable may be."""


class Demand(NamedTuple):
    """Properties that the split of a row's layers must have."""

    equal_stages: bool = False
    """Every stage holds equally many layers."""
    whole_recompute: bool = False
    """Every layer is recomputed, where any is."""


DEMANDS = (Demand(), Demand(True), Demand(False, True), Demand(True, True))


ANY_SPLIT = DEMANDS[0]


@dataclass(frozen=True)
class Table:
    """The rows to choose from, in whole numbers; each column has an entry a row.

    Rows stand in the order of preference among equals.
    """

    decisions: Mapping[str, Ints]
    """The value of every decision, words as codes."""
    least_ticks: Mapping[Demand, Ints]
    """Ticks that no split goes below; ENDLESS_TICKS where no split is as demanded."""
    most_ticks: Ints
    """Ticks that no split exceeds."""
    percents: Ints | None = None
    """The doubted step of a row in percents of its step; None if none is doubted."""
    memory: Mapping[str, Ints] = field(default_factory=dict)
    """KiB that the first stage, the fullest inner one and the last one need."""
    capacity: Mapping[str, Ints] = field(default_factory=dict)
    """KiB that these stages have."""
    busy_ticks: Mapping[str, Ints] = field(default_factory=dict)
    """Ticks of a step for which each link is busy at least, where links are limited."""
    link_share: float | None = None
    """Share of a step for which a link may be busy."""
    may_keep: Mapping[str, Bools] = field(default_factory=dict)
    """Which rows may keep each rule of the user: some split of their layers may."""
    pinned: Mapping[str, Ints] = field(default_factory=dict)
    """Values that pins leave to a decision."""
    criteria: Mapping[str, Ints] = field(default_factory=dict)
    """How far from simple a row is, by each criterion that a row decides."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.most_ticks)

    @property
    def price(self) -> str:
        """Return the quantity by which plans are recommended."""
        return STEP if self.percents is None else DOUBTED

    def scale(self, objective: str) -> Ints:
        """Return the price of a tick of each row under an objective."""
        if objective == DOUBTED and self.percents is not None:
            return self.percents
        return np.ones(len(self), dtype=np.int64)

    @property
    def longest_ticks(self) -> int:
        """Return the ticks that no step of any row exceeds."""
        return min(int(self.most_ticks.max(initial=0)), LARGEST_HORIZON)

    def over_price(self, objective: str, most: int) -> Bools:
        """Return the rows whose splits all exceed a price."""
        return self.least_ticks[ANY_SPLIT] * self.scale(objective) > most

    def over_memory(self) -> Bools:
        """Return which rows need more memory than some stage has."""
        pairs = ((self.memory[name], self.capacity[name]) for name in self.memory)
        return self._any(needed > has for needed, has in pairs)

    def over_links(self) -> Bools:
        """Return which rows keep a link busy for too long, however slow their step."""
        if self.link_share is None:
            return self._any(())
        share = int(self.link_share * SHARE_UNIT)
        most = share * np.minimum(self.most_ticks, LARGEST_HORIZON)
        return self._any(SHARE_UNIT * busy > most for busy in self.busy_ticks.values())

    def off_pins(self) -> Bools:
        """Return which rows have another value than a pin leaves."""
        return self._any(
            ~np.isin(self.decisions[name], values)
            for name, values in self.pinned.items()
        )

    def off_rules(self) -> Bools:
        """Return which rows break a rule of the user, whatever their split."""
        return self._any(~may for may in self.may_keep.values())

    def _any(self, columns: Iterable[Bools]) -> Bools:
        """Return the rows for which some column is true: none without columns."""
        none = np.zeros(len(self), dtype=bool)
        return np.asarray(np.any([none, *columns], axis=0))


class Choice(NamedTuple):
    """The row that the model chose, and the properties demanded of its split."""

    row: int
    demand: Demand
    price: int
    """Lower bound of the model on the objective of this plan."""


class PlanModel:
    """Chooses the best row of a table. `model["tp"]` is the variable of a name."""

    def __init__(self, table: Table, seed: int = 0) -> None:
        """State the variables and constraints; a question adds its objective."""
        self.table, self._seed = table, seed
        self.cp = CpModel()
        self.chosen = [self.cp.new_bool_var("") for _ in range(len(table))]
        self._place = self.cp.new_int_var(0, len(table), "")
        """Of the chosen row: of equals the first is chosen."""
        self._named: dict[str, IntVar] = {}
        self.cuts = 0
        """Proven splits that the model knows."""
        self.hold(self._place, np.arange(len(table)), EQUAL)
        for rule in CONSTRAINTS:
            rule(self)

    def __getitem__(self, name: str) -> IntVar:
        """Return the variable of a decision or a quantity."""
        return self._named[name]

    def name(self, variable: IntVar) -> IntVar:
        """Keep a variable under its name."""
        self._named[variable.name] = variable
        return variable

    def follow(self, name: str, values: Ints) -> IntVar:
        """Return a variable that has the value of the chosen row.

        variable = sum of v_r x_r over the rows
        """
        domain = Domain.from_values(np.unique(values).tolist())
        variable = self.name(self.cp.new_int_var_from_domain(domain, name))
        self.hold(variable, values, EQUAL)
        return variable

    def hold(
        self,
        variable: IntVar,
        values: Ints,
        bounds: tuple[int, int],
        when: Iterable[IntVar] = (),
    ) -> None:
        """Ensure that a variable is as much above the value of the chosen row as asked.

        least <= variable - sum of v_r x_r <= most, stated by what v_r differ from the
        value that most rows have
        """
        found, counts = np.unique(values, return_counts=True)
        usual = int(found[counts.argmax()])
        rows = np.flatnonzero(values != usual)
        literals = [self.chosen[row] for row in rows.tolist()]
        weights = (values[rows] - usual).tolist()
        least, most = (bound + usual for bound in bounds)
        self.cp.add_difference(variable, literals, weights, (least, most), when)

    def enforced(self, demand: Demand) -> list[IntVar]:
        """Return the literals that are true where a split must be as demanded."""
        return [self[name] for name, asked in demand._asdict().items() if asked]

    def leave_out(self, rows: Ints) -> None:
        """Ensure that none of some rows is chosen.

        sum of x_r over them = 0
        """
        self._leave_out(self.cp, rows)

    def _leave_out(self, cp: CpModel, rows: Ints) -> None:
        if len(rows):
            cp.add(LinearExpr.sum([self.chosen[row] for row in rows.tolist()]) == 0)

    def cut(self, row: int, demand: Demand, ticks: int | None) -> None:
        """Cut the model by the proven ticks of a row's split; None if it has none.

        step >= ticks where x_r and the split is as demanded, and so for what is doubted
        """
        self.cuts += 1
        literals = [self.chosen[row], *self.enforced(demand)]
        if ticks is None:
            self.cp.add_bool_or([literal.negated() for literal in literals])
            return
        for name in dict.fromkeys((STEP, self.table.price)):
            least = ticks * int(self.table.scale(name)[row])
            self.cp.add(self[name] >= least).only_enforce_if(*literals)

    def least(
        self, objective: str, most: int, among: Bools | None = None
    ) -> Choice | None:
        """Return the row of the least objective, the first of equals; None if none is.

        `among` says of which rows it is one.

        minimise the objective, then the place of the row, where objective <= most
        """
        levels = [(self[objective], self._size(objective))]
        return self._best(levels, objective, most, among)

    def _size(self, objective: str) -> int:
        """Return a number that an objective stays below."""
        most_of_tick = int(self.table.scale(objective).max(initial=1))
        return self.table.longest_ticks * most_of_tick + 1

    def simplest(self, criteria: Sequence[str], most: int) -> Choice | None:
        """Return the simplest row within a price: by criteria, then the cheapest.

        minimise the criteria in their order, then price, then the place of the row,
        where price <= most
        """
        levels: list[tuple[LinearExpr, int]] = [
            (self[name], int(self.table.criteria[name].max(initial=1)) + 1)
            if name in self.table.criteria
            else (1 - self[DEMANDED_BY[name]], 2)
            for name in criteria
        ]
        price = self.table.price
        levels.append((self[price], self._size(price)))
        return self._best(levels, price, most)

    def _best(
        self,
        levels: Sequence[tuple[LinearExpr, int]],
        objective: str,
        most: int,
        among: Bools | None = None,
    ) -> Choice | None:
        """Return the choice that is least by levels, the first of which counts most.

        Of equals it is the first row. Each level is below its size. Those that fit into
        one whole number are minimised at once; what comes after is minimised with the
        earlier ones held.
        """
        choice, model = None, self.cp.clone()
        model.add(self[objective] <= most)
        is_over = self.table.over_price(objective, most)
        # This follows from it; CP-SAT takes three times as long to find it out.
        self._leave_out(model, np.flatnonzero(is_over))
        # CP-SAT may state an objective by the rows, and sums what all of them add.
        largest = LARGEST_OBJECTIVE // max(int((~is_over).sum()), 1)
        if among is not None:
            model.add_bool_or(self.chosen[row] for row in np.flatnonzero(among))
        levels = [*levels, (self._place, len(self.chosen))]
        for level in _joined(levels, largest):
            model.minimize(level)
            solver = CpSolver()
            solver.parameters.random_seed = self._seed
            solver.parameters.num_workers = 1
            solver.parameters.cp_model_probing_level = 0
            status = solve_until(NEVER, solver, model)
            if status == cp_model.INFEASIBLE:
                return None
            if status != cp_model.OPTIMAL:
                raise InternalError(f"CP-SAT: {solver.status_name(status)} of the rows")
            choice = self._choice(solver, objective)
            model.add(level <= solver.value(level))
        return choice

    def _choice(self, solver: CpSolver, objective: str) -> Choice:
        row = next(
            row
            for row, literal in enumerate(self.chosen)
            if solver.boolean_value(literal)
        )
        demand = Demand(*(bool(solver.value(self[name])) for name in Demand._fields))
        return Choice(row, demand, solver.value(self[objective]))


def _joined(levels: Sequence[tuple[LinearExpr, int]], largest: int) -> list[LinearExpr]:
    """Return objectives that stand for levels, as few as stay below the largest."""
    joined: list[LinearExpr] = []
    room = 0
    for level, size in levels:
        if joined and room * size < largest:
            joined[-1] = LinearExpr.weighted_sum([joined[-1], level], [size, 1])
            room *= size
        else:
            joined.append(level)
            room = size
    return joined


def choose_one_row(model: PlanModel) -> None:
    """Ensure that exactly one row is chosen.

    sum of x_r over the rows = 1
    """
    model.cp.add_exactly_one(model.chosen)


def follow_decisions(model: PlanModel) -> None:
    """Ensure that every decision has the value of the chosen row.

    decision = sum of v_r x_r over the rows
    """
    for name, values in model.table.decisions.items():
        model.follow(name, values)


def demand_of_splits(model: PlanModel) -> None:
    """Let the split of layers be asked to be equal, and to recompute every layer.

    A row of which no split is as demanded is not chosen with it:
    not (x_r and equal_stages and whole_recompute), likewise with one of them
    """
    for name in Demand._fields:
        model.name(model.cp.new_bool_var(name))
    for demand, ticks in model.table.least_ticks.items():
        literals = [literal.negated() for literal in model.enforced(demand)]
        for row in np.flatnonzero(ticks >= ENDLESS_TICKS).tolist():
            model.cp.add_bool_or([model.chosen[row].negated(), *literals])


def take_time(model: PlanModel) -> None:
    """Ensure that a step takes no less than any split, and no more.

    sum of least_r x_r <= step, least_r that of what is demanded, and where links are
    limited step <= sum of most_r x_r
    """
    table = model.table
    step = _no_less_than_splits(model, STEP)
    if table.link_share is not None:
        # A step is no longer than it must be, unless a link asks for it.
        most = np.minimum(table.most_ticks, LARGEST_HORIZON)
        model.hold(step, most, AT_MOST)


def doubt_time(model: PlanModel) -> None:
    """Ensure that a doubted step is as many percents of the step as its row says.

    sum of percent_r least_r x_r <= doubted step, where percent_r is 100 and some more
    for every decision in which a row differs from what was run
    """
    if model.table.percents is not None:
        _no_less_than_splits(model, DOUBTED)


def _no_less_than_splits(model: PlanModel, objective: str) -> IntVar:
    """Return a new objective, which is no less than that of any split as demanded."""
    table, scale = model.table, model.table.scale(objective)
    most = table.longest_ticks * int(scale.max(initial=1))
    variable = model.name(model.cp.new_int_var(0, most, objective))
    for demand, ticks in table.least_ticks.items():
        # Rows without such a split are left out above; their ticks would overflow sums.
        known = scale * np.where(ticks < ENDLESS_TICKS, ticks, 0)
        model.hold(variable, known, AT_LEAST, model.enforced(demand))
    return variable


def fit_memory(model: PlanModel) -> None:
    """Ensure that the first stage, the inner ones and the last fit into memory.

    memory_e <= capacity_e, where memory_e = sum of need_re x_r over the rows
    """
    for stage, needed in model.table.memory.items():
        memory = model.follow(f"memory_{stage}_kib", needed)
        model.hold(memory, model.table.capacity[stage], AT_MOST)
    # This follows; CP-SAT takes longer to find it out in each question.
    model.leave_out(np.flatnonzero(model.table.over_memory()))


def hold_links(model: PlanModel) -> None:
    """Ensure that no link is busy for more than its share of the step.

    busy_l <= link_share * step, where busy_l = sum of busy_rl x_r over the rows
    """
    if model.table.link_share is None:
        return
    share = int(model.table.link_share * SHARE_UNIT)
    for link, ticks in model.table.busy_ticks.items():
        busy = model.follow(f"busy_{link}_ticks", ticks)
        model.cp.add(SHARE_UNIT * busy <= share * model[STEP])


def hold_pins(model: PlanModel) -> None:
    """Ensure that decisions have the values to which the user pins them."""
    for name, values in model.table.pinned.items():
        domain = Domain.from_values(values.tolist())
        model.cp.add_linear_expression_in_domain(model[name], domain)


def keep_rules(model: PlanModel) -> None:
    """Ensure that the chosen row may keep every rule of the user.

    sum of x_r over the rows that break it whatever their split = 0
    """
    for may in model.table.may_keep.values():
        model.leave_out(np.flatnonzero(~may))


def count_simplicity(model: PlanModel) -> None:
    """Ensure that every criterion of simplicity has the value of the chosen row."""
    for name, values in model.table.criteria.items():
        model.follow(name, values)


CONSTRAINTS: tuple[Callable[[PlanModel], None], ...] = (
    choose_one_row,
    follow_decisions,
    demand_of_splits,
    take_time,
    doubt_time,
    fit_memory,
    hold_links,
    hold_pins,
    keep_rules,
    count_simplicity,
)
"""Constraints of the model, in the order in which they are added."""
