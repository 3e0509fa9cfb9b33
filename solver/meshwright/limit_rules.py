"""Rules that a plan breaks by how much it takes, with the numbers."""

from __future__ import annotations

from meshwright.plan import BrokenRule

MEMORY = "every stage fits in the usable memory of its GPUs"
HOST_MEMORY = "what the GPUs of a host offload fits in its usable memory"
LINK_SHARE = "no link is busy for more than limits.max_link_utilisation of the step"


def memory_rule(needed_gib: float, usable_gib: float, stage: int) -> BrokenRule:
    """Return the rule that every stage fits in a GPU's memory, broken."""
    return BrokenRule(
        rule="memory",
        sentence=MEMORY,
        have=usable_gib,
        need=needed_gib,
        unit="GiB",
        where=f"stage {stage}",
    )


def host_memory_rule(needed_gib: float, usable_gib: float, stage: int) -> BrokenRule:
    """Return the rule that GPUs of the fullest stage fit on one host, broken."""
    return BrokenRule(
        rule="host_memory",
        sentence=HOST_MEMORY,
        have=usable_gib,
        need=needed_gib,
        unit="GiB",
        where=f"hosts of stage {stage}",
    )


def link_share_rule(used: float, limit: float, link: str) -> BrokenRule:
    """Return the rule on how long a link may be busy, broken."""
    return BrokenRule(
        rule="link_utilisation",
        sentence=LINK_SHARE,
        have=limit,
        need=used,
        unit="of the step",
        where=link,
    )
