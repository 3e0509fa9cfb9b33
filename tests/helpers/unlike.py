"""Clusters of unlike parts, and random small specs on them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from meshwright.spec.spec import Spec

MODEL = {
    "n_layers": 4,
    "d_model": 1024,
    "n_heads": 8,
    "n_kv_heads": 8,
    "d_ff": 4096,
    "vocab": 8192,
}


def part(gpus: int, tflops: float, memory_gib: float, count: int = 1) -> dict[str, Any]:
    """Return a part: machines of some GPUs on one switch."""
    gpu = {
        "name": f"gpu-{tflops:g}-{memory_gib:g}",
        "memory_gib": memory_gib,
        "memory_gb_s": tflops * 6,
        "peak_tflops": {"bf16": tflops},
    }
    level = {"name": "nvlink", "size": gpus, "gb_s": 200, "latency_us": 1}
    out = {"name": "leaf", "gb_s": 25, "latency_us": 2}
    topology = {"name": f"box-{tflops:g}", "gpu": gpu, "levels": [level]}
    return {"topology": topology | {"scale_out": out}, "count": count}


def mixed(*parts: dict[str, Any], batch: int = 8, **pins: Any) -> Spec:
    """Return a spec on parts that one slow level joins."""
    return Spec.model_validate(mixed_data(*parts, batch=batch, **pins))


def mixed_data(*parts: dict[str, Any], batch: int = 8, **pins: Any) -> dict[str, Any]:
    """Return the data of a spec on parts that one slow level joins."""
    join = {"name": "join", "gb_s": 12.5, "latency_us": 3}
    return {
        "model": MODEL,
        "cluster": {"parts": list(parts), "join": join},
        "training": {"seq_len": 1024, "global_batch": batch},
        "pins": {"cp": 1, "vpp": 1, "sequence_parallel": False} | pins,
    }


@st.composite
def unlike_data(draw: st.DrawFn) -> dict[str, Any]:
    """Return the data of a random small spec on two unlike parts."""
    gpus = draw(st.sampled_from([(2, 2), (1, 1), (2, 1), (1, 3), (4, 2)]))
    tflops = draw(st.sampled_from([50.0, 75.0, 200.0])), 50.0
    gib = [draw(st.sampled_from([40.0, 4.6, 4.3])) for _ in gpus]
    counts = draw(st.sampled_from([(1, 1), (1, 2)]))
    parts = map(part, gpus, tflops, gib, counts)
    pins: dict[str, Any] = {
        "recompute": ["none", "full"],
        "zero": [0, 1],
        "micro_batch": [1, 2],
    }
    return mixed_data(*parts, **pins)
