"""Turns the cases of a search into rows: from the store, the others by a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from meshwright.sweeps.pools import Pool, Task
from meshwright.sweeps.row import Row
from meshwright.sweeps.search_case import Case, SolveSettings
from meshwright.sweeps.store import Store

OnRow = Callable[[Row, bool], None]
"""Called with each row, and whether it was stored before."""


@dataclass
class SearchRun:
    """The cases of a search, and the rows found for them so far."""

    cases: Sequence[Case]
    settings: SolveSettings
    store: Store
    on_row: OnRow = lambda _row, _is_old: None
    found: dict[str, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Compute the key of each case; equal cases share a key and are solved once."""
        self.keys = self.settings.keys(list(self.cases))
        self._first: dict[str, Case] = {}
        for key, case in zip(self.keys, self.cases, strict=True):
            self._first.setdefault(key, case)

    @property
    def is_open(self) -> bool:
        """Return whether a case has no row yet."""
        return len(self.found) < len(self._first)

    def resume(self) -> None:
        """Take the rows that the store has of these cases.

        Raises:
            StoreError: the store cannot be read.
        """
        for row in self.store.get(list(self._first), self.settings.limits):
            self._take(row, is_old=True)

    def solve(self, pool: Pool) -> None:
        """Solve the cases that have no row, and store each row as it comes.

        Raises:
            StoreError: a row cannot be written.
        """
        for row in pool.rows(self._tasks()):
            self.store.put(row, self._first[row.key], self.settings.limits)
            self._take(row, is_old=False)

    def _tasks(self) -> Iterator[Task]:
        """Yield the cases that have no row, not even one stored meanwhile by others."""
        for key in [key for key in self._first if key not in self.found]:
            for row in self.store.get([key], self.settings.limits):
                self._take(row, is_old=True)
            if key not in self.found:
                yield Task(key, self._first[key], self.settings)

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
    """Return a row with the axes of a case; a search with others may have stored it."""
    return row.model_copy(update={"name": case.name, "axes": case.axes})
