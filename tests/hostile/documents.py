"""Harmless specs with a token wherever the schema takes text."""

from __future__ import annotations

from typing import Any

MODEL = {
    "name": "Xmodel0X", "n_layers": 4, "d_model": 256, "n_heads": 4, "n_kv_heads": 2,
    "d_ff": 1024, "vocab": 8000, "details": {"hub": "Xhub0X"},
}  # fmt: skip
GPU = {
    "name": "Xgpu0X", "memory_gib": 4, "memory_gb_s": 500,
    "peak_tflops": {"bf16": 50}, "tdp_w": 250,
}  # fmt: skip
JOB = {
    "framework": "megatron",
    "training": {"seq_len": 512, "global_batch": 8},
    "run": {"tokens": 1_000_000_000, "gpu_hour_price": 0.5},
    "rules": [{"name": "own", "that": "tp <= 64", "because": "Xreason0X"}],
}


def _machine(number: int, gpus: int) -> dict[str, Any]:
    return {
        "name": f"Xmachine{number}X",
        "gpu": GPU | {"name": f"Xgpu{number}X"},
        "levels": [
            {"name": f"Xlevel{number}X", "size": gpus, "gb_s": 20, "latency_us": 3}
        ],
        "scale_out": {
            "name": f"Xout{number}X", "gb_s": 2, "latency_us": 10, "uplink": "shared"
        },
    }  # fmt: skip


def _graph() -> dict[str, Any]:
    """Return two CPUs, each with two GPUs and a NIC, below a leaf."""
    names = [f"Xg{i}X" for i in range(4)]
    nodes = [{"name": name, "kind": "gpu"} for name in names]
    nodes += [{"name": f"Xcpu{i}X", "kind": "switch"} for i in range(2)]
    nodes += [{"name": f"Xnic{i}X", "kind": "nic"} for i in range(2)]
    pairs = [(name, f"Xcpu{i // 2}X") for i, name in enumerate(names)]
    pairs += [(f"Xnic{i}X", f"Xcpu{i}X") for i in range(2)]
    pairs += [("Xcpu0X", "Xcpu1X")]
    return {
        "name": "Xgraph0X",
        "gpu": GPU,
        "nodes": nodes,
        "links": [
            {"between": list(pair), "gb_s": 20, "latency_us": 1} for pair in pairs
        ],
        "levels": [
            {"name": "Xleaf0X", "size": 2, "gb_s": 5, "latency_us": 2,
             "uplink": "per_nic"}
        ],
    }  # fmt: skip


JOIN = {"name": "Xjoin0X", "gb_s": 2, "latency_us": 10, "uplink": "shared"}

TREE = {"model": MODEL, "cluster": {"topology": _machine(0, 2), "count": 2}, **JOB}
ALTERNATING = MODEL | {
    "kinds": {"Xnear0X": {"attention_window": 128}, "Xfar0X": {}},
    "pattern": ["Xnear0X", "Xfar0X"],
}
GRAPH = {
    "model": ALTERNATING,
    "cluster": {
        "topology": _graph(),
        "overrides": [
            {"host": 0, "link": ["Xcpu0X", "Xcpu1X"], "gb_s": 5},
            {"host": 1, "node": "Xnic1X"},
        ],
    },
    **JOB,
}
PARTS = {
    "model": MODEL,
    "cluster": {
        "parts": [
            {"topology": _machine(0, 2), "count": 2},
            {"topology": _machine(1, 2), "count": 1},
        ],
        "join": JOIN,
    },
    **JOB,
}
TOO_LARGE = TREE | {"model": MODEL | {"n_layers": 900, "d_model": 8192}}
"""No plan of it fits."""

TRAINING = {"tree": TREE, "graph": GRAPH, "parts": PARTS, "too large": TOO_LARGE}

SERVING = {
    "model": MODEL,
    "cluster": {"topology": _machine(0, 2)},
    "inference": {"batch": 4, "prompt_len": 256, "output_len": 64},
}

PARTS_OF_GRAPHS = PARTS | {
    "cluster": {
        "parts": [{"topology": _graph()}, {"topology": _machine(1, 2)}],
        "join": JOIN,
    }
}
"""It is refused."""
