"""The specs whose best plans `benchmarks.launch` exports: bundled ones and others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import meshwright as mw
from meshwright.frameworks.base.registry import framework as framework_named
from meshwright.spec.training import Lora

BUNDLED = (
    "gpt-1.3b-2x3090-nvlink",
    "gpt-1.3b-2xa100-pcie",
    "gpt-1.3b-2xh100-nvlink",
    "gpt-1.3b-dgx-1v",
    "gpt2-xl-2x3090-2x4090",
    "gpt2-xl-2x3090-nvlink",
    "gpt2-xl-2x4090-pcie",
    "gpt2-xl-2xh100-nvlink",
    "gpt3-175b-1024xa100",
    "llama2-13b-8xa100",
    "llama2-13b-8xh100-8xa100",
    "llama2-7b-64xh200-ddp",
    "llama3-70b-128xa100",
    "llama3-70b-16xh100",
    "llama3-70b-256xh100",
    "llama3-8b-2xa100-pcie",
    "llama3-8b-2xh100-nvlink",
    "llama3-8b-512xa100-degraded",
    "mixtral-8x7b-64xh100",
    "mpt-30b-512xh100-90days",
    "mpt-30b-512xh100",
)

TARGETS = {
    "megatron": ("megatron", "megatron-bridge", "verl", "slime"),
    "deepspeed": ("deepspeed", "llama-factory"),
    "torchtitan": ("torchtitan",),
    "fsdp": ("accelerate", "axolotl", "trl"),
    "nanotron": ("nanotron",),
}
"""The targets that launch plans of a framework."""

VARIED: tuple[tuple[str, str, int, int, int], ...] = (
    # model, machine, machines, sequence, batch
    ("llama3-8b", "dgx-a100", 1, 4096, 64),
    ("llama3-8b", "dgx-h100", 2, 8192, 128),
    ("qwen3-8b", "dgx-h100", 1, 4096, 64),
    ("qwen3-32b", "dgx-h100", 8, 8192, 256),
    ("llama2-70b", "dgx-a100", 16, 4096, 512),
    ("llama3-70b", "dgx-h100", 32, 8192, 512),
    ("llama3-405b", "dgx-h100", 128, 8192, 1024),
    ("llama3-405b", "dgx-h100", 512, 8192, 2048),
    ("qwen3-30b-a3b", "dgx-h100", 8, 4096, 512),
    ("mixtral-8x22b", "dgx-h100", 16, 4096, 512),
    ("qwen3-235b-a22b", "dgx-h100", 64, 4096, 1024),
    ("deepseek-v3", "dgx-h100", 256, 4096, 4096),
)

PINS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("", {}),
    ("-no-recompute", {"recompute": "none"}),
    ("-all-recompute", {"recompute": "full"}),
)
"""The best plan of all, and those that recompute nothing, or every layer."""

ON_HOST = ("-inputs-on-host", {"recompute": "full-cpu"})
"""The best that recomputes every layer from an input in host memory, if some can."""


OF_PAIRS = {"fsdp": ("axolotl", "trl"), "deepspeed": ("llama-factory",)}
"""The targets that train on pairs of answers, by framework."""

PAIRED = VARIED[:4]
"""What is trained so, beside a frozen copy of the model."""


def cases() -> Iterator[tuple[str, str, mw.Spec]]:
    """Yield the name, the target and the spec of each case."""
    for name in BUNDLED:
        spec = mw.load(name, mw.Spec)
        for target in TARGETS[spec.framework]:
            yield name, target, spec
    for framework, targets in TARGETS.items():
        for model, machine, count, sequence, batch in VARIED:
            can = "full-cpu" in framework_named(framework).on_host
            for more, pins in (*PINS, ON_HOST) if can else PINS:
                found = _spec(framework, model, machine, count, sequence, batch)
                spec = mw.load({**found, "pins": pins}, mw.Spec)
                for target in targets:
                    yield f"{model}-{spec.cluster.gpus}{more}", target, spec
    for framework, targets in OF_PAIRS.items():
        for asked in PAIRED:
            spec = mw.load(_spec(framework, *asked), mw.Spec)
            spec = spec.having("training", reference_model="bf16")
            for target in targets:
                yield f"{asked[0]}-{spec.cluster.gpus}-pairs", target, spec
    for asked in PAIRED:
        spec = mw.load(_spec("fsdp", *asked), mw.Spec).having("training", mlp_chunks=4)
        yield f"{asked[0]}-{spec.cluster.gpus}-mlp-in-parts", "axolotl", spec
        spec = spec.having("training", lora=Lora(ends="mixed"), mlp_chunks=1)
        for target in TARGETS["fsdp"]:
            yield f"{asked[0]}-{spec.cluster.gpus}-adapters-and-ends", target, spec


def _spec(
    framework: str, model: str, machine: str, count: int, sequence: int, batch: int
) -> dict[str, Any]:
    cluster: dict[str, Any] = {"topology": machine, "count": count}
    training = {"seq_len": sequence, "global_batch": batch}
    return {
        "model": model,
        "cluster": cluster,
        "framework": framework,
        "training": training,
    }
