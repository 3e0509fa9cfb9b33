"""The graph that a matrix of links becomes: NVLinks, switches, the PCIe tree."""

from __future__ import annotations

import pytest

from meshwright.errors import SpecError
from meshwright.imports.machines.nvidia_smi import NvidiaTopo, parse, to_machine
from tests.helpers.import_gpus import (
    A100,
    A6000,
    H100,
    PCIE,
    as_topology,
    links_of,
    make_gpu,
    names_of,
    validated,
)
from tests.imports.test_nvidia import matrix, uniform

UNKNOWN = make_gpu(peer_link_gb_s=25, pcie_gb_s=25)
SWITCHED = {
    "8x A100": (uniform(8, "NV12"), A100, 12 * 25),
    "8x A100, links unknown": (uniform(8, "NV12"), UNKNOWN, 12 * 25),
    "4x A100 of an NVSwitch machine": (uniform(4, "NV12"), A100, 12 * 25),
    "8x H100": (uniform(8, "NV18"), H100, 18 * 25),
    "16x V100 of a DGX-2": (uniform(16, "NV6"), UNKNOWN, 6 * 25),
    "8x A100 with two links down": (uniform(8, "NV10"), A100, 10 * 25),
}


@pytest.mark.parametrize(("text", "gpu", "gb_s"), SWITCHED.values(), ids=SWITCHED)
def test_machine_with_nvswitches(text: str, gpu: object, gb_s: float) -> None:
    facts = parse(text, "t")
    imported = as_topology(to_machine, facts, gpu)  # type: ignore[arg-type]
    assert names_of(imported, "switch") == ["nvswitch"]
    assert links_of(imported) == {(name, "nvswitch"): gb_s for name in facts.gpus}
    assert validated(imported).gpus == len(facts.gpus)


DIRECT = {
    "4x A100 board": (uniform(4, "NV4"), A100, 4 * 25),
    "4x GH200 board": (uniform(4, "NV6"), H100, 6 * 25),
    "4x GH200 board, links unknown": (uniform(4, "NV6"), UNKNOWN, 6 * 25),
    "2x RTX 3090": (uniform(2, "NV4"), A6000, 4 * 14),
    "2 H100 of a machine": (uniform(2, "NV18"), H100, 18 * 25),
}


