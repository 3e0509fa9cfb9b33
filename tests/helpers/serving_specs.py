"""Specs of serving for tests, small ones and bundled models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from meshwright import catalog
from meshwright.results.serving import ServingPlan
from meshwright.serving.deployment import ServingJob, make_serving_job
from meshwright.spec.plan_fields import AXES
from meshwright.spec.serving import ServingSpec

GPU = {
    "name": "plain",
    "memory_gib": 40,
    "memory_gb_s": 1000,
    "peak_tflops": {"bf16": 100, "fp8": 200},
    "matmul_share": 1.0,
    "matmul_share_fp8": 1.0,
}

MIB = 1 / 1024

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
    data: dict[str, Any] = catalog.read(path).data
    return data


def serving_spec(*args: Any, **kwargs: Any) -> ServingSpec:
    """Return a spec on a cluster of plain GPUs, and links between them."""
    return ServingSpec.model_validate(serving_data(*args, **kwargs))


def serving_data(
    model: dict[str, Any] | str = "llama3-8b",
    gpus: tuple[int, ...] = (1,),
    pins: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
    gpu: dict[str, Any] | None = None,
    gb_s: float = 100.0,
    **inference: Any,
) -> dict[str, Any]:
    """Return the data of a spec of serving; further words go to `inference`."""
    shape = bundled_model(model) if isinstance(model, str) else model
    levels = [
        {"name": f"level{i}", "size": size, "gb_s": gb_s / (i + 1), "latency_us": 2}
        for i, size in enumerate(gpus)
    ]
    asked = {"batch": 8, "prompt_len": 7680, "output_len": 512, **inference}
    return {
        "model": shape,
        "cluster": {"topology": {"gpu": {**GPU, **(gpu or {})}, "levels": levels}},
        "inference": asked,
        "pins": pins or {},
        "limits": limits or {},
    }


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


@st.composite
def questions(draw: st.DrawFn) -> dict[str, Any]:
    """Return what a random small spec of serving asks, as `serving_spec` takes it."""
    heads = draw(st.sampled_from([(4, 4), (4, 2), (6, 3)]))
    moe = {"n_experts": 4, "top_k": 2, "d_ff": 192, "first_dense_layers": 1}
    shape = {
        "n_layers": draw(st.integers(1, 6)),
        "n_heads": heads[0],
        "n_kv_heads": heads[1],
        "d_model": 192,
        "moe": moe if draw(st.booleans()) else None,
    }
    if shape["n_layers"] == 1:
        shape["moe"] = None
    # Of context and communicators; what comes on top is what models have room in.
    pins, overhead_gib = draw(
        st.sampled_from(
            [
                ({}, 1.5),
                ({"dp_replicate": 1}, 2.3),
                ({"pp": {"min": 2}}, 1.9),
                ({"pp": {"min": 2}, "tp": 1}, 1.9),
                ({"tp": {"min": 2}, "pp": 1}, 1.9),
            ]
        )
    )
    slo = {"tpot_ms": draw(st.floats(0.1, 5))} if draw(st.booleans()) else {}
    return {
        "model": TINY | shape,
        "gpus": draw(st.sampled_from([(1,), (2,), (4,), (2, 2), (3, 2)])),
        "gpu": {"memory_gb_s": draw(st.sampled_from([5, 1000]))},
        "gb_s": draw(st.sampled_from([1, 100])),
        "pins": pins,
        "limits": {"memory_gib": overhead_gib + draw(st.floats(1, 12)) * MIB},
        "batch": draw(st.integers(1, 5)),
        "prompt_len": draw(st.sampled_from([1, 40, 300])),
        "output_len": draw(st.sampled_from([1, 2, 30])),
        "prefill_tokens": draw(st.sampled_from([64, 8192])),
        "objective": draw(st.sampled_from(["latency", "throughput"])),
        "precision": draw(st.sampled_from(["bf16", "fp8", "int4"])),
        "slo": slo,
    }
