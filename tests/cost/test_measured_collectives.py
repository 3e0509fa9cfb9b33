"""Collectives that others timed with nccl-tests, on the bundled machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from meshwright.cost.traffic import all_gather_s, all_reduce_s
from meshwright.plans.columns import Floats
from meshwright.spec.topology import USUAL_BUS_SHARE
from meshwright.topology.fabric_builder import build_fabric
from tests.helpers.irregular import loaded

MIB = 2**20


class Timed(NamedTuple):
    """A collective over all GPUs of some machines, as it was measured."""

    machine: str
    machines: int
    seconds: Callable[..., Floats]
    us_by_mib: dict[int, float]
    off: float
    """Largest ratio of the predicted time and the measured one, either way."""


TIMED = {
    # GoogleCloudPlatform/cluster-toolkit, example READMEs
    "TCPXO": Timed(
        "a3-megagpu-8g", 2, all_gather_s,
        {16: 197.88, 64: 517.87, 256: 1_510.98, 1_024: 5_531.01, 8_192: 42_668.7}, 1.7,
    ),
    # dstackai/dstack, cluster examples
    "TCPX": Timed(
        "a3-highgpu-8g", 2, all_gather_s,
        {8: 784.9, 64: 1_432.6, 128: 2_516.9, 1_024: 20_431.0, 8_192: 160_505.0}, 1.8,
    ),
    # GoogleCloudPlatform/cluster-toolkit, example READMEs
    "RoCE": Timed(
        "a3-ultragpu-8g", 2, all_gather_s,
        {1: 79.74, 16: 122.9, 64: 294.7, 256: 877.5, 1_024: 3_105.7, 8_192: 24_489.0},
        1.8,
    ),
    # coreweave/nccl-tests, README; the bundled machine has the usual share
    "InfiniBand": Timed(
        "dgx-h100", 8, all_reduce_s,
        {512: 2_984.6, 1_024: 5_808.0, 2_048: 11_163.0, 8_192: 43_980.0}, 1.3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TIMED)
def test_collectives_take_what_was_measured(name: str) -> None:
    own = TIMED[name]
    cluster = loaded({"topology": own.machine, "count": own.machines}).cluster
    fabric = build_fabric(cluster)
    mesh = np.array([[[8, own.machines]]])
    s_per_byte = fabric.loads(mesh)[0].max(axis=1) / USUAL_BUS_SHARE
    step_s, members = fabric.latency_s(mesh)[0], np.array([8 * own.machines])
    ratios = {
        size: float(own.seconds(np.array([size * MIB]), members, s_per_byte, step_s)[0])
        / (measured_us * 1e-6)
        for size, measured_us in own.us_by_mib.items()
    }
    assert all(1 / own.off < ratio < own.off for ratio in ratios.values()), ratios
    # Large messages tell the share of the link alone.
    largest = ratios[max(ratios)]
    assert largest == pytest.approx(1, abs=0.25)
