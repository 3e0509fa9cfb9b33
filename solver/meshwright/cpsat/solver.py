"""Runs CP-SAT so that a deadline and Ctrl-C end it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait

from meshwright.cpsat.library import CpModel, CpSolver, cp_model
from meshwright.deadline import Deadline

LOOK_S = 0.05
"""How often a solve that runs is looked after."""


def solved(
    solver: CpSolver, model: CpModel, deadline: Deadline
) -> cp_model.CpSolverStatus:
    """Return the status of a solve, which ends soon after its deadline.

    CP-SAT has a thread to itself: Python takes note of signals in the main one alone,
    and only between its own steps. CP-SAT would take SIGINT away from Python for good.
    """
    solver.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(solver.solve, model)
        try:
            while not wait([future], LOOK_S).done:
                if deadline.has_passed:
                    solver.stop_search()
        finally:
            while not future.done():
                solver.stop_search()
                wait([future], LOOK_S)
        return future.result()
