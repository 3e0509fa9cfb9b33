"""Switches of the code that made a measured run, as the run says them."""

from __future__ import annotations

from meshwright.evidence.run import RunConfig
from meshwright.frameworks.base.registry import framework as framework_named


def fused_of(config: RunConfig, framework: str) -> list[str] | None:
    """Return what a run had fused, None if what its framework has.

    LLM Foundry has flash-attention's cross-entropy beside what FSDP has.
    """
    if "foundry" not in config.framework.lower():
        return None
    return sorted(framework_named(framework).fused | {"loss"})
