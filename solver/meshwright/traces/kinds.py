"""The kind of a kernel or an operator of a trace, by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

Kind = Literal[
    "matmul",
    "attention",
    "elementwise",
    "optimizer",
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "send-recv",
    "memcpy",
    "other",
]

Phase = Literal[
    "compute", "optimizer", "collectives", "all-to-all", "send-recv", "copies", "idle"
]

PHASE_OF: dict[Kind, Phase] = {
    "matmul": "compute",
    "attention": "compute",
    "elementwise": "compute",
    "other": "compute",
    "optimizer": "optimizer",
    "all-gather": "collectives",
    "reduce-scatter": "collectives",
    "all-reduce": "collectives",
    "all-to-all": "all-to-all",
    "send-recv": "send-recv",
    "memcpy": "copies",
}
"""The phase of a step that a kind belongs to, those first that hide others: what runs
at the same time counts for the first of them."""

PHASES: tuple[Phase, ...] = (*dict.fromkeys(PHASE_OF.values()), "idle")

MESSAGES: tuple[tuple[str, Kind], ...] = (
    ("all_?to_?all", "all-to-all"),
    ("all_?gather", "all-gather"),
    ("reduce_?scatter", "reduce-scatter"),
    ("all_?reduce|broadcast|ncclDevKernel_Reduce", "all-reduce"),
    ("send|recv", "send-recv"),
)
"""Collectives by a piece of their name: of NCCL's kernels, of RCCL's, of gloo's and
c10d's operators."""

KERNELS: tuple[tuple[str, Kind], ...] = (
    ("flash|fmha|sdpa|scaled_dot_product|attention|attn|mha_", "attention"),
    ("adam|multi_tensor|foreach|lamb_|sgd|muon|newton_schulz", "optimizer"),
    (
        "gemm|gemv|cutlass|cublas|nvjet|xmma|wgmma|Cijk_|splitK|matmul|"
        "aten::(mm|bmm|addmm|baddbmm|linear|conv|mv|dot|einsum)",
        "matmul",
    ),
    ("Memcpy (HtoD|DtoH)|Memcpy (Host|Device)To(Device|Host)", "memcpy"),
    (
        "elementwise|vectorized|norm|softmax|triton_|reduce|dropout|embedding|index|"
        "gelu|silu|swiglu|relu|rope|rotary|cross_entropy|nll_loss|copy|Memcpy|Memset|"
        "fill|cat|transpose|scatter|gather|permute|topk|sort|cast|aten::",
        "elementwise",
    ),
)
"""Kernels by a piece of their name; the first that fits counts."""

IS_MESSAGE = re.compile("nccl|rccl|c10d|gloo|mpi:", re.IGNORECASE)
_MESSAGES = [(re.compile(own, re.IGNORECASE), kind) for own, kind in MESSAGES]
_KERNELS = [(re.compile(own, re.IGNORECASE), kind) for own, kind in KERNELS]


def kind_of(name: str, about: Mapping[str, Any]) -> Kind:
    """Return the kind of a kernel by its name and what its trace says about it.

    PyTorch says of a kernel of NCCL which collective it is part of: those of an
    all-to-all are sends by name.
    """
    if IS_MESSAGE.search(name):
        told = str(about.get("Collective name") or "")
        for pattern, kind in _MESSAGES:
            if pattern.search(told or name):
                return kind
        return "other"
    for pattern, kind in _KERNELS:
        if pattern.search(name):
            return kind
    return "other"
