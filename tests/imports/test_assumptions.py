"""What is assumed where a file of a machine is silent: board, PCIe, sockets, NICs."""

from __future__ import annotations

import re

import pytest

from meshwright.errors import SpecError
from meshwright.imports.machines import hwloc, nccl_xml, nvidia_smi
from meshwright.imports.machines.defaults import Cpu, socket_gb_s, spelled
from meshwright.loading.load import load_cluster, load_gpu
from meshwright.spec.gpu import Gpu
from tests.helpers.import_gpus import as_topology, links_of, names_of
from tests.imports.test_nvidia import matrix, uniform
from tests.imports.test_xml import gpu, hwloc_xml, system


def rated(name: str) -> Gpu:
    return load_gpu("--gpu", name)


def pcie_tree(gpus: int, speed: str = "16 GT/s") -> str:
    text = system("".join(gpu(f"0000:{i:02x}:00.0", i) for i in range(gpus)))
    return text.replace("16 GT/s", speed)


BOARDS = {
    "eight H100": (8, "h100-sxm-80gb", {"nvswitch"}, 18 * 25),
    "eight A800": (8, "a800-sxm-80gb", {"nvswitch"}, 8 * 25),
    "four A100": (4, "a100-sxm-80gb", set(), 4 * 25),
    "two H100": (2, "h100-sxm-80gb", set(), 18 * 25),
    "four GB200": (4, "gb200-186gb", {"nvswitch"}, 18 * 50),
    "eight MI300X": (8, "mi300x-192gb", {"xgmi"}, 7 * 64),
}


@pytest.mark.parametrize(
    ("count", "name", "switches", "gb_s"), BOARDS.values(), ids=BOARDS
)
def test_links_of_the_board_are_assumed(
    count: int, name: str, switches: set[str], gb_s: float
) -> None:
    facts = nccl_xml.parse(pcie_tree(count), "t.xml")
    imported = as_topology(nccl_xml.to_machine, facts, rated(name))
    links = links_of(imported)
    assert links["GPU0", next(iter(switches), "GPU1")] == gb_s
    assert "The file shows no " in " ".join(imported.notes)


def test_a_board_that_may_be_wired_in_several_ways_is_refused() -> None:
    facts = nccl_xml.parse(pcie_tree(8), "t.xml")
    with pytest.raises(SpecError, match="the 6 links of v100-sxm-16gb can join 8"):
        as_topology(nccl_xml.to_machine, facts, rated("v100-sxm-16gb"))


@pytest.mark.parametrize("name", ["a40-48gb", "a100-pcie-40gb", "h100-nvl-94gb"])
def test_bridges_are_not_assumed(name: str) -> None:
    facts = nccl_xml.parse(pcie_tree(4), "t.xml")
    imported = as_topology(nccl_xml.to_machine, facts, rated(name))
    assert "A bridge may join pairs" in " ".join(imported.notes)
    assert {*links_of(imported)} == {(f"GPU{i}", "host0") for i in range(4)}


def test_a_narrow_slot_of_the_file_limits_the_port() -> None:
    facts = nccl_xml.parse(pcie_tree(2, "8 GT/s"), "t.xml")
    imported = as_topology(nccl_xml.to_machine, facts, rated("l40s-48gb"))
    assert links_of(imported)["GPU0", "host0"] == 12.6
    assert "PCIe of a GPU is taken to be as fast as 3.0 x16: 12.6 GB/s" in " ".join(
        imported.notes
    )


@pytest.mark.parametrize(
    ("gb_s", "told"),
    [(12.5, "3.0 x16"), (25, "4.0 x16"), (50, "5.0 x16"), (6.4, "2.0 x16"),
     (20, "25 GB/s at 0.8 of the rate")],
)  # fmt: skip
def test_generation_and_width_are_told(gb_s: float, told: str) -> None:
    assert spelled(gb_s) == told


