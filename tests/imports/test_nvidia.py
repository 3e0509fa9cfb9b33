"""`nvidia-smi topo -m`: what copies make of it, and the graph it becomes."""

from __future__ import annotations

import pytest

from meshwright.errors import SpecError
from meshwright.imports.machines.nvidia_smi import parse, to_machine
from tests.helpers.import_facts import gpu_pair_cells, nearest_nics
from tests.helpers.import_gpus import A100, A6000, PCIE, as_topology, links_of, names_of

PAIR = [
    ["", "GPU0", "GPU1", "NIC0", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"],
    ["GPU0", " X ", "NV4", "PIX", "0-7", "0", "", "N/A"],
    ["GPU1", "NV4", " X ", "SYS", "8-15", "1", "", "N/A"],
    ["NIC0", "PIX", "SYS", " X ", "", "", ""],
]
TABBED = "\n".join("\t".join(row) for row in PAIR)
SPACED = "\n".join("".join(f"{field:<14}" for field in row if field) for row in PAIR)
SPACED = SPACED.replace("GPU0", "              GPU0", 1)
LEGEND = (
    "\n\nLegend:\n\n  X    = Self\n  NV#  = NVLinks\n\nNIC Legend:\n\n  NIC0: mlx5_7\n"
)
ESCAPED = TABBED.replace("\tGPU0", "\t\x1b[4mGPU0", 1).replace("ID", "ID\x1b[0m", 1)


def matrix(rows: dict[str, str], numa: str = "") -> str:
    """Return a matrix of GPUs (and NICs after them) from one word for each cell."""
    tail = [f"\t0-7\t{node}" for node in numa] or [""] * len(rows)
    tails = tail + [""] * (len(rows) - len(tail))
    title = "\tCPU Affinity\tNUMA Affinity" if numa else ""
    lines = ["\t" + "\t".join(rows) + title]
    for (name, cells), end in zip(rows.items(), tails, strict=True):
        lines.append(f"{name}\t" + "\t".join(cells.split()) + end)
    return "\n".join(lines)


def uniform(count: int, cell: str, numa: str = "") -> str:
    names = [f"GPU{i}" for i in range(count)]
    return matrix(
        {a: " ".join("X" if a == b else cell for b in names) for a in names}, numa
    )


COPIES = {
    "tabs": TABBED,
    "blanks": SPACED,
    "no first tab": TABBED.lstrip(),
    "two first tabs": "\t" + TABBED,
    "escapes": ESCAPED,
    "escapes without their first byte": ESCAPED.replace("\x1b", ""),
    "windows": TABBED.replace("\n", "\r\n"),
    "byte order mark": "\ufeff" + TABBED,
    "prompt above": "root@host:~# nvidia-smi topo -m\n" + TABBED,
    "indented": "\n".join("    " + line for line in SPACED.splitlines()),
    "commented": "\n".join("# " + line for line in SPACED.splitlines()),
    "grep": "\n".join("docs/a.md:# " + line for line in TABBED.splitlines()),
    "grep without blank": "\n".join("a.md:" + line for line in TABBED.splitlines()),
    "legend": TABBED + LEGEND,
    "two machines": TABBED + "\n\n" + TABBED.replace("NV4", "SYS"),
    "p2p below": TABBED + "\n \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n",
}


def as_table(order: list[int]) -> str:
    rows = [[row[i] if i < len(row) else "" for i in order] for row in PAIR]
    rows = [[field.strip() for field in row] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(order) + "|", *lines[1:]])


COPIES["table"] = as_table([0, 1, 2, 3, 4, 5])
COPIES["table in another order"] = as_table([0, 4, 3, 2, 5, 1])


@pytest.mark.parametrize("text", COPIES.values(), ids=COPIES)
def test_every_kind_of_copy_says_the_same(text: str) -> None:
    facts = parse(text, "topo.txt")
    assert facts.gpus == ("GPU0", "GPU1")
    assert facts.nics == ("NIC0",)
    assert gpu_pair_cells(facts) == {"NV4": 1}
    assert facts.affinity("CPU Affinity") == ["0-7", "8-15"]
    assert facts.affinity("NUMA Affinity") == ["0", "1"]
    near = {"GPU0": ("PIX", ["NIC0"]), "GPU1": ("SYS", ["NIC0"])}
    assert nearest_nics(facts) == near
    assert not facts.asymmetric
    assert not facts.rows_missing


def test_legend_names_the_nics() -> None:
    assert parse(TABBED, "t").nic_names == ("NIC0",)
    assert parse(TABBED + LEGEND, "t").nic_names == ("mlx5_7",)
    imported = as_topology(to_machine, parse(TABBED + LEGEND, "t"), A6000)
    assert names_of(imported, "nic") == ["mlx5_7"]


