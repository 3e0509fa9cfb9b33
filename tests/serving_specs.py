"""Specs of serving for tests, small ones and bundled models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from meshwright import catalog
from meshwright.serving.job import ServingJob, make_serving_job
from meshwright.serving.plan import ServingPlan
from meshwright.spec.pins import AXES
from meshwright.spec.serving import ServingSpec

GPU = {
    "name": "plain",
    "memory_gib": 40,
    "memory_gb_s": 1000,
    "peak_tflops": {"bf16": 100, "fp8": 200},
    "matmul_share": 1.0,
    "matmul_share_fp8": 1.0,
}

TINY = {
    "n_layers": 7,
    "d_model": 256,
    "n_heads": 8,
    "n_kv_heads": 4,
    "d_ff": 512,
    "vocab": 1024,
    "gated_mlp": True,
    "norm": "rmsnorm",
    "bias": "none",
    "tied_embeddings": False,
}


def bundled_model(name: str) -> dict[str, Any]:
    path = catalog.locate("specs/models", name, Path())
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return data


def serving_spec(
    model: dict[str, Any] | str = "llama3-8b",
    gpus: tuple[int, ...] = (1,),
    pins: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
    gpu: dict[str, Any] | None = None,
    gb_s: float = 100.0,
    **inference: Any,
) -> ServingSpec:
    """Return a spec on a cluster of plain GPUs, and links between them."""
    shape = bundled_model(model) if isinstance(model, str) else model
    levels = [
        {"name": f"level{i}", "size": size, "gb_s": gb_s / (i + 1), "latency_us": 2}
        for i, size in enumerate(gpus)
    ]
    asked = {"batch": 8, "prompt_len": 7680, "output_len": 512, **inference}
    return ServingSpec.model_validate(
        {
            "model": shape,
            "cluster": {"topology": {"gpu": {**GPU, **(gpu or {})}, "levels": levels}},
            "inference": asked,
            "pins": pins or {},
            "limits": limits or {},
        }
    )


def serving_job(*args: Any, **kwargs: Any) -> ServingJob:
    return make_serving_job(serving_spec(*args, **kwargs))


def serving_plan(
    job: ServingJob, tp: int = 1, layers: tuple[int, ...] = (), groups: int = 1
) -> ServingPlan:
    """Return a plan on one level of GPUs; all layers on one stage unless said."""
    layers = layers or (job.model.n_layers,)
    degrees = dict.fromkeys(AXES, 1) | {"tp": tp, "pp": len(layers)}
    degrees["dp_replicate"] = job.spec.cluster.gpus // (tp * len(layers))
    return ServingPlan(
        tp=tp,
        pp=len(layers),
        dp_replicate=degrees["dp_replicate"],
        microbatches=groups,
        layers=layers,
        mesh={axis: (degree,) for axis, degree in degrees.items()},
    )
