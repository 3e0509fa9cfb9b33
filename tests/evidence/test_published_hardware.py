"""Published words for hardware become clusters, at the vendors' rates."""

from __future__ import annotations

import pytest

from meshwright import catalog
from meshwright.cost.profile import Profile
from meshwright.evidence.price import price_run
from meshwright.evidence.published_spec import find_cluster, find_gpu, find_node
from meshwright.evidence.published_terms import Assumptions, Unpriced
from meshwright.evidence.runs import Run, RunHardware, read_runs
from meshwright.spec.topology import USUAL_BUS_SHARE
from tests.evidence.test_runs import RUNS, shipped

NODELESS = {
    "mi250x", "mi210-64gb", "mi300a-128gb", "gaudi3-128gb", "gb10-128gb"
}  # fmt: skip
"""No run of them is published here. Two dies of an MI250X share a package, so that no
one rate tells how they reach each other."""


@pytest.mark.parametrize(
    ("words", "gb_s", "uplink"),
    [
        ("8x HDR200 InfiniBand per node", 25.0, "per_gpu"),
        ("Omni-Path 4x100 Gb/s per node (NCCL measured less)", 50.0, "shared"),
        ("RoCE 1600 Gb/s per node", 200.0, "shared"),
        ("InfiniBand NDR400 per GPU (Eos)", 50.0, "per_gpu"),
        (None, 25.0, "per_gpu"),
    ],
)
def test_networks_are_read_from_the_words_of_their_owners(
    words: str | None, gb_s: float, uplink: str
) -> None:
    """1 Gbit/s is 0.125 GB/s; fewer adapters than GPUs are shared by the node."""
    hardware = RunHardware(gpu="A100-80GB-SXM", n_gpus=16, inter_node=words)
    network = find_cluster(hardware, Assumptions()).levels[1]
    assert (network.gb_s, network.uplink) == (gb_s, uplink)


def test_a_run_may_say_that_its_gpus_are_not_the_usual_ones() -> None:
    """Clocks fall with the cube root of the power (Mudge 2001)."""
    said = {"memory_gib": 95.58, "memory_gb_s": 2400, "power_limit_w": 500}
    hardware = RunHardware.model_validate({"gpu": "H100", "n_gpus": 8, **said})
    gpu = find_cluster(hardware, Assumptions()).topology.gpu
    usual = find_gpu("H100")
    assert gpu.model_dump() == usual.model_dump() | said
    assert gpu.clock_share == pytest.approx((500 / 700) ** (1 / 3))


def test_a_power_limit_above_the_rating_is_refused() -> None:
    hardware = RunHardware(gpu="H100", n_gpus=8, power_limit_w=900)
    with pytest.raises(Unpriced, match="900: expected at most tdp_w, 700"):
        find_cluster(hardware, Assumptions())


def test_gpus_are_found_by_the_names_of_publications() -> None:
    known = {
        "A100-80GB-SXM": "a100-sxm-80gb",
        "A100-40GB-SXM": "a100-sxm-40gb",
        "H100-80GB-SXM": "h100-sxm-80gb",
        "V100-32GB-SXM2": "v100-sxm-32gb",
        "V100-16GB-SXM2": "v100-sxm-16gb",
        "H100": "h100-sxm-80gb",
        "A100-SXM": "a100-sxm-80gb",
        "h800": "h800-sxm-80gb",
        "h20": "h20-sxm-96gb",
        "RTX3090": "rtx-3090",
        "RTX4090": "rtx-4090",
        "H100-96GB": "h100-nvl-94gb",
        "A6000-Ada": "rtx-6000-ada-48gb",
        "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
    }
    assert {name: find_gpu(name).name for name in known} == known
    with pytest.raises(Unpriced, match="A900"):
        find_gpu("A900")


@pytest.mark.parametrize(
    ("words", "gb_s", "uplink"),
    [
        # 3.2 Tbit/s are 400 GB/s, for the whole node unless a text says otherwise.
        ("EFA v2, 3200 Gb/s", 400.0, "shared"),
        ("3.2 Tb/s per node", 400.0, "shared"),
        ("GPUDirect-TCPX, 4x200 Gb/s", 100.0, "shared"),
        ("400 Gbps per GPU", 50.0, "per_gpu"),
        # 16 adapters for 8 GPUs are two each.
        ("EFA v3, 16x200 Gb/s per node", 50.0, "per_gpu"),
        ("HDR InfiniBand", 25.0, "per_gpu"),
        # Bytes have eight bits.
        ("InfiniBand 8x50 GB/s", 50.0, "per_gpu"),
        ("8x 12.5 GB/s", 12.5, "per_gpu"),
        ("400 GB/s", 400.0, "shared"),
        ("50 GB/s per GPU", 50.0, "per_gpu"),
    ],
)
def test_rates_are_a_nodes_unless_a_gpu_is_named(
    words: str, gb_s: float, uplink: str
) -> None:
    hardware = RunHardware(gpu="H100", n_gpus=16, inter_node=words)
    network = find_cluster(hardware, Assumptions()).levels[1]
    assert (network.gb_s, network.uplink) == (gb_s, uplink)


