"""The master model: the decisions of a plan as variables, and one row chosen of many.

Rows are what the bounds leave of all skeletons. In the formulas x_r is 1 for the chosen
row r and 0 for all others; decision d has the value v_rd in row r. The layers of a row
are split by another model (`model`): its optimum comes back as a cut, see `cuts`.

The table of rows is stated by one literal a row instead of a table constraint: CP-SAT
then chooses among eight thousand rows in 0.1 s, against 2 to 14 s with a table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.cpsat.decisions import DecisionTable, Ints
from meshwright.cpsat.interruptible import solve_until
from meshwright.cpsat.ortools_import import (
    CpSolver,
    Domain,
    IntVar,
    LinearExpr,
    cp_model,
    new_model,
)
from meshwright.deadline import NEVER
from meshwright.errors import InternalError


class Master:
    """Chooses one row of a table. `master["tp"]` is the variable of a decision.

    `model` takes further constraints on these variables before the first choice.
    """

    def __init__(self, table: DecisionTable, seed: int = 0) -> None:
        """Build the model of a table, without an objective."""
        self.table = table
        self.ticks = table.least_ticks.copy()
        """Ticks that each row is known to take at least: the cuts on the objective."""
        self.model = new_model()
        self._chosen = [self.model.new_bool_var("") for _ in range(len(table))]
        self._decisions = {name: self._decision(name) for name in table.names}
        self._choose_one_row()
        self._follow_row()
        self._seed = seed

    def __getitem__(self, decision: str) -> IntVar:
        """Return the variable of a decision."""
        return self._decisions[decision]

    def _decision(self, name: str) -> IntVar:
        """Return the variable of a decision; it has the values that some row has."""
        values = Domain.from_values(np.unique(self.table.column(name)).tolist())
        return self.model.new_int_var_from_domain(values, name)

    def _choose_one_row(self) -> None:
        """Ensure that exactly one row is chosen.

        sum of x_r over the rows = 1
        """
        self.model.add_exactly_one(self._chosen)

    def _follow_row(self) -> None:
        """Ensure that decisions have the values of the chosen row.

        decision_d = sum of v_rd x_r over the rows
        """
        for name, decision in self._decisions.items():
            values = self.table.column(name).tolist()
            self.model.add(decision == LinearExpr.weighted_sum(self._chosen, values))

    def raise_bound(self, row: int, ticks: int) -> None:
        """Cut the objective: a row takes so many ticks at least.

        step >= ticks x_r
        """
        self.ticks[row] = max(int(self.ticks[row]), ticks)

    def leave_out(self, rows: Sequence[int]) -> None:
        """Ensure that none of some rows is chosen.

        x_r = 0
        """
        for row in rows:
            self.model.add(self._chosen[row] == 0)

    def fastest(self) -> int | None:
        """Return the row with the least bound, the first of equals; None if none is."""
        return self.first_by(self.ticks)

    def first_by(self, *columns: Ints) -> int | None:
        """Return the allowed row that comes first by columns, the most important first.

        minimise the sum of place_r x_r, where place_r is the place of row r in the
        order by columns, equals as they stand in the table. One linear objective thus
        stands for all columns, and its optimum is unique.
        """
        place = np.empty(len(self.table), dtype=np.int64)
        place[np.lexsort(columns[::-1])] = np.arange(len(self.table))
        self.model.minimize(LinearExpr.weighted_sum(self._chosen, place.tolist()))
        solver = CpSolver()
        solver.parameters.random_seed = self._seed
        solver.parameters.num_workers = 1
        solver.parameters.cp_model_probing_level = 0
        status = solve_until(NEVER, solver, self.model)
        if status == cp_model.INFEASIBLE:
            return None
        if status != cp_model.OPTIMAL:
            raise InternalError(f"CP-SAT: {solver.status_name(status)} of the master")
        return next(
            row for row, own in enumerate(self._chosen) if solver.boolean_value(own)
        )
