"""An import has the hosts of its file: never more, and all of a tree."""

from __future__ import annotations

import math

import hypothesis.strategies as st
from hypothesis import given, settings

from meshwright.imports import slurm_topology
from meshwright.imports.machines import nvidia_smi
from meshwright.imports.registry import Imported
from meshwright.imports.switch_levels import narrowed, regular_sizes
from tests.helpers.import_gpus import A100, as_topology, links_of, names_of

Tree = list["Tree"] | int
"""A switch: the switches below it, or the number of its nodes."""

TREES = st.recursive(
    st.integers(1, 40),
    lambda inner: st.lists(inner, min_size=1, max_size=4),
    max_leaves=12,
)


def hosts_of(imported: Imported) -> int:
    return math.prod(level["size"] for level in imported.fields["levels"])


def count(tree: Tree) -> int:
    return tree if isinstance(tree, int) else sum(map(count, tree))


def depth(tree: Tree) -> int:
    return 1 if isinstance(tree, int) else 1 + max(map(depth, tree))


def written(tree: Tree, name: str = "s") -> list[str]:
    """Return the lines of topology.conf."""
    if isinstance(tree, int):
        return [f"SwitchName={name} Nodes=n{name}-[1-{tree}]"]
    children = [f"{name}x{i}" for i in range(len(tree))]
    lines = [f"SwitchName={name} Switches={','.join(children)}"]
    for child, inner in zip(children, tree, strict=True):
        lines += written(inner, child)
    return lines


@given(TREES.filter(lambda tree: depth(tree) <= 5))
@settings(deadline=None)
def test_levels_of_a_tree_have_its_hosts(tree: Tree) -> None:
    facts = slurm_topology.parse("\n".join(written(tree)), "t")
    assert hosts_of(slurm_topology.to_levels(facts)) == count(tree)


@given(st.lists(TREES.filter(lambda tree: depth(tree) <= 5), min_size=2, max_size=4))
@settings(deadline=None)
def test_of_several_trees_the_largest_is_described(trees: list[Tree]) -> None:
    lines = [line for i, tree in enumerate(trees) for line in written(tree, f"t{i}")]
    imported = slurm_topology.to_levels(slurm_topology.parse("\n".join(lines), "t"))
    assert hosts_of(imported) == max(map(count, trees))
    told = next(note for note in imported.notes if "no switch in common" in note)
    assert all(f"({count(tree):,})" in told for tree in trees)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.sampled_from([2, 4]))
@settings(deadline=None)
def test_levels_of_blocks_have_their_hosts(blocks: list[int], each: int) -> None:
    lines = [f"BlockName=b{i} Nodes=n{i}-[1-{n}]" for i, n in enumerate(blocks)]
    lines.append(f"BlockSizes={min(blocks)},{each * min(blocks)}")
    imported = slurm_topology.to_levels(slurm_topology.parse("\n".join(lines), "t"))
    assert hosts_of(imported) == sum(blocks)


def test_sizes_divide_the_groups_of_their_tier() -> None:
    assert regular_sizes([[4, 4, 4, 2], [8, 6], [14]]) == [2, 1, 7]
    assert regular_sizes([[8, 8], [16]]) == [8, 2]


def test_what_is_no_level_narrows_the_one_above() -> None:
    assert [*narrowed([8, 1, 4], [50, 20, 30])] == [50, 20, 20]
    assert [*narrowed([8, 2, 4], [50, 20, 30])] == [50, 20, 30]


CELLS = ["NV1", "NV2", "NV4", "NV6", "NV12", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"]


@st.composite
def matrices(draw: st.DrawFn) -> tuple[int, int, dict[tuple[int, int], str]]:
    """Draw GPUs, NICs and a symmetric matrix of cells."""
    gpus, nics = draw(st.integers(2, 8)), draw(st.integers(0, 4))
    cells = {}
    for a in range(gpus + nics):
        for b in range(a):
            kinds = CELLS if max(a, b) < gpus else CELLS[6:]
            cells[a, b] = cells[b, a] = draw(st.sampled_from(kinds))
    return gpus, nics, cells


@given(matrices())
@settings(deadline=None, max_examples=60)
def test_a_machine_has_the_devices_and_links_of_its_matrix(
    drawn: tuple[int, int, dict[tuple[int, int], str]],
) -> None:
    gpus, nics, cells = drawn
    names = [*(f"GPU{i}" for i in range(gpus)), *(f"NIC{i}" for i in range(nics))]
    rows = [
        "\t".join([a, *("X" if i == j else cells[i, j] for j in range(len(names)))])
        for i, a in enumerate(names)
    ]
    text = "\n".join(["\t" + "\t".join(names), *rows])
    imported = as_topology(nvidia_smi.to_machine, nvidia_smi.parse(text, "t"), A100)
    assert names_of(imported, "gpu") == names[:gpus]
    assert {*names_of(imported, "nic")} <= {*names[gpus:]}
    for i in range(gpus):
        printed = [cells[i, j] for j in range(gpus) if i != j]
        counts = [int(cell[2:]) for cell in printed if cell.startswith("NV")]
        peers = sum(
            gb_s
            for ends, gb_s in links_of(imported).items()
            if names[i] in ends and all(e.startswith(("GPU", "nvswitch")) for e in ends)
        )
        assert peers <= 25 * sum(counts)
