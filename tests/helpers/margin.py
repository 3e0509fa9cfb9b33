"""Specs whose usable memory is a plain share of a card, for arithmetic by hand."""

from __future__ import annotations

from meshwright.spec.spec import Spec


def with_margin(spec: Spec, share: float = 0.03) -> Spec:
    """Return a spec whose plans leave a share of memory free, whatever the risk."""
    limits = spec.limits.model_copy(update={"memory_margin": share})
    return spec.model_copy(update={"limits": limits})
