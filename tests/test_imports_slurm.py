"""Slurm: topology.conf and .yaml, GRES, `scontrol show node`; host lists and files."""

from __future__ import annotations

import pytest

from meshwright.errors import SpecError
from meshwright.imports import hostfile, scontrol, slurm, slurm_gres
from meshwright.imports.hostlist import expand
from tests.import_gpus import A6000, links_of, validated

HOSTLISTS = {
    "n1": ["n1"],
    "n[1-3]": ["n1", "n2", "n3"],
    "n[08-10],login": ["n08", "n09", "n10", "login"],
    "n[1,3,5-6]": ["n1", "n3", "n5", "n6"],
    "r[1-2]n[0-1]": ["r1n0", "r1n1", "r2n0", "r2n1"],
    "n[001-002]-ib": ["n001-ib", "n002-ib"],
}


@pytest.mark.parametrize(("text", "hosts"), HOSTLISTS.items())
def test_hostlist(text: str, hosts: list[str]) -> None:
    assert [*expand(text, "f", 1)] == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n[1-3", "f:7: 'n[1-3': expected brackets that close"),
        ("n]1", "f:7: 'n]1': expected brackets that close"),
        ("n[3-1]", "f:7: '3-1': expected a number or a range"),
        ("n[a]", "f:7: 'a': expected a number or a range"),
        ("n[0-999999]", "f:7: '0-999999': expected at most 200,000 hosts"),
        ("n[0-999][0-999]", "expected at most 200,000 hosts"),
    ],
)
def test_broken_hostlist_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        expand(text, "f", 7)
    assert message in str(caught.value)


TREE = r"""
# two tiers
SwitchName=s0 Nodes=n[0-3] LinkSpeed=100   # in rack 1
switchname=s1 nodes=n[4-7]
SwitchName=top \
    Switches=s[0-1]
"""


def sizes(text: str) -> list[tuple[str, int]]:
    levels = slurm.to_levels(slurm.parse(text, "topology.conf")).fields["levels"]
    return [(level["name"], level["size"]) for level in levels]


def notes(text: str) -> str:
    return " ".join(slurm.to_levels(slurm.parse(text, "topology.conf")).notes)


def test_tree() -> None:
    facts = slurm.parse(TREE, "topology.conf")
    assert facts.kind == "tree"
    assert len(facts.groups) == 3
    assert len(facts.leaves) == 2
    assert facts.nodes == tuple(f"n{i}" for i in range(8))
    assert sizes(TREE) == [("leaf", 4), ("spine", 2)]
    assert "topology.conf:3: linkspeed= is left out." in notes(TREE)
    assert "every uplink is assumed to have 50 GB/s per GPU" in notes(TREE)
    assert validated(slurm.to_levels(facts)).gpus == 8


def test_uneven_tree_is_made_regular_and_noted() -> None:
    text = TREE.replace("n[4-7]", "n[4-5]") + "SwitchName=s9 Nodes=m[0-3]"
    assert sizes(text) == [("leaf", 4), ("spine", 2)]
    assert "Children of a leaf switch: 2 of 3 have 4, others 2" in notes(text)
    assert "2 trees have no switch in common" in notes(text)


def test_blocks() -> None:
    lines = [f"BlockName=b{i} Nodes=n[{i}1-{i}8]" for i in range(6)]
    text = "\n".join([*lines, "BlockSizes=8,16"])
    facts = slurm.parse(text, "t")
    assert (facts.kind, len(facts.groups), len(facts.nodes)) == ("block", 6, 48)
    assert facts.block_sizes == (8, 16)
    assert sizes(text) == [("block", 8), ("16-node-group", 2), ("cluster", 3)]
    odd = text.replace("8,16", "8,12")
    assert sizes(odd) == [("block", 8), ("cluster", 6)]
    assert "BlockSizes=12 is no level above 8 nodes" in notes(odd)


def test_blocks_may_be_empty() -> None:
    conf = "BlockName=a Nodes=n[1-4]\nBlockName=b\nBlockName=c Nodes=m[1-4]"
    yaml = BLOCKS.replace(
        "      - block: b1\n", "      - block: b9\n      - block: b1\n"
    )
    for text, size in ((conf, 4), (yaml, 2)):
        assert len(slurm.parse(text, "t").groups) == 3
        assert [level for _, level in sizes(text)] == [size, 2]
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
    assert sizes(BLOCKS) == [("block", 2), ("4-node-group", 2)]


