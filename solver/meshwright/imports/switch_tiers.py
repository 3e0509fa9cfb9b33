"""Makes the fan-outs of a tree of switches regular, with a note where they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

TIERS = ("leaf", "spine", "core", "hall", "site")
"""Names of levels of switches, innermost first. None ends in a digit, since a number
follows in the names of switches."""


def most_common_size(sizes: Sequence[int], what: str, notes: list[str]) -> int:
    """Return the most common size; of two that are equally common, the smaller."""
    counts = Counter(sizes)
    most = max(counts.values())
    size = min(size for size, count in counts.items() if count == most)
    if len(counts) > 1:
        others = ", ".join(map(str, sorted(set(counts) - {size})[:8]))
        notes.append(
            f"{what}: {most} of {len(sizes)} have {size}, others {others}; "
            f"{size} is taken for all."
        )
    return size
