"""The decisions that a plan is made of, as columns of whole numbers with names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class DecisionTable:
    """The rows to choose from: one complete set of decisions each.

    Rows stand in the order of preference among equals. Words are codes.
    """

    names: tuple[str, ...]
    values: Ints
    """The value of every decision, (rows, names)."""
    least_ticks: Ints
    """Ticks that no split of a row's layers goes below, (rows,)."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.values)

    def column(self, name: str) -> Ints:
        """Return the value of a decision in every row."""
        return np.asarray(self.values[:, self.names.index(name)])
