"""Runs of a made-up site, whose times and memory follow from what is planted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from meshwright.calibration.responses import Alternative, Response, responses_of
from meshwright.cost.profile import Profile
from meshwright.evidence.price import Priced, price_run
from meshwright.evidence.runs import Measured, Run
from meshwright.spec.goals import MemorySpread
from tests.evidence.test_runs import row

PROFILE = Profile(memory={"any": MemorySpread(sigma=0.05)})

PLANS = (
    {"tp": 1, "pp": 1, "dp": 16},
    {"tp": 2, "pp": 1, "dp": 8},
    {"tp": 4, "pp": 2, "dp": 2},
    {"tp": 8, "pp": 1, "dp": 2},
    {"tp": 1, "pp": 4, "dp": 4},
    {"tp": 2, "pp": 2, "dp": 4},
)


@cache
def site() -> tuple[tuple[Priced, ...], tuple[Response, ...]]:
    """Return plans of one site, none of them measured, and their responses."""
    runs = []
    for plan in PLANS:
        data = row(id="-".join(map(str, plan.values())), date="2026-11-01")
        data["model"] |= {"d_model": 4096, "d_ff": 16384, "n_heads": 32}
        data["model"] |= {"seq_len": 4096, "n_layers": 16}
        data["config"] |= {**plan, "recompute": "none", "precision": "bf16"}
        data["measured"] = {}
        runs.append(price_run(Run.model_validate(data), PROFILE))
    return tuple(runs), responses_of(runs, PROFILE)


def measured(one: Priced, **fields: Any) -> Priced:
    """Return a run with what was measured."""
    kind = {"peak_memory_kind": "allocated"}
    found = Measured.model_validate({**kind, **fields})
    return replace(one, run=one.run.model_copy(update={"measured": found}))


def planted(
    *alternatives: Alternative, factor: float = 1.0, noise: float = 0.0
) -> list[Priced]:
    """Return the runs of a site whose code has some switches set otherwise.

    All times are multiplied by the factor; their logarithms differ by up to `noise`.
    """
    result = []
    rng = np.random.default_rng(0)
    for one, response in zip(*site(), strict=True):
        share = sum(
            response.slower.get(alternative, 0.0) for alternative in alternatives
        )
        more_gib = sum(
            response.more_gib.get(alternative, 0.0) for alternative in alternatives
        )
        step_s = factor * np.exp(response.log_s) * (1 + share)
        result.append(
            measured(
                one,
                step_time_s=float(step_s * np.exp(rng.uniform(-noise, noise))),
                peak_memory_gb=response.allocated_gib + more_gib,
            )
        )
    return result
