"""Runs CP-SAT so that a deadline or Ctrl-C ends it."""

from __future__ import annotations

from concurrent.futures import Future, wait
from threading import Thread

from meshwright.cpsat.ortools_import import CpModel, CpSolver, cp_model
from meshwright.deadline import Deadline

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
