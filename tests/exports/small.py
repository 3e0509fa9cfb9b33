"""A small plan of each target; its files stand word by word in `tests/data/exports`."""

from __future__ import annotations

from pathlib import Path

import meshwright as mw

DATA = Path(__file__).parents[1] / "data" / "exports"

FRAMEWORKS = {
    "megatron": "megatron",
    "megatron-bridge": "megatron",
    "deepspeed": "deepspeed",
    "torchtitan": "torchtitan",
    "accelerate": "fsdp",
    "axolotl": "fsdp",
    "llama-factory": "deepspeed",
    "trl": "fsdp",
    "nanotron": "nanotron",
    "verl": "megatron",
    "slime": "megatron",
}

PINS: dict[str, dict[str, object]] = {
    "megatron": {"tp": 2, "pp": 4, "recompute": "none"},
    "megatron-bridge": {"tp": 2, "pp": 4, "recompute": "none"},
    "deepspeed": {"zero": 2, "recompute": "full", "offload": "none"},
    "torchtitan": {"tp": 2, "pp": 2, "cp": 1, "zero": 2, "vpp": 2},
    "accelerate": {"zero": 3, "recompute": "full", "dp_replicate": 2},
    "axolotl": {"zero": 3, "tp": 2, "recompute": "full", "dp_replicate": 2},
    "llama-factory": {"zero": 2, "tp": 1, "cp": 1, "pp": 1, "offload": "none"},
    "trl": {"zero": 2, "tp": 1, "cp": 2, "recompute": "full"},
    "verl": {"tp": 2, "pp": 2, "vpp": 1, "zero": 1, "recompute": "full"},
    "slime": {"tp": 2, "pp": 2, "vpp": 1, "zero": 1, "recompute": "selective"},
    "nanotron": {"tp": 2, "pp": 2, "cp": 2, "recompute": "full"},
}
RECOMPUTED: dict[str, dict[str, object]] = {"torchtitan": {"recompute": "selective"}}


def spec_of(target: str, **model: object) -> mw.Spec:
    """Return the spec of two hosts whose plan is exported."""
    pins = PINS[target] | RECOMPUTED.get(target, {})
    spec = {
        "model": {**LLAMA, **model},
        "cluster": {"topology": "dgx-h100", "count": 2},
        "framework": FRAMEWORKS[target],
        "training": {"seq_len": 8192, "global_batch": 128},
        "pins": pins,
    }
    return mw.load(spec, mw.Spec)


LLAMA = {
    "name": "llama",
    "n_layers": 32,
    "d_model": 4096,
    "n_heads": 32,
    "n_kv_heads": 8,
    "d_ff": 14336,
    "vocab": 128256,
    "gated_mlp": True,
    "norm": "rmsnorm",
    "bias": "none",
    "tied_embeddings": False,
}


def exported(target: str, **model: object) -> mw.Export:
    """Return the best plan of a small spec as files of a target."""
    spec = spec_of(target, **model)
    return mw.export(spec, mw.solve(spec, by_kind=False), to=target)
