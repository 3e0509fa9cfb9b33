"""A search from its cases to their rows: what is stored already, then the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from meshwright.sweeps.case import Case, Recipe
from meshwright.sweeps.pools import Pool, Task
from meshwright.sweeps.row import Row
from meshwright.sweeps.store import Store

OnRow = Callable[[Row, bool], None]
"""Called with each row, and whether it was stored before."""


@dataclass
class Run:
    """The cases of a search on their way to rows."""

    cases: Sequence[Case]
    recipe: Recipe
    store: Store
    on_row: OnRow = lambda _row, _is_old: None
    found: dict[str, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Work out the keys."""
        self.keys = self.recipe.keys(list(self.cases))
        self._first: dict[str, Case] = {}
        for key, case in zip(self.keys, self.cases, strict=True):
            self._first.setdefault(key, case)

    @property
    def is_open(self) -> bool:
        """Return whether there is anything left to solve."""
        return len(self.found) < len(self._first)

    def resume(self) -> None:
        """Take what the store has of these cases.

        Raises:
            StoreError: it cannot be read.
        """
        for row in self.store.get(list(self._first), self.recipe.limits):
            self._take(row, is_old=True)

    def solve(self, pool: Pool) -> None:
        """Solve what is left, and store each row as it comes.

        Raises:
            StoreError: a row cannot be written.
        """
        for row in pool.rows(self._tasks()):
            self.store.put(row, self._first[row.key], self.recipe.limits)
            self._take(row, is_old=False)

    def _tasks(self) -> Iterator[Task]:
        """Yield what is left, but for what others have stored meanwhile."""
        for key in [key for key in self._first if key not in self.found]:
            for row in self.store.get([key], self.recipe.limits):
                self._take(row, is_old=True)
            if key not in self.found:
                yield Task(key, self._first[key], self.recipe)

    def _take(self, row: Row, is_old: bool) -> None:
        case_row = _of_case(row, self._first[row.key])
        self.found[row.key] = case_row
        self.on_row(case_row, is_old)

    @property
    def rows(self) -> list[Row]:
        """Return the rows found, in the order of the cases."""
        return [
            _of_case(self.found[key], case)
            for key, case in zip(self.keys, self.cases, strict=True)
            if key in self.found
        ]


def _of_case(row: Row, case: Case) -> Row:
    """Return a row with the axes of a case: another search may have stored it."""
    return row.model_copy(update={"name": case.name, "axes": case.axes})
