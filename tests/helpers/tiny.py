"""Specs of a few layers on one link, small enough to compare with brute force."""

from __future__ import annotations

from typing import Any

from meshwright.spec.spec import Spec

MODEL: dict[str, Any] = {"d_model": 512, "n_heads": 8, "d_ff": 2048, "vocab": 512}


def tiny_spec(
    framework: str,
    memory_gib: float,
    gpus: int,
    model: dict[str, Any],
    batch: int = 8,
    **pins: Any,
) -> Spec:
    """Return a spec whose `model` has these fields beside those of `MODEL`."""
    levels = [{"name": "link", "size": gpus, "gb_s": 50, "latency_us": 1}]
    gpu = {"memory_gib": memory_gib, "memory_gb_s": 900, "peak_tflops": {"bf16": 100}}
    data = {
        "model": {**MODEL, "tied_embeddings": False, **model},
        "cluster": {"topology": {"gpu": gpu, "levels": levels}},
        "framework": framework,
        "training": {"seq_len": 2048, "global_batch": batch},
        "limits": {"memory_margin": 0},
        "pins": pins,
    }
    return Spec.model_validate(data)
