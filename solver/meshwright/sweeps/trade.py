"""The front of one spec: solved again and again, each answer stored like any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from meshwright.errors import SpecError
from meshwright.spec.spec import Spec
from meshwright.sweeps.case import Case, Recipe
from meshwright.sweeps.row import Row
from meshwright.sweeps.run import OnRow, Run
from meshwright.sweeps.store import Store
from meshwright.sweeps.sweep import Search
from meshwright.sweeps.this_process import Here
from meshwright.sweeps.trade_axes import Solve, by_gpus, by_memory, by_ways

AGAINST = ("peak_gib", "gpus", "ways")
"""What the step time of one spec can be traded against."""

_STEPS: dict[str, Callable[[Spec, Solve], Iterator[Row]]] = {
    "peak_gib": by_memory,
    "ways": by_ways,
}
"""Those whose next solve depends on the last."""


def within(search: Search, against: str) -> Search:
    """Return the search for a front of one spec; its cases, if they are known before.

    Raises:
        SpecError: there are several specs, or no such front.
    """
    if against not in AGAINST:
        accepted = ", ".join(AGAINST)
        raise SpecError(f"--within: {against!r}: expected one of {accepted}")
    if len(search.cases) != 1 or search.cases[0].spec is None:
        raise SpecError(f"--within: {len(search.cases)} cases; expected one spec")
    fields = search.fields.model_copy(update={"front": ("step_s", against)})
    cases = by_gpus(search.cases[0].spec) if against == "gpus" else search.cases
    return replace(search, cases=cases, fields=fields)


def is_stepwise(against: str | None) -> bool:
    """Return whether a front is found one solve after the other."""
    return against in _STEPS


@dataclass
class Trace:
    """The solves on the way to a front."""

    recipe: Recipe
    store: Store
    resume: bool
    on_row: OnRow
    rows: list[Row] = field(default_factory=list)
    """Points that nothing before them is better than; what led to them is stored."""

    def solve(self, case: Case) -> Row:
        """Return the row of a case, as it is stored or solved here."""
        run = Run([case], self.recipe, self.store, self.on_row)
        if self.resume:
            run.resume()
        run.solve(Here())
        return run.rows[0]

    def follow(self, spec: Spec, against: str) -> None:
        """Solve all that a front needs, and keep its points."""
        for row in _STEPS[against](spec, self.solve):
            self.rows.append(row)