BROKEN = {
    "nothing": ("# only this", "t.conf: no switch, block or ring"),
    "unknown": (
        "Switch=s0 Nodes=n1",
        "t.conf:1: 'switch': unknown; accepted: switchname",
    ),
    "words": ("\nSwitchName=s0 n1", "t.conf:2: 'SwitchName=s0 n1': expected KEY=VALUE"),
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
        slurm.to_levels(slurm.parse(text, "t.conf"))
    assert message in str(caught.value)


def gres(links: list[str], extra: str = "") -> str:
    return (
        "\n".join(
            f"slurmd: Gres Name=gpu Type=a6000 Count=1 Index={i} File=/dev/nvidia{i} "
            f"Cores={'0-7' if i < 2 else '8-15'} Links={row} Flags=HAS_FILE"
            for i, row in enumerate(links)
        )
        + extra
    )


def test_gres_links_are_nvlinks() -> None:
    text = gres(["-1,4,0", "4,-1,0", "0,0,-1"], "\nGres Name=VramPerGpu Count=48G")
    facts = slurm_gres.parse(text, "t")
    assert facts.gpu_pair_links == {"4": 1, "0": 2}
    assert facts.cores == ["0-7", "0-7", "8-15"]
    assert facts.mem_bytes == 48 * 2**30
    links = links_of(slurm_gres.to_topology(facts, A6000, "a6000"))
    assert links["GPU0", "GPU1"] == 4 * 14
    assert links["GPU0", "numa0"] == 25
    assert links["GPU2", "system"] == 10


def test_gres_conf_lists_files_and_nodes() -> None:
    text = (
        "AutoDetect=off  # Name=gpu\n"
        "NodeName=a[1-4] Name=gpu Type=a100 File=/dev/nvidia[0-3] Cores=0-31\n"
        "NodeName=b1 Name=gpu Type=v100 File=/dev/nvidia0\n"
    )
    facts = slurm_gres.parse(text, "gres.conf")
    assert [gpu.type for gpu in facts.gpus] == ["a100"] * 4
    said = slurm_gres.to_topology(facts, A6000, "a6000").notes
    assert "Nodes other than a[1-4] are left out." in said
    assert "The file has no Links=; no NVLink is drawn." in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "g.conf: no line with Name=gpu"),
        ("Name=gpu Count=x", "g.conf:1: Count='x': expected a whole number"),
        ("Name=gpu Count=999", "g.conf:1: 999 GPUs; expected at most 256"),
        ("Name=gpu Links=-1,x", "g.conf:1: Links='-1,x': expected NVLinks per GPU"),
        (gres(["-1,4", "4"]), "g.conf:2: 1 links; expected one for each of 2 GPUs"),
    ],
)
def test_broken_gres_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        slurm_gres.parse(text, "g.conf")
    assert message in str(caught.value)


NODE = """NodeName=n1 Arch=x86_64 CoresPerSocket=32
   CPUAlloc=0 CPUTot=128 CPULoad=0.1
   Gres={gres}
   OS=Linux 6.8.0 #47 SMP Thu Jan 29 2026
   RealMemory=515000 Sockets=2 State=IDLE+CLOUD
   CfgTRES={tres}
   Reason=bad cable, see rack 7 InstanceType=p4d.24xlarge
"""
GRES = {
    "gpu:a100:8(S:0-1)": {"a100": 8},
    "gpu:8": {"gpu": 8},
    "gpu": {"gpu": 1},
    "gpu:a100:4(S:0,1),gpu:v100:2,shard:64,nvme:1.5T": {"a100": 4, "v100": 2},
    "gpu:a100_1g.5gb:7(IDX:0-6)": {"a100_1g.5gb": 7},
    "gpu:a100:no_consume:4": {"a100": 4},
    "(null)": {"h100": 3},
    "": {"h100": 3},
}


@pytest.mark.parametrize(("gres", "gpus"), GRES.items())
def test_scontrol_counts_gpus(gres: str, gpus: dict[str, int]) -> None:
    text = NODE.format(gres=gres, tres="cpu=128,gres/gpu=3,gres/gpu:h100=3")
    for spelled in (text, text.replace("\n", " ")):
        facts = scontrol.parse(spelled, "t")
        node = facts.nodes[0]
        assert node.gpus == gpus
        assert (node.state, node.instance) == ("IDLE+CLOUD", "p4d.24xlarge")
        assert (node.cpus, node.sockets, node.memory_mib) == (128, 2, 515_000)
        assert bool(facts.notes) == (sum(gpus.values()) != 3)


def test_scontrol_counts_over_nodes() -> None:
    first = NODE.format(gres="gpu:a100:8", tres="")
    text = first + "\n" + first.replace("NodeName=n1", "NodeName=n2")
    facts = scontrol.parse("[root@head ~]# scontrol show node\n" + text, "t")
    assert [node.name for node in facts.nodes] == ["n1", "n2"]
    assert facts.gpus == 16
    assert facts.kinds == {(("a100", 8),): ["n1", "n2"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Node n1 not found", "t: no NodeName=; expected the output of scontrol"),
        ("\nNodeName=n1 Gres=gpu:a b", "t:2: Gres='gpu:a b': expected gpu:<type>"),
    ],
)
def test_broken_scontrol_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        scontrol.parse(text, "t")
    assert message in str(caught.value)


HOSTFILES: dict[str, dict[str, int | None]] = {
    "a slots=8\nb slots=4 max_slots=8 # old\n": {"a": 8, "b": 4},
    "a:8\nb:2": {"a": 8, "b": 2},
    "a\nb": {"a": None, "b": None},
    "n[1-2] slots=8": {"n1": 8, "n2": 8},
    "me@a slots=2\n10.0.0.1\nfe80::1": {"a": 2, "10.0.0.1": None, "fe80::1": None},
    "a\na\nb\nb": {"a": 2, "b": 2},
    "a slots=2\na slots=3": {"a": 5},
}


@pytest.mark.parametrize(("text", "slots"), HOSTFILES.items())
def test_hostfile(text: str, slots: dict[str, int | None]) -> None:
    assert hostfile.parse(text, "t").slots == slots


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# none", "t: no host; expected one a line"),
        ("a\nb slots=x", "t:2: 'slots=x': expected a whole number of slots"),
        ("a 8", "t:1: '8': unknown; accepted: slots"),
        ("{}", "t:1: '{}': expected a host"),
    ],
)
def test_broken_hostfile_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        hostfile.parse(text, "t")
    assert message in str(caught.value)
