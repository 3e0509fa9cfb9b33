"""`rocm-smi --showtopo`: blocks, and the graph they become."""

from __future__ import annotations

import pytest

from meshwright.errors import SpecError
from meshwright.imports.machines.rocm_smi import parse, to_machine
from tests.helpers.import_gpus import (
    MI300X,
    PCIE,
    as_topology,
    links_of,
    make_gpu,
    names_of,
    validated,
)

TITLES = {
    "weight": "Weight between two GPUs",
    "hops": "Hops between two GPUs",
    "type": "Link Type between two GPUs",
}


def block(kind: str, rows: list[str]) -> str:
    names = [f"GPU{i}" for i in range(len(rows))]
    lines = [
        f"{'=' * 20} {TITLES[kind]} {'=' * 20}",
        "       " + "  ".join(names) + "  ",
    ]
    lines += [f"{n}   {row}   " for n, row in zip(names, rows, strict=True)]
    return "\n".join([*lines, "", ""])


def numa(nodes: str, spelling: str = "GPU[{}]\t\t: ") -> str:
    lines = [f"{'=' * 20} Numa Nodes {'=' * 20}"]
    for gpu, node in enumerate(nodes):
        lines.append(spelling.format(gpu) + f"(Topology) Numa Node: {node}")
        lines.append(spelling.format(gpu) + f"(Topology) Numa Affinity: {node}")
    return "\n".join(lines) + "\n"


HIVES = ["0 XGMI PCIE PCIE", "XGMI 0 PCIE PCIE", "PCIE PCIE 0 XGMI", "PCIE PCIE XGMI 0"]
WEIGHTS = ["0 15 40 72", "15 0 72 72", "40 72 0 15", "72 72 15 0"]
BANNER = "===== ROCm System Management Interface =====\nWARNING: low-power state\n\n"
ACCESS = (
    f"{'=' * 20} Link accessibility between two GPUs {'=' * 20}\n  GPU0 GPU1\nGPU0 True"
)


@pytest.mark.parametrize("spelling", ["GPU[{}]\t\t: ", "GPU[{}]     : ", "GPU  {}  : "])
def test_blocks_are_read(spelling: str) -> None:
    parts = [block("weight", WEIGHTS), block("type", HIVES), numa("0011", spelling)]
    facts = parse(BANNER + "".join(parts) + ACCESS, "t")
    assert facts.gpus == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert facts.counts("weight") == {"15": 2, "40": 1, "72": 3}
    assert facts.counts("type") == {"XGMI": 2, "PCIE": 4}
    assert facts.counts("hops") == {}
    assert [*facts.numa.values()] == [0, 0, 1, 1]


def test_pairs_of_xgmi_over_pcie() -> None:
    text = block("weight", WEIGHTS) + block("type", HIVES) + numa("0011")
    gpu = make_gpu(peer_links=2, peer_link_gb_s=50, pcie_gb_s=25)
    imported = as_topology(to_machine, parse(text, "t"), gpu)
    links = links_of(imported)
    assert links["GPU0", "GPU1"] == links["GPU2", "GPU3"] == 2 * 50
    assert links["GPU0", "host0"] == links["GPU2", "host0"] == 25  # weight 40
    assert "assumed to have 2 links" in " ".join(imported.notes)
    assert validated(imported).gpus == 4


def test_all_to_all_is_a_switch_of_all_links() -> None:
    rows = [" ".join("0" if i == j else "XGMI" for j in range(8)) for i in range(8)]
    imported = as_topology(to_machine, parse(block("type", rows), "t"), MI300X)
    assert names_of(imported, "switch") == ["xgmi"]
    assert links_of(imported) == {(f"GPU{i}", "xgmi"): 7 * 64 for i in range(8)}


def test_pcie_without_weights_goes_by_numa_nodes() -> None:
    rows = ["0 PCIE PCIE", "PCIE 0 PCIE", "PCIE PCIE 0"]
    text = block("type", rows) + numa("001")
    links = links_of(as_topology(to_machine, parse(text, "t"), PCIE))
    assert links == {
        ("GPU0", "numa0"): 25,
        ("GPU1", "numa0"): 25,
        ("numa0", "system"): 10,
        ("GPU2", "system"): 10,
    }


def test_asymmetry_and_unknown_types_are_noted() -> None:
    text = block("type", ["0 XXXX", "PCIE 0"])
    said = " ".join(as_topology(to_machine, parse(text, "t"), PCIE).notes)
    assert "not symmetric in 1 pairs, such as GPU0 and GPU1" in said
    assert "1 pairs have no known link type; taken as PCIe" in said


BROKEN = {
    "type": (
        block("type", ["0 CXL", "CXL 0"]),
        "rocm.txt:3: 'CXL': unknown link type; accepted: XGMI, PCIE",
    ),
    "weight": (block("weight", ["0 a", "1 0"]), "rocm.txt:3: 'a': expected a whole"),
    "cut": (block("type", ["0", "XGMI 0"]), "rocm.txt:3: GPU0 has 1 cells; expected 2"),
    "nothing": ("", "rocm.txt: no matrix of GPUs; expected the output of rocm-smi"),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_block_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text, "rocm.txt")
    assert message in str(caught.value)


def test_machine_needs_link_types() -> None:
    facts = parse(block("weight", ["0 15", "15 0"]), "rocm.txt")
    with pytest.raises(SpecError, match=r"rocm\.txt: no block of link types"):
        as_topology(to_machine, facts, MI300X)


def test_thousands_of_numa_lines_are_refused_at_once() -> None:
    with pytest.raises(SpecError, match="t: 5,000 GPUs; expected at most 256"):
        parse(numa("0" * 5_000), "t")
