"""The bundled GPUs: peaks are dense, and follow from units, width and clock."""

from __future__ import annotations

import calendar
import re
from pathlib import Path

import pytest

from meshwright import catalog
from meshwright.reading.yaml_and_csv import read_yaml
from meshwright.spec.gpu import Gpu

KIND = "topologies/gpus"

UNITS = {
    # Multiprocessors (AMD: compute units), dense 16-bit FLOPs of one per clock with
    # fp32 accumulate, and the boost clock in GHz, from the vendors' whitepapers.
    "v100-sxm-16gb": (80, 1024, 1.53),
    "v100-sxm-32gb": (80, 1024, 1.53),
    # 14 TFLOP/s of fp32 at 128 per clock and multiprocessor: 1.37 GHz.
    "v100-pcie-16gb": (80, 1024, 1.37),
    "v100-pcie-32gb": (80, 1024, 1.37),
    "a100-pcie-40gb": (108, 2048, 1.41),
    "a100-pcie-80gb": (108, 2048, 1.41),
    "a100-sxm-40gb": (108, 2048, 1.41),
    "a100-sxm-80gb": (108, 2048, 1.41),
    "a800-sxm-80gb": (108, 2048, 1.41),
    "a800-pcie-80gb": (108, 2048, 1.41),
    "a30-24gb": (56, 2048, 1.44),
    "a10-24gb": (72, 1024, 1.695),
    "a10g-24gb": (80, 512, 1.71),
    "t4-16gb": (40, 1024, 1.59),
    "h100-pcie-80gb": (114, 4096, 1.62),
    "h100-nvl-94gb": (132, 4096, 1.545),
    "h100-sxm-80gb": (132, 4096, 1.83),
    "h200-sxm-141gb": (132, 4096, 1.83),
    "h200-nvl-141gb": (132, 4096, 1.545),
    "h800-sxm-80gb": (132, 4096, 1.83),
    "gh200-96gb": (132, 4096, 1.83),
    "gh200-144gb": (132, 4096, 1.83),
    "gb10-128gb": (48, 1024, 2.54),
    "l40-48gb": (142, 512, 2.49),
    "rtx-pro-6000-96gb": (188, 1024, 2.617),
    "rtx-pro-6000-server-96gb": (188, 1024, 2.5),
    "rtx-pro-6000-max-q-96gb": (188, 1024, 2.288),
    "l4-24gb": (58, 1024, 2.04),
    "a6000-48gb": (84, 1024, 1.80),
    "a40-48gb": (84, 1024, 1.74),
    "a5000-24gb": (64, 1024, 1.695),
    "rtx-6000-ada-48gb": (142, 1024, 2.505),
    "rtx-3090": (82, 512, 1.695),
    "rtx-4090": (128, 512, 2.52),
    "rtx-5090-32gb": (170, 512, 2.407),
    "mi250x": (110, 1024, 1.7),
    "mi210-64gb": (104, 1024, 1.7),
    "mi300a-128gb": (228, 2048, 2.1),
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
    # Printed without: 148 of 16 bits, and of Gaudi 3 459 of fp16.
    "h20-sxm-96gb": 2 * 148,
    "gaudi3-128gb": 2 * 459,
}

FASTEST_IN_BF16 = {"gaudi3-128gb"}
"""Whose matrix engines run fp16 at a quarter of the rate of bf16."""

PEERS_GB_S = {
    # What the vendors print: all links, both ways together.
    "v100-sxm-16gb": 300,
    "v100-sxm-32gb": 300,
    "a100-pcie-40gb": 600,
    "a100-pcie-80gb": 600,
    "a100-sxm-40gb": 600,
    "a100-sxm-80gb": 600,
    "a800-sxm-80gb": 400,
    "a800-pcie-80gb": 400,
    "h20-sxm-96gb": 900,
    "h800-sxm-80gb": 400,
    "h200-nvl-141gb": 900,
    "gh200-96gb": 900,
    "gh200-144gb": 900,
    "a30-24gb": 200,
    "a40-48gb": 112.5,
    "a5000-24gb": 112.5,
    "a6000-48gb": 112.5,
    "rtx-3090": 112.5,
    "h100-pcie-80gb": 600,
    "h100-nvl-94gb": 600,
    "h100-sxm-80gb": 900,
    "h200-sxm-141gb": 900,
    "b200-sxm-180gb": 1800,
    "b300-sxm-288gb": 1800,
    "gb200-186gb": 1800,
    "gb300-288gb": 1800,
    # A die has half of the card's 800 to other cards, and 400 to the die beside it.
    "mi250x": 800 / 2 + 400,
    "mi210-64gb": 300,
    # Between four APUs, both ways.
    "mi300a-128gb": 768,
    # 21 ports of 200 Gbit/s.
    "gaudi3-128gb": 1050,
    "mi300x-192gb": 896,
    "mi325x-256gb": 896,
    "mi355x-288gb": 1075.2,
}

PCIE_3 = {name for name in UNITS if name.startswith(("v100", "t4"))}
PCIE_5 = {"h100-pcie-80gb", "h100-nvl-94gb", "h100-sxm-80gb", "h200-sxm-141gb"}
PCIE_5 |= {"b200-sxm-180gb", "b300-sxm-288gb", "rtx-5090-32gb"}
PCIE_5 |= {"h20-sxm-96gb", "h800-sxm-80gb", "h200-nvl-141gb"}
PCIE_5 |= {name for name in UNITS if name.startswith("rtx-pro")}
PCIE_5 |= {"mi300a-128gb", "gaudi3-128gb"}
PCIE_5 |= {"mi300x-192gb", "mi325x-256gb", "mi355x-288gb"}

