"""Slurm: topology.conf and topology.yaml, and the links of GRES."""

from __future__ import annotations

import pytest

from meshwright.errors import SpecError
from meshwright.imports import slurm_nodes, slurm_topology
from tests.helpers.import_facts import gpu_pair_links
from tests.helpers.import_gpus import A6000, as_topology, links_of, validated

TREE = r"""
# two tiers
SwitchName=s0 Nodes=n[0-3] LinkSpeed=100   # in rack 1
switchname=s1 nodes=n[4-7]
SwitchName=top \
    Switches=s[0-1]
"""


def sizes(text: str) -> list[tuple[str, int]]:
    levels = slurm_topology.to_levels(
        slurm_topology.parse(text, "topology.conf")
    ).fields["levels"]
    return [(level["name"], level["size"]) for level in levels]


def notes(text: str) -> str:
    return " ".join(
        slurm_topology.to_levels(slurm_topology.parse(text, "topology.conf")).notes
    )


def test_tree() -> None:
    facts = slurm_topology.parse(TREE, "topology.conf")
    assert facts.kind == "tree"
    assert len(facts.groups) == 3
    assert [group.nodes for group in facts.groups.values()] == [
        ("n0", "n1", "n2", "n3"), ("n4", "n5", "n6", "n7"), (),
    ]  # fmt: skip
    assert sizes(TREE) == [("leaf", 4), ("spine", 2)]
    assert "topology.conf:3: linkspeed= is left out." in notes(TREE)
    assert "every uplink is assumed to have 50 GB/s per GPU" in notes(TREE)
    assert validated(slurm_topology.to_levels(facts)).gpus == 8


def test_unequal_leaves_are_cut_into_equal_blocks() -> None:
    """32 + 8 + 8 nodes are 48 hosts, never 64."""
    text = (
        "SwitchName=a Nodes=a[1-32]\nSwitchName=b Nodes=b[1-8]\n"
        "SwitchName=c Nodes=c[1-8]\nSwitchName=top Switches=[a,b,c]"
    ).replace("[a,b,c]", "a,b,c")
    assert sizes(text) == [("leaf", 8), ("spine", 6)]
    assert (
        "Groups of a leaf have 2 x 8, 1 x 32 hosts: they are described as 6 blocks of 8"
    ) in notes(text)


def test_leaves_without_a_common_divisor_are_joined_above() -> None:
    leaves = [f"SwitchName=s{i} Nodes=n{i}-[1-16]" for i in range(7)]
    text = "\n".join(
        [*leaves, "SwitchName=s7 Nodes=n7-[1-7]", "SwitchName=t Switches=s[0-7]"]
    )
    assert sizes(text) == [("leaf", 1), ("spine", 119)]
    assert "7 x 16, 1 x 7 hosts: no number of hosts divides all" in notes(text)
    assert "a file with 16 hosts in each of 7 groups, 112 of 119, would keep" in (
        notes(text)
    )


def test_trees_without_a_common_root_are_told() -> None:
    text = TREE + "SwitchName=s9 Nodes=m[0-3]\nSwitchName=s8 Nodes=k[0-1]"
    assert sizes(text) == [("leaf", 4), ("spine", 2)]
    assert "3 trees have no switch in common" in notes(text)
    assert "by hosts: top (8), s9 (4), s8 (2). top is described." in notes(text)


def test_nodes_of_upper_switches_are_those_of_the_lower_ones() -> None:
    """`scontrol show topology` repeats the nodes on every tier."""
    text = TREE.replace("Switches=s[0-1]", "Nodes=n[0-7] Switches=s[0-1]")
    assert sizes(text) == [("leaf", 4), ("spine", 2)]


def test_a_node_beside_switches_is_a_host_of_its_own() -> None:
    text = TREE.replace("Switches=s[0-1]", "Nodes=login Switches=s[0-1]")
    assert sizes(text) == [("leaf", 1), ("spine", 9)]


def test_rings_are_told() -> None:
    text = "RingName=r Nodes=n[1-6]\nRingName=q Nodes=m[1-7]"
    assert sizes(text) == [("ring", 7)]
    assert "by hosts: q (7), r (6). q is described." in notes(text)


def test_unequal_blocks_and_aggregates() -> None:
    text = "\n".join(
        f"BlockName={b} Nodes={b}[1-{n}]" for b, n in (("a", 18), ("b", 18), ("c", 12))
    )
    assert sizes(text) == [("block", 6), ("cluster", 8)]
    three = text.replace("[1-12]", "[1-18]") + "\nBlockSizes=16,32"
    assert sizes(three) == [("block", 18), ("32-node-group", 1), ("cluster", 3)]
    four = three + "\nBlockName=d Nodes=d[1-18]"
    assert sizes(four) == [("block", 18), ("32-node-group", 2), ("cluster", 2)]


def test_blocks() -> None:
    lines = [f"BlockName=b{i} Nodes=n[{i}1-{i}8]" for i in range(6)]
    text = "\n".join([*lines, "BlockSizes=8,16"])
    facts = slurm_topology.parse(text, "t")
    assert (facts.kind, len(facts.groups)) == ("block", 6)
    assert all(len(group.nodes) == 8 for group in facts.groups.values())
    assert facts.block_sizes == (8, 16)
    assert sizes(text) == [("block", 8), ("16-node-group", 2), ("cluster", 3)]
    assert validated(slurm_topology.to_levels(facts)).gpus == 48
    odd = text.replace("8,16", "8,12")
    assert sizes(odd) == [("block", 8), ("cluster", 6)]
    assert "BlockSizes=12 is no level above 8 nodes" in notes(odd)


