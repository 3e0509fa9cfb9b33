"""Random small specs: 2 to 16 GPUs, 2 to 12 layers, tight and loose memory."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from meshwright.cost.framework import OVERHEAD_GIB
from meshwright.spec.spec import Framework, Spec

SHAPES = [
    [2], [3], [4], [5], [6], [8], [12],
    [2, 2], [2, 3], [3, 2], [4, 2], [2, 4], [3, 4], [4, 4], [6, 2], [2, 8],
    [2, 2, 2], [2, 2, 3], [2, 3, 2], [4, 2, 2],
]  # fmt: skip
"""Fan-outs of one, two and three levels; many are not powers of two."""

FRAMEWORKS: list[Framework] = [
    "megatron",
    "deepspeed",
    "internevo",
    "torchtitan",
    "fsdp",
]


@st.composite
def specs(draw: st.DrawFn, most_layers: int = 12) -> Spec:
    """Return a random small spec."""
    return Spec.model_validate(draw(spec_data(most_layers)))


@st.composite
def spec_data(draw: st.DrawFn, most_layers: int = 12) -> dict[str, Any]:
    """Return the data of a random small spec."""
    layers = draw(st.integers(2, most_layers))
    heads, kv_heads = draw(
        st.sampled_from([(8, 8), (12, 4), (6, 2), (16, 16), (12, 12)])
    )
    width = heads * draw(st.sampled_from([64, 128]))
    model = {
        "n_layers": layers,
        "d_model": width,
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "d_ff": width * draw(st.sampled_from([2, 3, 4])),
        "vocab": draw(st.sampled_from([512, 8_000, 50_000])),
        "gated_mlp": draw(st.booleans()),
        "tied_embeddings": draw(st.booleans()),
        "learned_positions": draw(st.sampled_from([0, 8_192])),
        "dropout": draw(st.booleans()),
    }
    sizes = draw(st.sampled_from(SHAPES))
    # Shards of the state, once to eleven times, and room for activations.
    state_gib = 18 * 12 * layers * width**2 / 2**30 / math.prod(sizes)
    framework = draw(st.sampled_from(FRAMEWORKS))
    memory_gib = OVERHEAD_GIB[framework] + 0.1
    memory_gib += state_gib * (1 + 10 ** draw(st.floats(-2.0, 1.0)))
    memory_gib += 10 ** draw(st.floats(-1.5, 0.7))
    return {
        "model": model,
        "cluster": {"topology": draw(_topologies(sizes, memory_gib))},
        "framework": framework,
        "training": {
            "seq_len": draw(st.sampled_from([256, 960, 4_096, 8_192])),
            "global_batch": draw(st.sampled_from([4, 6, 8, 12, 24, 30])),
            "attention": draw(st.sampled_from(["flash", "plain"])),
        },
        "limits": draw(_limits()),
        # Few stages where layers are many: the brute force walks every split.
        "pins": {"pp": {"max": 4 if layers > 6 else 6}},
    }


@st.composite
def _limits(draw: st.DrawFn) -> dict[str, float]:
    limits = {}
    if draw(st.integers(0, 5)) == 0:
        shares = st.sampled_from([0.05, 0.2, 0.5, 0.8])
        limits["max_link_utilisation"] = draw(shares)
    if draw(st.integers(0, 5)) == 0:
        limits["tp_min_link_gb_s"] = draw(st.sampled_from([20.0, 60.0, 200.0]))
    return limits


@st.composite
def _topologies(draw: st.DrawFn, sizes: list[int], memory_gib: float) -> dict[str, Any]:
    gb_s = draw(st.sampled_from([10.0, 31.5, 300.0, 900.0]))
    levels = []
    for index, size in enumerate(sizes):
        levels.append(
            {
                "name": f"level{index}",
                "size": size,
                "gb_s": gb_s,
                "latency_us": draw(st.sampled_from([0.5, 2.0, 10.0])),
                "uplink": draw(st.sampled_from(["per_gpu", "shared"])),
            }
        )
        gb_s = gb_s / draw(st.sampled_from([1.0, 2.0, 8.0]))
    gpu = {
        "memory_gib": memory_gib,
        "memory_gb_s": draw(st.sampled_from([900.0, 3_000.0])),
        "peak_tflops": {"bf16": draw(st.sampled_from([70.0, 312.0, 989.0]))},
    }
    return {"gpu": gpu, "levels": levels}
