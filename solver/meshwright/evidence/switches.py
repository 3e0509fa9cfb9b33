"""Switches of the code that made a measured run: as it says them, else by its era."""

from __future__ import annotations

from meshwright.evidence.assumptions import Assumptions
from meshwright.evidence.published_terms import XLA
from meshwright.evidence.run import Run
from meshwright.frameworks.base.registry import framework as framework_named
from meshwright.frameworks.base.switches import SWITCHES
from meshwright.spec.training import Overlap

_WORDS = {"grad": "gradients", "param": "parameters", "tp ": "tp", "p2p": "pp"}
_WORDS |= {"a2a": "ep", "expert": "ep"}
"""Words of publications for traffic that hides."""

_TUNED = ("nemo", "bridge", "megatron-core", "primus")
"""Code bases on Megatron Core whose recipes hide gradients and weights; Megatron-LM
itself hides nothing unless told (distributed_data_parallel_config.py)."""


FUSED_NORM_SINCE = "2025-10"
"""Date of PyTorch 2.9, from which RMSNorm is one kernel without a compiler."""


def is_compiled(run: Run) -> bool:
    """Return whether a compiler fused the kernels of a run: torch.compile or XLA."""
    if run.config.compile is not None:
        return run.config.compile
    code = run.config.framework.lower()
    return any(word in code for word in (*XLA, "torch.compile"))


def fused_of(run: Run, framework: str) -> list[str] | None:
    """Return what a run had fused, None if what its framework has.

    LLM Foundry has flash-attention's cross-entropy beside what FSDP has.
    """
    if run.config.fused is not None:
        return list(run.config.fused)
    own = framework_named(framework)
    usual = own.fused
    fused = usual | ({"loss"} if "foundry" in run.config.framework.lower() else set())
    is_plain = own.has_plain_norm and not is_compiled(run)
    if is_plain and run.era < FUSED_NORM_SINCE:
        fused -= {"norm"}
    return None if fused == usual else sorted(fused)


GRAPHS_SINCE = "2026-08"
"""Date from which torchtitan's runs are taken to replay CUDA graphs (0.3.0)."""


def cuda_graphs_of(run: Run) -> bool | str | None:
    """Return whether graphs replayed a run: not before any framework had them."""
    if run.config.cuda_graphs is not None:
        return run.config.cuda_graphs
    return None if run.era >= GRAPHS_SINCE else False


def overlap_of(run: Run, framework: str, assumed: Assumptions) -> dict[str, bool]:
    """Return which traffic a run hid behind compute.

    Megatron-LM and DeepSpeed hide nothing unless told, but for DeepSpeed's ZeRO-3
    (zero/config.py: `overlap_comm_valid`) and the sends of interleaved stages since
    2023. Other code bases do as their framework.
    """
    words = run.config.overlap
    if words is not None:
        said = {kind for word, kind in _WORDS.items() if word in words.lower()}
        return {kind: kind in said for kind in Overlap.model_fields}
    code = run.config.framework.lower()
    own = framework_named(framework)
    if not own.asks_overlap:
        return {}
    if any(word in code for word in _TUNED):
        on = {"gradients", "parameters", "pp"}
    elif "zero-3" in code or run.config.zero_stage == 3:
        on = {"gradients", "parameters"}
    else:
        on = {"pp"} & own.overlap if run.era >= "2023" else set()
    text = ", ".join(sorted(on)) or "none"
    assumed.value("config.overlap", text)
    return {kind: kind in on for kind in Overlap.model_fields}


_SAID_AS = {"context_exchange": "cp_comm_type"}
"""By the field of `training`, the field of a run that says it under another name."""


def said_by(run: Run) -> frozenset[str]:
    """Return the names of the switches that a run says itself."""
    said = (
        switch.name
        for switch in SWITCHES
        if getattr(run.config, _SAID_AS.get(switch.field, switch.field)) is not None
    )
    return frozenset(said)
