"""Rules that a plan breaks by how much it takes, with the numbers."""

from __future__ import annotations

from meshwright.plan import BrokenRule


def memory_rule(needed_gib: float, usable_gib: float) -> BrokenRule:
    """Return the rule that every stage fits in a GPU's memory, broken."""
    sentence = "every stage fits in the usable memory of its GPUs"
    return BrokenRule(
        rule="memory", sentence=sentence, have=usable_gib, need=needed_gib, unit="GiB"
    )


def host_memory_rule(needed_gib: float, usable_gib: float) -> BrokenRule:
    """Return the rule that GPUs of the fullest stage fit on one host, broken."""
    sentence = "what the GPUs of a host offload fits in its usable memory"
    return BrokenRule(
        rule="host_memory",
        sentence=sentence,
        have=usable_gib,
        need=needed_gib,
        unit="GiB",
    )


def link_share_rule(have: float, need: float) -> BrokenRule:
    """Return the rule on how long a link may be busy, broken."""
    sentence = "no link is busy for more than limits.max_link_utilisation of the step"
    return BrokenRule(rule="link_utilisation", sentence=sentence, have=have, need=need)
