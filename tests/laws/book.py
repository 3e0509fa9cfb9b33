"""The laws, in order."""

from __future__ import annotations

from tests.laws import (
    asked_plans,
    batches,
    brute_force,
    certificate,
    conflicts,
    framework_limits,
    limits,
    more,
    open_numbers,
    parts,
    pins,
    replans,
    risk,
    spellings,
    user_rules,
    workers,
)

LAWS = (
    brute_force.LAW,
    open_numbers.LAW,
    parts.LAW,
    pins.LAW,
    user_rules.LAW,
    replans.LAW,
    asked_plans.LAW,
    more.LAW,
    risk.LAW,
    workers.LAW,
    limits.LAW,
    framework_limits.LAW,
    spellings.LAW,
    batches.LAW,
    conflicts.CONFLICTS,
    conflicts.REPAIRS,
    certificate.LAW,
)
"""Each stands in a file of its own."""
