"""Matrices as people paste them: wrapped, quoted, with permissions."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import SpecError
from meshwright.imports.machines import rocm_smi
from meshwright.imports.machines.nvidia_smi import NvidiaTopo, parse, to_machine
from meshwright.imports.registry import detect
from meshwright.imports.text import read_text
from tests.helpers.import_gpus import (
    A100,
    MI300X,
    PCIE,
    as_topology,
    links_of,
    names_of,
)
from tests.imports.test_nvidia import matrix, uniform

GPUS, NICS = 8, 4


def machine() -> str:
    """Return eight GPUs and four NICs as the tool prints them."""
    names = [*(f"GPU{i}" for i in range(GPUS)), *(f"NIC{i}" for i in range(NICS))]
    lines = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
    for i, name in enumerate(names):
        cells = [
            "X"
            if i == j
            else "NV12"
            if max(i, j) < GPUS
            else "PXB"
            if i // 2 == j - GPUS
            else "SYS"
            for j in range(len(names))
        ]
        tail = f"\t0-31\t{i // 4}\t\tN/A" if i < GPUS else ""
        lines.append(name + "\t" + "\t".join(cells) + tail)
    return "\n".join(lines)


def cut(text: str, width: int) -> str:
    """Return a text as a terminal of so many columns shows it."""
    return "\n".join(
        part
        for line in text.expandtabs(8).splitlines()
        for part in [line[i : i + width] for i in range(0, len(line), width)]
    )


def folded(text: str, words: int) -> str:
    """Return a text with line breaks after every so many words."""
    return "\n".join(
        " ".join(line.split()[i : i + words])
        for line in text.splitlines()
        for i in range(0, len(line.split()), words)
    )


COPIES = {
    "as printed": machine(),
    "wrapped at 80 columns": cut(machine(), 80),
    "wrapped at 80 columns, trimmed": "\n".join(
        line.rstrip() for line in cut(machine(), 80).splitlines()
    ),
    "wrapped at 61 columns": cut(machine(), 61),
    "wrapped at words": folded(machine(), 7),
    "quoted in a mail": "\n".join("> " + line for line in machine().splitlines()),
    "quoted with blanks": "\n".join(f'"{line}"' for line in machine().splitlines()),
    "coloured": machine()
    .replace("GPU0", "\x1b[4mGPU0")
    .replace("GPU NUMA ID", "GPU NUMA ID\x1b[0m"),
}


@pytest.mark.parametrize("text", COPIES.values(), ids=COPIES)
def test_a_copy_is_the_machine(text: str) -> None:
    whole, copied = parse(machine(), "t"), parse(text, "t")
    assert (copied.gpus, copied.nics, copied.cells) == (
        whole.gpus,
        whole.nics,
        whole.cells,
    )
    assert not copied.rows_missing
    assert detect(text) == "nvidia_smi"


def said(facts: NvidiaTopo) -> str:
    return " ".join(as_topology(to_machine, facts, A100).notes)


def test_two_hosts_in_one_paste_are_told() -> None:
    both = f"host a\n{machine()}\n\nhost b\n{machine()}"
    assert len(parse(both, "t").gpus) == GPUS
    assert (
        "2 matrices; the first is described, the links of the others are the same"
        in (said(parse(both, "t")))
    )
    unlike = both + "\n" + uniform(4, "SYS")
    assert "3 matrices" in said(parse(unlike, "t"))
    assert "not all the same" in said(parse(unlike, "t"))


def test_columns_left_out_behind_the_gpus_are_told() -> None:
    lines = [line.split("\t") for line in machine().splitlines()]
    text = "\n".join(
        "\t".join([*line[: GPUS + 1], "..."]) for line in lines[: GPUS + 1]
    )
    facts = parse(text, "t")
    assert "What '...' leaves out behind GPU7 is not known" in said(facts)
    assert names_of(as_topology(to_machine, facts, A100), "gpu") == [
        f"GPU{i}" for i in range(8)
    ]


def permissions(cell: str, count: int = 2) -> str:
    names = [f"GPU{i}" for i in range(count)]
    body = "\n".join(
        f" {a}\t" + "\t".join("X" if a == b else cell for b in names) for a in names
    )
    return " \t" + "\t".join(names) + "\n" + body + "\nLegend:\n\n  X    = Self\n"


def test_permissions_in_the_paste_are_used() -> None:
    plain = links_of(as_topology(to_machine, parse(uniform(2, "PHB"), "t"), PCIE))
    assert plain["GPU0", "host0"] == 25
    for cell, gb_s in (("GNS", 15.5), ("CNS", 15.5), ("OK", 25), ("NS", 25)):
        for text in (
            uniform(2, "PHB") + "\n\n" + permissions(cell),
            permissions(cell) + "\n\n" + uniform(2, "PHB"),
        ):
            imported = as_topology(to_machine, parse(text, "t"), PCIE)
            assert links_of(imported)["GPU0", "host0"] == gb_s, cell
    with pytest.raises(SpecError, match="of topo -p2p; use topo -m"):
        parse(permissions("GNS"), "t")


def test_permissions_of_a_patched_driver_count_more_than_the_card() -> None:
    from meshwright.loading.load import load_gpu

    text = uniform(2, "PHB") + "\n" + permissions("OK")
    imported = as_topology(to_machine, parse(text, "t"), load_gpu("--gpu", "rtx-4090"))
    assert links_of(imported)["GPU0", "host0"] == 25


def test_one_gpu_of_rocm_is_a_machine() -> None:
    text = "\n".join(
        f"========== {title} ==========\n       GPU0         \nGPU0   0\n"
        for title in ("Weight between two GPUs", "Hops between two GPUs",
                      "Link Type between two GPUs")
    )  # fmt: skip
    text += "===== Numa Nodes =====\nGPU[0]\t: (Topology) Numa Node: 0\n"
    facts = rocm_smi.parse(text, "t")
    assert names_of(as_topology(rocm_smi.to_machine, facts, MI300X), "gpu") == ["GPU0"]


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"]
)
def test_encodings_of_terminals_and_editors(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_bytes(matrix({"GPU0": "X NV4", "GPU1": "NV4 X"}).encode(encoding))
    assert parse(read_text(path), "t").gpus == ("GPU0", "GPU1")
