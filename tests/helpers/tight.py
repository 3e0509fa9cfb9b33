"""Random small specs on which mostly nothing fits: tight memory, many decisions."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from tests.helpers.strategies import spec_data

CHOICES: dict[str, list[Any]] = {
    "tp": [1, 2, 3, 4],
    "pp": [1, 2, 3],
    "zero": [0, 1, 2, 3],
    "micro_batch": [1, 2, 4],
    "cp": [1, 2],
    "recompute": ["none", "full", "selective", ["none", "full"]],
    "sequence_parallel": [True, False],
    "dp_replicate": [1, 2],
}


@st.composite
def tight_data(draw: st.DrawFn, most_gpus: int = 6) -> dict[str, Any]:
    """Return the data of a random spec of few GPUs and layers; most have no plan."""
    data = draw(spec_data(4).filter(lambda given: _gpus(given) <= most_gpus))
    gpu = data["cluster"]["topology"]["gpu"]
    gpu["memory_gib"] *= draw(st.sampled_from([0.3, 0.6, 0.9, 1.0]))
    names = draw(st.sets(st.sampled_from(sorted(CHOICES)), max_size=4))
    for name in sorted(names):
        data["pins"][name] = draw(st.sampled_from(CHOICES[name]))
    # Which links are idle enough only a solve tells: few specs ask for it.
    if draw(st.integers(0, 7)):
        data["limits"].pop("max_link_utilisation", None)
    return data


def leading_dense_data() -> dict[str, Any]:
    """Return a spec whose leading layer saves far less than those with experts."""
    experts = {"n_experts": 4, "top_k": 2, "d_ff": 1024, "shared_d_ff": 2048}
    model = {
        "n_layers": 3, "d_model": 2048, "n_heads": 16, "d_ff": 4096, "vocab": 512,
        "tied_embeddings": False, "moe": {**experts, "first_dense_layers": 1},
    }  # fmt: skip
    host = {"gpus": 2, "memory_gib": 1, "pcie_gb_s": 25, "memory_gb_s": 400}
    gpu = {"memory_gib": 80, "memory_gb_s": 3_000, "peak_tflops": {"bf16": 300}}
    link = {"name": "link", "size": 2, "gb_s": 300, "latency_us": 1}
    return {
        "model": model,
        "cluster": {"topology": {"gpu": gpu, "levels": [link], "host": host}},
        "framework": "fsdp",
        "training": {"seq_len": 4_096, "global_batch": 8},
        "limits": {"memory_gib": 2.9, "memory_margin": 0},
        "pins": {"offload": ["none", "optimizer"]},
    }


def _gpus(data: dict[str, Any]) -> int:
    return math.prod(one["size"] for one in data["cluster"]["topology"]["levels"])
