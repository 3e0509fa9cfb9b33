"""State that takes fewer bytes: 16-bit moments, fp8 weights alone, frozen weights."""

from __future__ import annotations

from meshwright.spec.training import Training

STATE_OPTIONS = frozenset({"moments", "master_weights", "fp8_weights"})
"""Fields of `training` by which state takes fewer bytes than usual."""


FROZEN_WEIGHTS = frozenset({"bf16", "nf4", "int8"})
"""Formats of frozen weights: plain ones, and those of bitsandbytes."""


def special_state(training: Training) -> frozenset[str]:
    """Return which of those fields are not at their defaults."""
    fields = type(training).model_fields
    return frozenset(
        name
        for name in STATE_OPTIONS
        if getattr(training, name) != fields[name].default
    )


def master_bytes(training: Training) -> int:
    """Return the bytes of what an optimizer keeps beside a 16-bit weight."""
    return 2 if training.master_weights == "remainders" else 4