@pytest.mark.parametrize(
    ("name", "text"),
    [("rtx-4090-pcie-2", uniform(2, "PHB")), ("rtx-4090-pcie-8", "eight")],
)
def test_bundled_and_imported_4090s_agree(name: str, text: str) -> None:
    bundled = load_cluster(name).topology
    if text == "eight":
        cells = [
            ["SYS" if a // 4 != b // 4 else "PHB" for b in range(8)] for a in range(8)
        ]
        rows = [
            ["X" if a == b else c for b, c in enumerate(r)] for a, r in enumerate(cells)
        ]
        text = matrix({f"GPU{i}": " ".join(row) for i, row in enumerate(rows)})
    imported = as_topology(
        nvidia_smi.to_machine, nvidia_smi.parse(text, "t"), rated("rtx-4090")
    )
    links = links_of(imported)
    ports = {gb_s for ends, gb_s in links.items() if ends[0].startswith("GPU")}
    assert ports == {bundled.levels[0].gb_s}
    between = {gb_s for ends, gb_s in links.items() if "system" in ends}
    assert between == {level.gb_s for level in bundled.levels[1:]}
    assert "drivers give rtx-4090 none" in " ".join(imported.notes)


CPUS = {
    "Broadwell": (("x86_64", "GenuineIntel", "6", "79"), 6),
    "Skylake": (("x86_64", "GenuineIntel", "6", "85"), 10),
    "Ice Lake": (("x86_64", "GenuineIntel", "6", "106"), 10),
    "Sapphire Rapids": (("x86_64", "GenuineIntel", "6", "143"), 22),
    "Emerald Rapids": (("x86_64", "GenuineIntel", "6", "207"), 40),
    "Rome, as NCCL writes it": (("x86_64", "AuthenticAMD", "143", "49"), 16),
    "Milan": (("", "AuthenticAMD", "25", "1"), 24),
    "Genoa, as NCCL writes it": (("x86_64", "AuthenticAMD", "175", "17"), 24),
    "Turin": (("x86_64", "AuthenticAMD", "26", "2"), 32),
    "Grace": (("arm64", "", "", ""), 6),
    "unknown": (("x86_64", "GenuineIntel", "", ""), None),
}


@pytest.mark.parametrize(("cpu", "gb_s"), CPUS.values(), ids=CPUS)
def test_bandwidth_between_sockets_goes_by_generation(
    cpu: tuple[str, str, str, str], gb_s: float | None
) -> None:
    assert socket_gb_s([Cpu(*cpu), Cpu(*cpu)]) == gb_s


def test_nics_of_storage_are_left_out() -> None:
    """Twelve ports, of which eight lie on the switch of a GPU, as in DGX H100."""
    gpus, nics = range(8), range(12)
    rows = {
        f"GPU{g}": " ".join(
            ["X" if g == other else "NV18" for other in gpus]
            + ["PXB" if n == g else ("NODE" if n % 2 else "SYS") for n in nics]
        )
        for g in gpus
    }
    columns = [*(f"GPU{g}" for g in gpus), *(f"NIC{n}" for n in nics)]
    text = "\t" + "\t".join(columns) + "\n"
    text += "\n".join(
        f"{name}\t" + row.replace(" ", "\t") for name, row in rows.items()
    )
    facts = nvidia_smi.parse(text, "t")
    imported = as_topology(nvidia_smi.to_machine, facts, rated("h100-sxm-80gb"))
    assert names_of(imported, "nic") == [f"NIC{n}" for n in gpus]
    assert any("8 of 12 NICs serve the GPUs." in note for note in imported.notes)
    far = nvidia_smi.parse(text.replace("PXB", "NODE"), "t")
    everything = as_topology(nvidia_smi.to_machine, far, rated("h100-sxm-80gb"))
    assert len(names_of(everything, "nic")) == 12, "none is on a switch of a GPU"


def test_the_cpus_of_hwloc_are_known() -> None:
    info = "".join(
        f'<info name="CPU{key}" value="{value}"/>'
        for key, value in (
            ("Vendor", "AuthenticAMD"), ("FamilyNumber", "25"), ("ModelNumber", "1")
        )
    )  # fmt: skip
    text = re.sub(r'(<object type="Package"[^>]*>)', rf"\1{info}", hwloc_xml(""))
    imported = as_topology(
        hwloc.to_machine, hwloc.parse(text, "t.xml"), rated("a40-48gb")
    )
    sockets = {gb_s for ends, gb_s in links_of(imported).items() if "system" in ends}
    assert sockets == {24}
