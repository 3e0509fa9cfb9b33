"""How many layers are recomputed, under what each framework can be told."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.check.check import broken_rules
from meshwright.cost.job import make_job
from meshwright.explanations.explain import explain
from meshwright.plans.plan import Plan, Stage
from meshwright.results.outcome import Outcome
from meshwright.solver.pipeline import solve
from meshwright.spec.framework_names import framework_names
from meshwright.spec.spec import Spec
from tests.solver.test_brute_force import compare

ROOM = {"none": 5.0, "part": 3.4, "all": 2.4}
"""GiB of a GPU with room for all activations, for some, and for few."""


def spec(framework: str, memory_gib: float, **pins: Any) -> Spec:
    """Return a spec of two stages whose first holds the most micro-batches."""
    levels = [{"name": "link", "size": 2, "gb_s": 50, "latency_us": 1}]
    gpu = {"memory_gib": memory_gib, "memory_gb_s": 900, "peak_tflops": {"bf16": 100}}
    model = {"n_layers": 6, "d_model": 512, "n_heads": 8, "d_ff": 2048, "vocab": 512}
    data = {
        "model": model,
        "cluster": {"topology": {"gpu": gpu, "levels": levels}},
        "framework": framework,
        "training": {"seq_len": 2048, "global_batch": 8},
        "limits": {"memory_margin": 0},
        "pins": {"pp": 2, "micro_batch": 2, **pins},
    }
    return Spec.model_validate(data)
