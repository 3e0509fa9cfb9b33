"""Power limits of GPUs: clocks follow the cube root of the power."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

import meshwright as mw
from meshwright.spec.gpu import Gpu

FIELDS: dict[str, Any] = {
    "memory_gib": 80,
    "memory_gb_s": 3350,
    "peak_tflops": {"bf16": 989},
    "tdp_w": 700,
}


def limited(spec: mw.Spec, power_limit_w: float) -> mw.Spec:
    """Return a spec with a power limit set on its GPUs."""
    topology = spec.cluster.topology
    gpu = topology.gpu.model_copy(update={"power_limit_w": power_limit_w})
    topology = topology.model_copy(update={"gpu": gpu})
    cluster = spec.cluster.model_copy(update={"topology": topology})
    return spec.model_copy(update={"cluster": cluster})


def test_clocks_fall_with_the_cube_root_of_the_power() -> None:
    assert Gpu(**FIELDS).clock_share == 1
    assert Gpu(**FIELDS, power_limit_w=700).clock_share == 1
    half = Gpu(**FIELDS, power_limit_w=87.5)
    assert half.clock_share == pytest.approx(0.5)
    assert half.power_w == 87.5


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"power_limit_w": 701}, "701: expected at most tdp_w, 700"),
        ({"tdp_w": None}, "expected tdp_w beside it"),
    ],
)
def test_limits_are_below_what_the_board_takes(
    wrong: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValidationError, match=told):
        Gpu(**{**FIELDS, "power_limit_w": 500, **wrong})


def test_steps_take_longer_and_less_energy_under_a_limit() -> None:
    spec = mw.load("llama2-13b-8xa100", mw.Spec)
    power_w = spec.cluster.topology.gpu.tdp_w
    assert power_w is not None
    free, capped = (
        mw.solve(one, by_kind=False, fastest=True).best
        for one in (spec, limited(spec, 0.7 * power_w))
    )
    assert free is not None
    assert capped is not None
    assert free.step_s < capped.step_s < free.step_s / 0.7 ** (1 / 3)
    assert 0.7 * capped.step_s < free.step_s
