"""Techniques: which of TP, PP, DP and CP a plan uses."""

from __future__ import annotations

import numpy as np

from meshwright.plans.columns import Ints
from meshwright.plans.skeletons import Skeletons

NAMES = ("TP", "PP", "DP/ZeRO", "CP")


def techniques_of(rows: Skeletons) -> Ints:
    """Return the set of techniques of each row, one bit for each of `NAMES`."""
    bits = np.stack([rows.tp > 1, rows.pp > 1, rows.dp > 1, rows.cp > 1])
    result: Ints = bits.T @ np.array([1, 2, 4, 8])
    return result


def name_of(techniques: int) -> str:
    """Return the name of a set of techniques, such as 'TP + DP/ZeRO'."""
    used = [name for i, name in enumerate(NAMES) if techniques >> i & 1]
    return " + ".join(used) or "one GPU"
