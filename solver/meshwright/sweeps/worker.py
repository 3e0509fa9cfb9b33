"""What a worker does: one case to one row, whatever happens."""

from __future__ import annotations

import gc

from meshwright import __version__
from meshwright.errors import InternalError, MeshwrightError
from meshwright.solver.options import Options
from meshwright.solver.pipeline import solve
from meshwright.sweeps.case import Case, Recipe, fingerprint
from meshwright.sweeps.limits import GRACE_S, TimeUp, memory_limit, time_limit
from meshwright.sweeps.result import row_of
from meshwright.sweeps.row import Row


def solve_case(key: str, case: Case, recipe: Recipe) -> Row:
    """Return the row of a case; whatever goes wrong is a row too."""
    if case.spec is None:
        return case.row(key)
    row = Row(key=key, name=case.name, axes=case.axes, status="failed")
    if recipe.version != __version__:
        return _failed(row, f"the worker has meshwright {__version__}")
    if recipe.code != fingerprint():
        return _failed(row, f"the worker has other code of meshwright {__version__}")
    limit_s = recipe.time_limit_s
    try:
        with (
            memory_limit(recipe.memory_limit_gib),
            time_limit(None if limit_s is None else limit_s + GRACE_S),
        ):
            outcome = solve(case.spec, _options(recipe))
        return row_of(key, case.name, case.axes, case.spec, outcome)
    except TimeUp:
        told = f"stopped after {limit_s:g} s and {GRACE_S:g} s of grace"
        return row.model_copy(update={"status": "unknown", "sentence": told})
    except MemoryError:
        gc.collect()
        return _failed(row, f"needs more than {recipe.memory_limit_gib} GiB of memory")
    except InternalError as error:
        return _failed(row, f"internal error, please report it: {error}")
    except MeshwrightError as error:
        return _failed(row, str(error))
    except Exception as error:  # a case that fails must not stop the others
        return _failed(row, f"{type(error).__name__}: {error}")


def _failed(row: Row, error: str) -> Row:
    return row.model_copy(update={"error": error})


def _options(recipe: Recipe) -> Options:
    limit_s = recipe.time_limit_s
    return Options(
        time_limit_s=float("inf") if limit_s is None else limit_s,
        seed=recipe.seed,
        profile=recipe.profile,
        is_brief=True,
    )
