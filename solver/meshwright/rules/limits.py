"""Rules that a plan breaks by how much it takes, with the numbers."""

from __future__ import annotations

from meshwright.plans.rule import BrokenRule

MEMORY = "every stage fits in the usable memory of its GPUs"
HOST_MEMORY = "what the GPUs of a host offload fits in its usable memory"
LINK_SHARE = "no link is busy for more than limits.max_link_utilisation of the step"


def memory_rule(needed_gib: float, usable_gib: float, stage: int) -> BrokenRule:
    """Return the rule that every stage fits in a GPU's memory, broken."""
    own = BrokenRule(rule="memory", sentence=MEMORY, unit="GiB", where=f"stage {stage}")
    return _by(own, needed_gib, usable_gib)


def host_memory_rule(needed_gib: float, usable_gib: float, stage: int) -> BrokenRule:
    """Return the rule that GPUs of the fullest stage fit on one host, broken."""
    where = f"hosts of stage {stage}"
    own = BrokenRule(rule="host_memory", sentence=HOST_MEMORY, unit="GiB", where=where)
    return _by(own, needed_gib, usable_gib)


def link_share_rule(used: float, limit: float, link: str) -> BrokenRule:
    """Return the rule on how long a link may be busy, broken."""
    name, unit = "link_utilisation", "of the step"
    own = BrokenRule(rule=name, sentence=LINK_SHARE, unit=unit, where=link)
    return _by(own, used, limit)


def _by(rule: BrokenRule, need: float, have: float) -> BrokenRule:
    return rule.model_copy(update={"need": need, "have": have})
