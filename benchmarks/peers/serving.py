"""Published throughputs of serving: what aiconfigurator says of them, and we do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.serving.by_source import by_source
from benchmarks.serving.fit import left_out, tried
from benchmarks.serving.rows import Row, rows

Told = list[dict[str, Any]] | str


def served(ask: Callable[[list[dict[str, Any]]], Told]) -> Table | str:
    """Return errors of both on what both price, or why the peer does not run.

    Ours are those of fits to the other sources.
    """
    found = [row for row in rows() if row.metric == "tokens_per_s"]
    told = ask([job_of(row) for row in found])
    if isinstance(told, str):
        return f"aiconfigurator {told}"
    others = left_out(found, [tried(row) for row in found])
    pairs = [
        (row, answer["tokens_per_s"])
        for row, answer in zip(found, told, strict=True)
        if "tokens_per_s" in answer
    ]
    priced = [row for row, _ in pairs]
    title = f"Serving: {len(priced)} of {len(found)} throughputs have kernels there"
    columns = {
        "ours": np.array([row.error(others[row.source]) for row in priced]),
        "aiconfigurator": np.array([math.log(one / r.measured) for r, one in pairs]),
    }
    return by_source(title, priced, columns)


def job_of(row: Row) -> dict[str, Any]:
    """Return a throughput as it was run, for a peer's interpreter."""
    model, inference = row.spec.model, row.spec.inference
    sizes = ("name", "n_layers", "d_model", "n_heads", "n_kv_heads", "d_ff", "vocab")
    return {
        "model": {name: getattr(model, name) for name in sizes}
        | {"gated_mlp": model.gated_mlp, "tied_embeddings": model.tied_embeddings},
        "gpu": row.spec.cluster.topology.gpu.name,
        "tp": row.plan.tp,
        "batch": row.in_flight,
        "prompt_len": inference.prompt_len,
        "output_len": inference.output_len,
        "precision": inference.precision,
        "kv_precision": inference.kv_precision,
    }