C2C_GB_S = {
    "gb200-186gb": 450,
    "gb300-288gb": 450,
    "gh200-96gb": 900,
    "gh200-144gb": 900,
}
"""Both ways to the Grace CPU: two GPUs of GB200 share 900 GB/s."""


SYSTEM_GPUS = {
    "DGX-1 with V100": ("v100-sxm-16gb", 8),
    "DGX A100": ("a100-sxm-80gb", 8),
    "DGX H100": ("h100-sxm-80gb", 8),
    "DGX H200": ("h200-sxm-141gb", 8),
    "DGX B200": ("b200-sxm-180gb", 8),
    "GB200 NVL72": ("gb200-186gb", 72),
}

SYSTEM_KW = {
    # What NVIDIA prints as the most that the whole machine draws.
    "DGX-1 with V100": 3.5,
    "DGX A100": 6.5,
    "DGX H100": 10.2,
    "DGX H200": 10.2,
    "DGX B200": 14.3,
    "GB200 NVL72": 132,
}

BY_POWER = [
    ("v100-pcie-16gb", "v100-sxm-16gb"),
    ("a100-pcie-40gb", "a100-pcie-80gb", "a100-sxm-80gb"),
    ("h100-pcie-80gb", "h100-nvl-94gb", "h100-sxm-80gb"),
    ("h200-sxm-141gb", "b200-sxm-180gb", "b300-sxm-288gb"),
    ("gb200-186gb", "gb300-288gb"),
    ("l4-24gb", "l40-48gb", "l40s-48gb"),
    ("rtx-3090", "rtx-4090", "rtx-5090-32gb"),
    ("mi250x", "mi300x-192gb", "mi325x-256gb", "mi355x-288gb"),
]

BY_PRICE = (
    *("v100-sxm-16gb", "a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm-80gb"),
    *("h200-sxm-141gb", "b200-sxm-180gb", "b300-sxm-288gb"),
)


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
    assert peaks.bf16 in (peaks.fp16, None) or name in FASTEST_IN_BF16
    most = peaks.bf16 if name in FASTEST_IN_BF16 else peaks.fp16
    assert most is not None
    assert peaks.tf32 is None or peaks.fp32 <= peaks.tf32 < 0.51 * most


@pytest.mark.parametrize("name", catalog.names(KIND))
def test_memory_is_about_that_of_the_name(name: str) -> None:
    """Vendors print GB or GiB; the driver, ECC and spare rows take up to 7 % of it."""
    printed = re.search(r"(\d+)gb$", name)
    if printed:
        assert 0.93 < gpu(name).memory_gib / int(printed[1]) <= 1


@pytest.mark.parametrize("name", catalog.names(KIND))
def test_links_to_peers_add_up_to_what_is_printed(name: str) -> None:
    known = gpu(name)
    assert known.peer_links is not None
    assert (known.peer_links > 0) == (known.peer_link_gb_s is not None)
    both_ways = 2 * known.peer_links * (known.peer_link_gb_s or 0)
    assert both_ways == pytest.approx(PEERS_GB_S.get(name, 0))


@pytest.mark.parametrize("name", catalog.names(KIND))
def test_copies_reach_four_fifths_of_the_port(name: str) -> None:
    """16 lanes at 8, 16 or 32 GT/s, of 130 bits for each 128."""
    giga_transfers = 8 if name in PCIE_3 else 32 if name in PCIE_5 else 16
    gb_s = giga_transfers * 16 * 128 / 130 / 8
    port = C2C_GB_S.get(name, 2 * gb_s) / 2
    assert gpu(name).pcie_gb_s == pytest.approx(0.8 * port, rel=0.01)


@pytest.mark.parametrize(("machine", "kilowatts"), SYSTEM_KW.items())
def test_gpus_draw_about_half_of_their_machine(machine: str, kilowatts: float) -> None:
    """The rest is for CPUs, NICs, NVSwitches, fans and losses."""
    name, count = SYSTEM_GPUS[machine]
    tdp_w = gpu(name).tdp_w
    assert tdp_w is not None
    assert 0.45 < count * tdp_w / 1e3 / kilowatts < 0.75


@pytest.mark.parametrize("family", BY_POWER, ids=lambda family: family[-1])
def test_power_grows_within_a_family(family: tuple[str, ...]) -> None:
    """Cards draw less than modules of the same chip, and successors draw more."""
    watts = [gpu(name).tdp_w or 0 for name in family]
    assert watts == sorted(set(watts))


@pytest.mark.parametrize("name", catalog.names(KIND))
def test_power_is_that_of_a_board(name: str) -> None:
    """Dense 16-bit TFLOP/s per watt go from 0.2 (GeForce 30) to 2.3 (Blackwell)."""
    known = gpu(name)
    assert known.tdp_w is not None
    assert 30 < known.tdp_w < 2_000
    assert known.peak_tflops.fp16 is not None
    assert 0.2 < known.peak_tflops.fp16 / known.tdp_w < 2.4


def test_newer_gpus_cost_more_by_the_hour() -> None:
    prices = [gpu(name).hour_usd or 0 for name in BY_PRICE]
    assert prices == sorted(set(prices))
    assert prices[0] > 0


@pytest.mark.parametrize("name", catalog.names(KIND))
def test_prices_are_dated(name: str) -> None:
    """A price without a provider and a month says nothing."""
    text = catalog.locate(KIND, name, Path()).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("hour_usd")]
    months = "|".join(calendar.month_name[1:])
    assert len(lines) == (gpu(name).hour_usd is not None)
    assert all(re.search(rf"# \w+, .*\b({months}) 20\d\d", line) for line in lines)
