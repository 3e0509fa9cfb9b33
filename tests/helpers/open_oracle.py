"""Open specs by brute force: every choice is walked on its own, and then compared.

Where plans are recommended by their doubted steps, so are choices compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from meshwright.cost.profile import Profile
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.run_before import DECISIONS
from meshwright.spec.spec import Spec
from tests.helpers.oracle import brute_force
from tests.helpers.simplicity_oracle import everything
from tests.helpers.strategies import spec_data

MOST_GPUS = 8
"""Brute force walks all plans of so many GPUs."""

OBJECTIVES: list[Any] = [
    "step_s",
    "usd_per_mtoken",
    "kwh_per_mtoken",
    "train_days",
    ["gpus", "step_s"],
    [{"step_s": 0.3}, "gpus"],
    [{"usd_per_mtoken": 0.1}, {"gpus": 0.5}, "step_s"],
    [{"step_s": 0.02}, "simplest"],
    [{"usd_per_mtoken": 0.2}, "simplest"],
    [{"gpus": 0.5}, {"step_s": 0.05}, "simplest"],
]

RULES: list[Any] = [
    [],
    [],
    [{"that": "gpus <= 5"}],
    [{"that": "tp <= 2 or gpus < 4"}],
    [{"that": "global_batch % 4 == 0"}],
]


@dataclass(frozen=True)
class WalkedChoice:
    """A choice and the least step over all of its plans, doubted or not."""

    spec: Spec
    step_s: float

    def value(self, metric: str) -> float:
        """Return what a level minimises, up to a factor that all choices share."""
        gpus, batch = self.spec.cluster.gpus, self.spec.training.global_batch
        if metric == "gpus":
            return float(gpus)
        paid = gpus if metric in ("usd_per_mtoken", "kwh_per_mtoken") else 1
        return paid * self.step_s / batch


@st.composite
def open_data(draw: st.DrawFn) -> dict[str, Any]:
    """Return a random small spec that leaves machines, sequences or both open."""
    data = draw(spec_data(4).filter(_is_small))
    topology = data["cluster"]["topology"]
    machine = math.prod(level["size"] for level in topology["levels"])
    if draw(st.booleans()):
        joined = {**topology["levels"][-1], "name": "between machines"}
        joined.pop("size")
        most = min(4, MOST_GPUS // machine)
        counts = draw(st.lists(st.integers(1, most), min_size=1, max_size=3))
        data["cluster"] = {"topology": {**topology, "scale_out": joined}}
        data["cluster"]["count"] = counts
    batches = draw(st.lists(st.integers(1, 24), min_size=1, max_size=3))
    data["training"]["global_batch"] = batches
    data["objective"] = draw(st.sampled_from(OBJECTIVES))
    data["rules"] = draw(st.sampled_from(RULES))
    data["run"] = {"gpu_hour_price": 2.0}
    topology["gpu"]["tdp_w"] = 400
    return data


def _is_small(data: dict[str, Any]) -> bool:
    sizes = [level["size"] for level in data["cluster"]["topology"]["levels"]]
    return bool(math.prod(sizes) <= MOST_GPUS // 2)


def walked(question: OpenSpec, profile: Profile) -> list[WalkedChoice]:
    """Return every choice with its least step, infinite where no plan fits.

    It is the least doubted one if the objective leaves simplicity a tolerance.
    """
    return [
        WalkedChoice(choice, least_s(profile.applied_to(choice)))
        for choice in question.choices
    ]


def least_s(spec: Spec) -> float:
    """Return the least step of a spec, or the least doubted one, as it is compared."""
    fastest_s, share = brute_force(spec).step_s, spec.run_before.share
    if not (share and spec.objective.tolerance) or math.isinf(fastest_s):
        return fastest_s
    most_s = fastest_s * (1 + share * len(DECISIONS))
    return everything(spec, most_s).least_doubted_s


def best_value(
    choices: list[WalkedChoice], levels: Sequence[tuple[str, float]], off: float
) -> float:
    """Return the least value of the last level among choices that the others leave.

    Tolerances are widened by `off`, as a share.
    """
    left = [choice for choice in choices if math.isfinite(choice.step_s)]
    for metric, tolerance in levels[:-1]:
        most = min((one.value(metric) for one in left), default=0.0)
        left = [
            one for one in left if one.value(metric) <= most * (1 + tolerance + off)
        ]
    return min((one.value(levels[-1][0]) for one in left), default=math.inf)
