"""Stands in for the solver in workers: cases that die, hang, hoard memory or break."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np

from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.results.outcome import Outcome
from meshwright.spec.spec import Spec
from meshwright.sweeps import worker
from meshwright.sweeps.cases import Case, Row, SolveSettings


def solve_case(key: str, case: Case, settings: SolveSettings) -> Row:
    """Solve a case as a worker does, with a solver that misbehaves at some lengths."""
    setattr(worker, "solve", _misbehave)  # noqa: B010
    return worker.solve_case(key, case, settings)


def _misbehave(spec: Spec, options: Options) -> Outcome:
    length = spec.training.seq_len
    if length == DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    if length == DIES_ONCE and not Path(os.environ["DIED"]).exists():
        Path(os.environ["DIED"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if length == HANGS:
        while True:
            pass
    if length == HOARDS:
        np.ones(4 * 2**30, dtype=np.int8)
    if length == BREAKS:
        raise ZeroDivisionError("by design")
    return solve(spec, options)


DIES, DIES_ONCE, HANGS, HOARDS, BREAKS = 301, 302, 303, 304, 305
"""Sequence lengths that make a case misbehave."""
