"""Imports CP-SAT without pandas, and runs it so that a deadline or Ctrl-C ends it.

`ortools.sat.python.cp_model` imports pandas, which takes as long to load as a small
solve, for annotations, and for functions that make series of variables; Meshwright
calls none of those. While ortools is imported, a stand-in replaces pandas in
`sys.modules`. It has the two classes that annotations name; any other attribute, and
any access after the import, loads pandas itself. So a later `import pandas` gets
pandas, the functions of ortools that need pandas find it, and an ortools that needs
more of it just starts more slowly. If pandas is already loaded, nothing is replaced.

The modules below `cp_model` need no pandas, but they are private and differ between any
two releases since 9.12, the oldest supported one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from importlib import import_module
from threading import Thread
from types import ModuleType
from typing import Any

from meshwright.deadline import Deadline

PANDAS = "pandas"

ANNOTATED = ("Index", "Series")
"""Classes of pandas that annotations of ortools name."""


class _Named:
    """A placeholder for a class in annotations; it cannot be used as a class."""

    def __init_subclass__(cls) -> None:
        raise ImportError("a class is derived from the stand-in for one of pandas")


class _StandIn(ModuleType):
    """Replaces pandas until more than the annotated names is asked of it."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(PANDAS) is self:
            if name in ANNOTATED:
                return _Named
            del sys.modules[PANDAS]
        return getattr(import_module(PANDAS), name)


@contextmanager
def pandas_left_out() -> Iterator[None]:
    """Keep imports inside from loading pandas, unless they use it."""
    stand_in = _StandIn(PANDAS)
    is_ours = sys.modules.setdefault(PANDAS, stand_in) is stand_in
    try:
        yield
    finally:
        if is_ours and sys.modules.get(PANDAS) is stand_in:
            del sys.modules[PANDAS]


try:
    with pandas_left_out():
        from ortools.sat.python import cp_model as cp_model
except ImportError:
    from ortools.sat.python import cp_model as cp_model

CpSolver = cp_model.CpSolver
Domain = cp_model.Domain
IntVar = cp_model.IntVar
LinearExpr = cp_model.LinearExpr
LinearExprT = cp_model.LinearExprT


UNBOUNDED = 2**62
"""Stands for no bound of a sum: CP-SAT keeps all sums below half of it."""


class CpModel(cp_model.CpModel):
    """A model without the camel-case names of older releases.

    A model gets some sixty of them as attributes, which takes as long as to build and
    solve a small one.
    """

    def _add_pre_pep8_methods(self) -> None:
        """Add none."""

    def add_difference(
        self,
        variable: IntVar,
        literals: list[IntVar],
        weights: list[int],
        bounds: tuple[int, int],
        when: Iterable[IntVar] = (),
    ) -> None:
        """Ensure least <= variable - sum of weights x literals <= most.

        It is written as it is kept: to build and flatten an expression of a thousand
        literals takes ten times as long.

        Args:
            variable: The variable.
            literals: What is summed.
            weights: As many weights.
            bounds: `least` and `most`.
            when: Literals without which it need not hold.
        """
        constraint = self.proto.constraints.add()
        constraint.enforcement_literal.extend([one.index for one in when])
        linear = constraint.linear
        linear.vars.extend([variable.index, *[one.index for one in literals]])
        linear.coeffs.extend([1, *[-weight for weight in weights]])
        linear.domain.extend(bounds)

    def clone(self) -> CpModel:
        """Return a copy; that of the base class has the camel-case names."""
        copy = CpModel()
        copy.proto.copy_from(self.proto)
        copy.rebuild_constant_map()
        return copy


LOOK_S = 0.05
"""How often a running solve is checked against its deadline, seconds."""

FutureStatus = Future[cp_model.CpSolverStatus]


def solve_until(
    deadline: Deadline, solver: CpSolver, model: CpModel
) -> cp_model.CpSolverStatus:
    """Return the status of a solve, which ends soon after its deadline.

    CP-SAT runs in a thread: Python handles signals in the main thread alone, and only
    between bytecodes, and the handler of CP-SAT would take SIGINT away from Python for
    good. A pool of threads would now and then lose Ctrl-C: it tidies up in
    callbacks of weak references, out of which no exception comes.
    """
    solver.parameters.catch_sigint_signal = False
    future: FutureStatus = Future()
    Thread(target=_solve, args=(solver, model, future), daemon=True).start()
    try:
        while not wait([future], LOOK_S).done:
            if deadline.has_passed:
                solver.stop_search()
    finally:
        while not future.done():
            solver.stop_search()
            wait([future], LOOK_S)
    return future.result()


def _solve(solver: CpSolver, model: CpModel, future: FutureStatus) -> None:
    """Solve, and hand over the status or the exception."""
    try:
        future.set_result(solver.solve(model))
    except BaseException as error:
        future.set_exception(error)
