"""Kernels of attention of published runs: as they say, else by their era."""

from __future__ import annotations

from meshwright.evidence.assumptions import Assumptions
from meshwright.evidence.published_terms import XLA
from meshwright.evidence.run import Run

NAMES = {
    "triton": ("triton",),
    "flash1": ("flash1", "flashattention-1", "flash attention 1"),
    "flash2": ("flash2", "flashattention-2", "flash attention 2", "flash_attention_2"),
    "flash3": ("flash3", "fa3", "flashattention-3", "flash_attention_3"),
    "flash4": ("flash4", "fa4", "flashattention-4", "flash_attention_4"),
    "cudnn": ("cudnn", "fused", "sdpa cudnn"),
}
"""Words of publications for kernels."""

FLASH_2_SINCE = "2023-07-17"
"""Date of FlashAttention-2 (Dao 2023, arXiv 2307.08691)."""


def attention_of(run: Run, assumed: Assumptions) -> str:
    """Return the attention of a run: plain before fused kernels were common."""
    said = run.config.attention
    if said is not None:
        lower = said.lower()
        for kernel, words in NAMES.items():
            if any(word in lower for word in words):
                return kernel
        return _flash(run) if "flash" in lower else "plain"
    code = run.config.framework.lower()
    is_usual = run.era >= "2023" and "megatron-deepspeed" not in code
    is_fused = "flash" in code or is_usual
    found = _flash(run) if is_fused else "plain"
    return assumed.value("config.attention", found)


def _flash(run: Run) -> str:
    """Return the fused kernel of a run's era; code bases of XLA call cuDNN's."""
    if run.era < FLASH_2_SINCE:
        return "flash1"
    is_xla = any(word in run.config.framework.lower() for word in XLA)
    return "cudnn" if is_xla else "flash"
