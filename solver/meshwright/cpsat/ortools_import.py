"""Imports CP-SAT without pandas, which takes as long to load as a small solve.

`ortools.sat.python.cp_model` imports pandas for annotations, and for the functions that
make series of variables; Meshwright calls none of those. While ortools is imported, a
stand-in takes the place of pandas in `sys.modules`; then it leaves. It has the two
classes that annotations name, and loads pandas as soon as anything else is asked of it,
or anything at all later. So whoever imports pandas afterwards gets pandas, the
functions of ortools that need pandas find it, and an ortools that needs more of it
starts more slowly. Where pandas is loaded already it is left alone.

The modules below `cp_model` would do without pandas too, but they are private and not
the same in any two releases since 9.12, the oldest that is supported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

PANDAS = "pandas"

ANNOTATED = ("Index", "Series")
"""Classes of pandas that annotations of ortools name."""


class _Named:
    """Stands for a class in annotations; cannot be used as one."""

    def __init_subclass__(cls) -> None:
        raise ImportError("a class is derived from the stand-in for one of pandas")


class _StandIn(ModuleType):
    """Takes the place of pandas until more than names is asked of it."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(PANDAS) is self:
            if name in ANNOTATED:
                return _Named
            del sys.modules[PANDAS]
        return getattr(import_module(PANDAS), name)


@contextmanager
def pandas_left_out() -> Iterator[None]:
    """Keep imports of pandas from loading it, unless they use it or it is loaded."""
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

CpModel = cp_model.CpModel
CpSolver = cp_model.CpSolver
Domain = cp_model.Domain
IntVar = cp_model.IntVar
LinearExpr = cp_model.LinearExpr
LinearExprT = cp_model.LinearExprT
