"""What of a card's memory can be allocated: the one place for it.

A plan needs the CUDA context and communicators of its framework (`overhead_gib`), and
`RESERVED_PER_ALLOCATED` times what PyTorch has allocated at the peak. A card has
`CARD_SHARE` of its nominal memory.
"""

from __future__ import annotations

CARD_SHARE = 0.99
"""Memory that CUDA reports over the nominal one: 79.2 of 80 GiB of A100 and H100, 31.7
of 32 of V100, 178.4 of 180 of B200. The driver keeps the rest."""

RESERVED_PER_ALLOCATED = 1.05
"""Least memory that PyTorch must reserve over what is allocated at the peak, where all
sequences are as long; 1.15 where lengths vary. At the limit its allocator frees what it
does not use, but not fragments: of public messages of runs that ran out of memory,
allocated and requested memory are together 0.93 of the card (median of 16)."""


def needed_gib(allocated_gib: float, overhead_gib: float) -> float:
    """Return the memory that a stage needs of its card, GiB."""
    return RESERVED_PER_ALLOCATED * allocated_gib + overhead_gib


def card_gib(nominal_gib: float) -> float:
    """Return the memory that CUDA reports of a card, GiB."""
    return CARD_SHARE * nominal_gib