@pytest.mark.parametrize(
    ("gpu", "words", "gb_s"),
    [
        ("V100-32GB-SXM2", "NVLink2", 6 * 25),
        ("A100-80GB-SXM", "NVLink3/NVSwitch", 12 * 25),
        ("A800-80GB-SXM", "NVLink (400 GB/s variant)", 400 / 2),
        ("H100-80GB-SXM", "NVLink4/NVSwitch", 18 * 25),
        ("B200-180GB-SXM", "NVLink5", 18 * 50),
        ("MI300X-192GB", "XGMI", 7 * 64),
        ("L40S-48GB", "PCIe 4 x16", 16 * 16 * 128 / 130 / 8),
        ("RTX-3090", "PCIe 3.0 x4 (7.88 GB/s)", 4 * 8 * 128 / 130 / 8),
    ],
)
def test_links_run_at_the_vendors_rate_per_direction(
    gpu: str, words: str, gb_s: float
) -> None:
    hardware = RunHardware(gpu=gpu, n_gpus=8, gpus_per_node=8, intra_node=words)
    (inside,) = find_cluster(hardware, Assumptions()).levels
    assert inside.gb_s == pytest.approx(gb_s, rel=2e-3)


@pytest.mark.parametrize(
    ("gpu", "words", "gb_s"),
    [
        ("RTX-3090", "PCIe", 25),
        ("RTX-3090", "PCIe 3.0 x4 (7.88 GB/s)", 0.8 * 3.94),
        ("A800-80GB-SXM", "NVLink (400 GB/s variant)", 25),
    ],
)
def test_copies_to_the_host_have_the_lanes_that_are_said(
    gpu: str, words: str, gb_s: float
) -> None:
    """NVLink goes nowhere near the host, whatever its rate."""
    hardware = RunHardware(gpu=gpu, n_gpus=2, gpus_per_node=2, intra_node=words)
    topology = find_cluster(hardware, Assumptions(), is_on_host=True).topology
    assert topology.host is not None
    assert topology.host.pcie_gb_s == pytest.approx(gb_s)


@pytest.mark.parametrize(
    ("gpus", "inside", "outside", "is_assumed"),
    [
        (8, 8, 1, False),
        (72, 72, 1, False),
        (64, 64, 1, False),
        (144, 72, 2, False),
        # 256 do not fill racks of 72: 4 racks of 64, the largest number that divides.
        (256, 64, 4, True),
        (128, 64, 2, True),
    ],
)
def test_racks_are_used_alike(
    gpus: int, inside: int, outside: int, is_assumed: bool
) -> None:
    assumed = Assumptions()
    hardware = RunHardware(gpu="GB200-186GB", n_gpus=gpus, gpus_per_node=72)
    sizes = [level.size for level in find_cluster(hardware, assumed).levels]
    assert sizes == [inside, outside][: len(sizes)]
    assert len(sizes) == 1 + (outside > 1)
    assert ("hardware.gpus_per_node (used)" in assumed.fields) == is_assumed


def test_a_host_without_a_known_network_is_not_priced() -> None:
    hardware = RunHardware(gpu="rtx-4090", n_gpus=16, gpus_per_node=8)
    with pytest.raises(Unpriced, match=r"hardware\.inter_node: not published"):
        find_cluster(hardware, Assumptions())


@pytest.mark.parametrize("name", catalog.names("topologies/gpus"))
def test_every_gpu_of_the_catalogue_has_a_node(name: str) -> None:
    if name in NODELESS:
        with pytest.raises(Unpriced, match=f"no node of {name} is known"):
            find_node(name)
    else:
        assert find_node(name).gb_s > 0


@pytest.mark.slow
def test_every_shipped_run_has_a_machine() -> None:
    for run in shipped(RUNS):
        cluster = find_cluster(run.hardware, Assumptions())
        assert cluster.gpus == run.hardware.n_gpus


@pytest.mark.parametrize(
    ("words", "share"),
    [
        ("GPUDirect-TCPXO, 8x200 Gb/s per node", 0.94),
        ("GPUDirect-TCPX, 4x200 Gb/s per node", 0.6),
        ("Omni-Path 4x100 Gb/s per node (NCCL measured less)", 0.2),
        ("8x HDR200 InfiniBand per node", 0.45),
        ("InfiniBand NDR400 per GPU (Eos)", USUAL_BUS_SHARE),
        (None, USUAL_BUS_SHARE),
    ],
)
def test_networks_reach_what_was_measured_on_their_kind(
    words: str | None, share: float
) -> None:
    hardware = RunHardware(gpu="A100-80GB-SXM", n_gpus=16, inter_node=words)
    assert find_cluster(hardware, Assumptions()).levels[1].bus_share == share


def _with(run: Run, **config: object) -> Run:
    return run.model_copy(update={"config": run.config.model_copy(update=config)})


def test_data_parallelism_of_530b_costs_what_was_measured() -> None:
    """From one replica to eight the step grows by 39.15 - 37.83 = 1.32 s.

    Megatron-LM of that time hid no gradients (Korthikanti et al. 2022, section 6.3).
    The model was trained in bfloat16 (Smith et al. 2022, arXiv 2201.11990), beside
    which gradients are summed in fp32.
    """
    runs = {run.id: run for run in read_runs(RUNS / "korthikanti22.yaml")}
    exposed = Profile.model_validate(
        {"gpus": {"a100-sxm-80gb": {"grad_overlap": 1e-9}}}
    )
    one, eight = (
        price_run(_with(runs[f"kor22-530B-{name}"], gradients="fp32"), exposed).step_s
        for name in ("selective-sp", "dp8-selective-sp")
    )
    assert eight - one == pytest.approx(1.32, abs=0.1)