def test_cells_of_others_are_known() -> None:
    text = matrix({"GPU0": "X MX SOC", "GPU1": "MX X ICN7", "GPU2": "SOC ICN7 X"})
    facts = parse(text, "t")
    assert gpu_pair_cells(facts) == {"MX": 1, "SOC": 1, "ICN7": 1}
    links = links_of(as_topology(to_machine, facts, A6000))
    assert links["GPU0", "GPU1"] == 1 * 14
    assert links["GPU1", "GPU2"] == 7 * 14


def test_metax_puts_the_node_first() -> None:
    text = "\tGPU0\tGPU1\tNode Affinity\tCPU Affinity\n"
    text += "GPU0\tX\tMX\t0\t0-31\nGPU1\tMX\tX\t1\t32-63"
    facts = parse(text, "t")
    assert facts.affinity("NUMA Affinity") == ["0", "1"]
    assert facts.affinity("CPU Affinity") == ["0-31", "32-63"]


def test_missing_affinities_stay_empty() -> None:
    tabs = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t\tN/A\t\tN/A"
    blanks = "   GPU0  CPU Affinity  NUMA Affinity  GPU NUMA ID\nGPU0  X    N/A  N/A"
    grace = tabs.replace("\t\tN/A\t\tN/A", "\t0-71\t0\t\t4")
    for text, cpu, numa, gpu in [
        (tabs, "", "N/A", "N/A"),
        (blanks, "", "N/A", "N/A"),
        (grace, "0-71", "0", "4"),
    ]:
        facts = parse(text, "t")
        assert facts.affinity("CPU Affinity") == [cpu]
        assert facts.affinity("NUMA Affinity") == [numa]
        assert facts.affinity("GPU NUMA ID") == [gpu]


def test_rows_of_nics_may_be_missing_or_cut() -> None:
    cut = TABBED.replace("NIC0\tPIX\tSYS\t X ", "NIC0\tPIX")
    missing = TABBED.partition("\nNIC0")[0]
    assert parse(cut, "t").rows_missing == ()
    facts = parse(missing, "t")
    assert facts.rows_missing == ("NIC0",)
    notes = as_topology(to_machine, facts, A6000).notes
    assert "Rows are missing (NIC0); the columns are taken for them." in notes


def test_gpus_stand_in_the_order_of_their_numbers() -> None:
    rows = {f"GPU{i}": "" for i in (10, 9, 0)}
    cells = {a: " ".join("X" if a == b else "SYS" for b in rows) for a in rows}
    facts = parse(matrix(cells), "t")
    assert facts.gpus == ("GPU0", "GPU9", "GPU10")
    assert names_of(as_topology(to_machine, facts, PCIE), "gpu") == [*facts.gpus]


def test_asymmetry_is_noted() -> None:
    facts = parse(matrix({"GPU0": "X PIX", "GPU1": "SYS X"}), "t")
    assert facts.asymmetric
    said = " ".join(as_topology(to_machine, facts, PCIE).notes)
    assert "not symmetric in 1 pairs, such as GPU0 and GPU1: PIX and SYS" in said


BROKEN = {
    "unknown class": (
        matrix({"GPU0": "X NVX", "GPU1": "NVX X"}),
        "topo.txt:2: 'NVX': unknown link class; accepted: X, NV<k>, PIX",
    ),
    "p2p matrix": (
        matrix({"GPU0": "X OK", "GPU1": "OK X"}),
        "topo.txt:2: 'OK': unknown link class (of topo -p2p; use topo -m)",
    ),
    "no header": ("GPU0 X NV2\nGPU1 NV2 X", "topo.txt: no header with GPU0"),
    "nothing": ("", "topo.txt: no header with GPU0"),
    "no rows": ("\tGPU0\tGPU1\n", "topo.txt:1: a header without rows"),
    "twice": ("\tGPU0\tGPU0\nGPU0\tX\tX", "topo.txt:1: a column stands twice"),
    "too many": (
        "\t".join(f"GPU{i}" for i in range(300)),
        "topo.txt:1: expected at most 256",
    ),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_matrix_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text, "topo.txt")
    assert message in str(caught.value)


def test_columns_left_out_make_no_machine() -> None:
    text = "\tGPU0\tGPU1\t...\tGPU7\nGPU0\tX\tNV12\t...\tNV12\nGPU1\tNV12\tX\t...\tNV12"
    facts = parse(text, "topo.txt")
    assert facts.gpus == ("GPU0", "GPU1", "GPU7")
    with pytest.raises(SpecError, match=r"topo\.txt: '\.\.\.' leaves out GPUs"):
        as_topology(to_machine, facts, A100)


def test_pair_without_a_cell_makes_no_machine() -> None:
    facts = parse("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tSYS\tSYS", "topo.txt")
    assert facts.rows_missing == ("GPU1", "GPU2")
    with pytest.raises(SpecError, match="no cell joins GPU1 and GPU2"):
        as_topology(to_machine, facts, A100)
