"""Broken limits of a plan, on memory, host memory and links, with the numbers."""

from __future__ import annotations

from meshwright.plans.rule import BrokenRule

MEMORY = "every stage fits in the usable memory of its GPUs"
HOST_MEMORY = "what the GPUs of a host offload fits in its usable memory"
LINK_SHARE = "no link is busy for more than limits.max_link_utilisation of the step"


def memory_rule(needed_gib: float, usable_gib: float, stage: int) -> BrokenRule:
    """Return the broken rule that every stage fits in the memory of a GPU."""
    where = f"stage {stage}"
    rule = BrokenRule(rule="memory", sentence=MEMORY, unit="GiB", where=where)
    return _with_numbers(rule, needed_gib, usable_gib)


def host_memory_rule(needed_gib: float, usable_gib: float, stage: int) -> BrokenRule:
    """Return the broken rule that the GPUs of the fullest stage fit on their host."""
    where = f"hosts of stage {stage}"
    rule = BrokenRule(rule="host_memory", sentence=HOST_MEMORY, unit="GiB", where=where)
    return _with_numbers(rule, needed_gib, usable_gib)


def link_share_rule(used: float, limit: float, link: str) -> BrokenRule:
    """Return the broken rule on how long a link may be busy."""
    name, unit = "link_utilisation", "of the step"
    rule = BrokenRule(rule=name, sentence=LINK_SHARE, unit=unit, where=link)
    return _with_numbers(rule, used, limit)


def _with_numbers(rule: BrokenRule, need: float, have: float) -> BrokenRule:
    return rule.model_copy(update={"need": need, "have": have})