@pytest.mark.parametrize(("text", "gpu", "gb_s"), DIRECT.values(), ids=DIRECT)
def test_direct_links(text: str, gpu: object, gb_s: float) -> None:
    facts = parse(text, "t")
    imported = as_topology(to_machine, facts, gpu)  # type: ignore[arg-type]
    count = len(facts.gpus)
    assert not names_of(imported, "switch")
    assert [*links_of(imported).values()] == [gb_s] * (count * (count - 1) // 2)


def test_two_islands_have_a_switch_each() -> None:
    rows = {}
    for i in range(8):
        cells = ["X" if i == j else "NV18" if i // 4 == j // 4 else "SYS"
                 for j in range(8)]  # fmt: skip
        rows[f"GPU{i}"] = " ".join(cells)
    imported = as_topology(to_machine, parse(matrix(rows, "00001111"), "t"), H100)
    assert names_of(imported, "switch")[:2] == ["nvswitch", "nvswitch1"]
    links = links_of(imported)
    assert links["GPU3", "nvswitch"] == links["GPU4", "nvswitch1"] == 18 * 25
    assert links["GPU3", "numa0"] == 50
    assert links["numa0", "system"] == links["numa1", "system"] == 10
    assert validated(imported).gpus == 8


def nested() -> NvidiaTopo:
    """Return six GPUs and a NIC: 0, 1 and the NIC nested, 2, 3, 4 further, 5 beyond."""
    rows = {
        "GPU0": "X   PIX  PHB  NODE SYS SYS PXB",
        "GPU1": "PIX X    PHB  NODE SYS SYS PXB",
        "GPU2": "PHB PHB  X    NODE SYS SYS PHB",
        "GPU3": "NODE NODE NODE X   SYS SYS NODE",
        "GPU4": "SYS SYS  SYS  SYS  X   PHB SYS",
        "GPU5": "SYS SYS  SYS  SYS  PHB X   SYS",
        "mlx5_0": "PXB PXB PHB NODE SYS SYS X",
    }
    return parse(matrix(rows), "t")


def test_pcie_nests_from_switch_to_socket() -> None:
    """Each vertex joins what is nearer; a root passes on what its ports carry."""
    imported = as_topology(to_machine, nested(), PCIE)
    assert links_of(imported) == {
        ("GPU0", "pcie0"): 25,
        ("GPU1", "pcie0"): 25,
        ("pcie0", "bridge0"): 25,
        ("mlx5_0", "bridge0"): 25,
        ("bridge0", "host0"): 25,
        ("GPU2", "host0"): 25,
        ("host0", "numa0"): 50,
        ("GPU3", "numa0"): 25,
        ("GPU4", "host1"): 25,
        ("GPU5", "host1"): 25,
        ("numa0", "system"): 10,
        ("host1", "system"): 10,
    }
    said = " ".join(imported.notes)
    assert "between sockets is assumed to be 10 GB/s" in said
    assert "uplink of a PCIe switch is assumed to be as wide as one port" in said
    assert validated(imported).gpus == 6


def test_nvlink_hides_pcie_and_affinity_tells_it() -> None:
    rows = {
        "GPU0": "X NV4 SYS SYS", "GPU1": "NV4 X SYS SYS",
        "GPU2": "SYS SYS X NV4", "GPU3": "SYS SYS NV4 X",
    }  # fmt: skip
    links = links_of(as_topology(to_machine, parse(matrix(rows, "0011"), "t"), A6000))
    assert links["GPU0", "numa0"] == links["GPU2", "numa1"] == 25
    links = links_of(as_topology(to_machine, parse(matrix(rows, "0123"), "t"), A6000))
    assert links["GPU0", "system"] == links["GPU1", "system"] == 10


def test_affinity_gives_way_to_cells() -> None:
    """GPU0 and GPU1 share a node, but the NIC is near one of them alone."""
    rows = {"GPU0": "X NV4 SYS", "GPU1": "NV4 X PHB", "NIC0": "SYS PHB X"}
    links = links_of(as_topology(to_machine, parse(matrix(rows, "00"), "t"), A6000))
    assert links["GPU1", "host0"] == 25
    assert links["GPU0", "system"] == links["host0", "system"] == 10


def test_affinity_to_several_nodes_says_nothing() -> None:
    text = matrix({"GPU0": "X NV4 SYS", "GPU1": "NV4 X SYS", "NIC0": "SYS SYS X"}, "33")
    near = links_of(as_topology(to_machine, parse(text, "t"), A6000))
    assert ("GPU0", "numa0") in near
    far = links_of(
        as_topology(to_machine, parse(text.replace("\t3", "\t0-3"), "t"), A6000)
    )
    assert ("GPU0", "system") in far


def test_bandwidths_that_nobody_knows() -> None:
    facts = parse(uniform(4, "SYS"), "t")
    with pytest.raises(SpecError, match=r"gpu thing: pcie_gb_s is not given"):
        as_topology(to_machine, facts, make_gpu(name="thing"))
    facts = parse(uniform(4, "NV4"), "t")
    with pytest.raises(SpecError, match=r"gpu thing: peer_link_gb_s is not given"):
        as_topology(to_machine, facts, make_gpu(name="thing"))
    imported = as_topology(to_machine, facts, make_gpu(name="NVIDIA RTX A6000"))
    assert "peer_link_gb_s of NVIDIA RTX A6000 is assumed to be 14.0625" in " ".join(
        imported.notes
    )
    with pytest.raises(SpecError, match="peer_link_gb_s"):
        as_topology(to_machine, facts, make_gpu(name="rtx-a4000"))