def test_blocks_may_be_empty() -> None:
    conf = "BlockName=a Nodes=n[1-4]\nBlockName=b\nBlockName=c Nodes=m[1-4]"
    yaml = BLOCKS.replace(
        "      - block: b1\n", "      - block: b9\n      - block: b1\n"
    )
    for text, size in ((conf, 4), (yaml, 2)):
        assert len(slurm_topology.parse(text, "t").groups) == 3
        assert [level for _, level in sizes(text) if level > 1] == [size, 2]
        assert "1 blocks without nodes are left out." in notes(text)


def test_ring() -> None:
    assert sizes("RingName=r Nodes=n[1-6]") == [("ring", 6)]


YAML = """
- topology: flat
  flat: true
- topology: fat
  cluster_default: true
  tree:
    switches:
      - {switch: top, children: "s[0-1]"}
      - {switch: s0, nodes: "n[0-2]"}
      - {switch: s1, nodes: "n[3-5]"}
"""
BLOCKS = """
- topology: nvl
  block:
    block_sizes: [2, 4]
    blocks:
      - block: b0
        nodes: n[0-1]
      - block: b1
        nodes: n[2-3]
"""


def test_yaml() -> None:
    assert sizes(YAML) == [("leaf", 3), ("spine", 2)]
    assert "2 topologies; 'fat' is taken." in notes(YAML)
    assert sizes(BLOCKS) == [("block", 2), ("4-node-group", 2), ("cluster", 1)]


BROKEN = {
    "nothing": ("# only this", "t.conf: no switch, block or ring"),
    "unknown": (
        "Switch=s0 Nodes=n1",
        "t.conf:1: 'switch': unknown; accepted: switchname",
    ),
    "words": ("\nSwitchName=s0 n1", "t.conf:2: 'SwitchName=s0 n1': expected KEY=VALUE"),
    "empty ring": (
        "RingName=r Switches=s",
        "t.conf: no ring has nodes; expected Nodes=",
    ),
    "empty": ("SwitchName=s0", "t.conf:1: 's0' has no Nodes= and no Switches="),
    "twice": (
        "SwitchName=a Nodes=n\nSwitchName=a Nodes=m",
        "t.conf:2: 'a' stands twice",
    ),
    "two kinds": (
        "SwitchName=a Nodes=n\nRingName=r Nodes=m",
        "t.conf:2: tree and ring",
    ),
    "sizes": (
        "BlockName=b Nodes=n\nBlockSizes=x",
        "t.conf:2: BlockSizes='x': expected",
    ),
    "undefined": (
        "SwitchName=a Switches=b",
        "t.conf:1: 'b': a switch that is not defined",
    ),
    "circle": (
        "SwitchName=a Switches=b\nSwitchName=b Switches=a\nSwitchName=c Nodes=n",
        "t.conf:1: 'a' is below itself",
    ),
    "flat": ("- topology: a\n  flat: true", "t.conf:1: 'topology', 'flat': no way of"),
    "no list": (
        "- topology: a\n  tree: {switches: 1}",
        "t.conf:2: switches: expected a",
    ),
    "no name": (
        "- topology: a\n  ring: {rings: [{nodes: n}]}",
        "t.conf:2: expected a map",
    ),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_topology_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        slurm_topology.to_levels(slurm_topology.parse(text, "t.conf"))
    assert message in str(caught.value)


def gres_conf(links: list[str], extra: str = "") -> str:
    return (
        "\n".join(
            f"slurmd: Gres Name=gpu Type=a6000 Count=1 Index={i} File=/dev/nvidia{i} "
            f"Cores={'0-7' if i < 2 else '8-15'} Links={row} Flags=HAS_FILE"
            for i, row in enumerate(links)
        )
        + extra
    )


def test_gres_links_are_nvlinks() -> None:
    text = gres_conf(["-1,4,0", "4,-1,0", "0,0,-1"], "\nGres Name=VramPerGpu Count=48G")
    facts = slurm_nodes.parse_gres(text, "t")
    assert gpu_pair_links(facts) == {"4": 1, "0": 2}
    assert [gpu.cores for gpu in facts.gpus] == ["0-7", "0-7", "8-15"]
    assert facts.mem_bytes == 48 * 2**30
    links = links_of(as_topology(slurm_nodes.to_machine, facts, A6000))
    assert links["GPU0", "GPU1"] == 4 * 14
    assert links["GPU0", "numa0"] == 25
    assert links["GPU2", "system"] == 10


def test_gres_conf_lists_files_and_nodes() -> None:
    text = (
        "AutoDetect=off  # Name=gpu\n"
        "NodeName=a[1-4] Name=gpu Type=a100 File=/dev/nvidia[0-3] Cores=0-31\n"
        "NodeName=b1 Name=gpu Type=v100 File=/dev/nvidia0\n"
    )
    facts = slurm_nodes.parse_gres(text, "gres.conf")
    assert [gpu.type for gpu in facts.gpus] == ["a100"] * 4
    said = as_topology(slurm_nodes.to_machine, facts, A6000).notes
    assert "Nodes other than a[1-4] are left out." in said
    assert "The file has no Links=; no NVLink is drawn." in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "g.conf: no line with Name=gpu"),
        ("Name=gpu Count=x", "g.conf:1: Count='x': expected a whole number"),
        ("Name=gpu Count=999", "g.conf:1: 999 GPUs; expected at most 256"),
        ("Name=gpu Links=-1,x", "g.conf:1: Links='-1,x': expected NVLinks per GPU"),
        (
            gres_conf(["-1,4", "4"]),
            "g.conf:2: 1 links; expected one for each of 2 GPUs",
        ),
    ],
)
def test_broken_gres_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        slurm_nodes.parse_gres(text, "g.conf")
    assert message in str(caught.value)
