"""Kinds of plans: which of TP, PP, DP and CP they use."""

from __future__ import annotations

import numpy as np

from meshwright.plans.columns import Ints
from meshwright.plans.skeletons import Skeletons

NAMES = ("TP", "PP", "DP/ZeRO", "CP")


def kind_of(rows: Skeletons) -> Ints:
    """Return a number for the axes that rows use, one bit each, as in `NAMES`."""
    bits = np.stack([rows.tp > 1, rows.pp > 1, rows.dp > 1, rows.cp > 1])
    result: Ints = bits.T @ np.array([1, 2, 4, 8])
    return result


def kind_name(kind: int) -> str:
    """Return the axes of a kind, such as 'TP + DP/ZeRO'."""
    used = [name for i, name in enumerate(NAMES) if kind >> i & 1]
    return " + ".join(used) or "one GPU"
