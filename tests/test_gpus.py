"""The bundled GPUs: peaks are dense, and follow from units, width and clock."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshwright import catalog
from meshwright.spec.gpu import Gpu
from meshwright.spec.source import read_yaml

KIND = "topologies/gpus"

UNITS = {
    # Multiprocessors (AMD: compute units), dense 16-bit FLOPs of one per clock with
    # fp32 accumulate, and the boost clock in GHz, from the vendors' whitepapers.
    "v100-sxm-16gb": (80, 1024, 1.53),
    "v100-sxm-32gb": (80, 1024, 1.53),
    "a100-pcie-80gb": (108, 2048, 1.41),
    "a100-sxm-40gb": (108, 2048, 1.41),
    "a100-sxm-80gb": (108, 2048, 1.41),
    "a800-sxm-80gb": (108, 2048, 1.41),
    "h100-pcie-80gb": (114, 4096, 1.62),
    "h100-nvl-94gb": (132, 4096, 1.545),
    "h100-sxm-80gb": (132, 4096, 1.83),
    "h200-sxm-141gb": (132, 4096, 1.83),
    "l4-24gb": (58, 1024, 2.04),
    "a6000-48gb": (84, 1024, 1.80),
    "a40-48gb": (84, 1024, 1.74),
    "rtx-3090": (82, 512, 1.695),
    "rtx-4090": (128, 512, 2.52),
    "rtx-5090-32gb": (170, 512, 2.407),
    "mi250x": (110, 1024, 1.7),
    "mi300x-192gb": (304, 2048, 2.1),
    "mi325x-256gb": (304, 2048, 2.1),
    "mi355x-288gb": (256, 4096, 2.4),
}

PRINTED = {
    # Printed with sparsity, TFLOP/s of one GPU: 36 PFLOPS over 8 GPUs, 360 over 72.
    "b200-sxm-180gb": 4_500,
    "b300-sxm-288gb": 4_500,
    "gb200-186gb": 5_000,
    "gb300-288gb": 5_000,
    # The datasheet prints 362.05 and 733.
    "l40s-48gb": 733,
}


def gpu(name: str) -> Gpu:
    return Gpu.model_validate(read_yaml(catalog.locate(KIND, name, Path())).data)


def test_every_gpu_has_a_check() -> None:
    assert set(catalog.names(KIND)) == UNITS.keys() | PRINTED.keys()


@pytest.mark.parametrize(("name", "units"), UNITS.items())
def test_peak_is_units_times_clock(name: str, units: tuple[int, int, float]) -> None:
    """With sparsity, or fp16 accumulate on a GeForce, it would be twice this."""
    count, flops_per_clock, clock_ghz = units
    tflops = count * flops_per_clock * clock_ghz / 1e3
    assert gpu(name).peak_tflops.fp16 == pytest.approx(tflops, rel=0.004)


@pytest.mark.parametrize(("name", "sparse"), PRINTED.items())
def test_peak_is_half_of_that_with_sparsity(name: str, sparse: float) -> None:
    assert gpu(name).peak_tflops.fp16 == pytest.approx(sparse / 2, rel=0.013)


@pytest.mark.parametrize("name", catalog.names(KIND))
def test_precisions_are_in_proportion(name: str) -> None:
    """16-bit formats run alike, tf32 at half of that or less, fp32 slower still."""
    known, peaks = gpu(name), gpu(name).peak_tflops
    assert known.name == name
    assert peaks.fp16 is not None
    assert peaks.fp32 is not None
    assert peaks.bf16 in (peaks.fp16, None)
    assert peaks.tf32 is None or peaks.fp32 <= peaks.tf32 < 0.51 * peaks.fp16


@pytest.mark.parametrize("name", catalog.names(KIND))
def test_memory_is_about_that_of_the_name(name: str) -> None:
    """Vendors print GB or GiB; the driver, ECC and spare rows take up to 7 % of it."""
    printed = re.search(r"(\d+)gb$", name)
    if printed:
        assert 0.93 < gpu(name).memory_gib / int(printed[1]) <= 1
