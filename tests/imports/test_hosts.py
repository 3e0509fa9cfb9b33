"""Nodes and hosts: `scontrol show node`, host lists, host files."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import SpecError
from meshwright.imports import hostfile, slurm_nodes
from meshwright.imports.hostfile import HostLists
from meshwright.loading.asked import Asked, cluster_of

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
    assert [*HostLists("f").expand(text, 1)] == hosts


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
        HostLists("f").expand(text, 7)
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
        facts = slurm_nodes.parse_scontrol(spelled, "t")
        node = facts.nodes[0]
        assert node.gpus == gpus
        assert (node.state, node.instance) == ("IDLE+CLOUD", "p4d.24xlarge")
        assert (node.cpus, node.sockets, node.host_mib) == (128, 2, 515_000)
        assert bool(facts.notes) == (sum(gpus.values()) != 3)


def test_scontrol_counts_over_nodes() -> None:
    first = NODE.format(gres="gpu:a100:8", tres="")
    text = first + "\n" + first.replace("NodeName=n1", "NodeName=n2")
    facts = slurm_nodes.parse_scontrol(
        "[root@head ~]# scontrol show node\n" + text, "t"
    )
    assert [node.name for node in facts.nodes] == ["n1", "n2"]
    assert facts.gpus_by_type == {"a100": 16}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Node n1 not found", "t: no NodeName=; expected the output of scontrol"),
        ("\nNodeName=n1 Gres=gpu:a b", "t:2: Gres='gpu:a b': expected gpu:<type>"),
    ],
)
def test_broken_scontrol_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        slurm_nodes.parse_scontrol(text, "t")
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


@pytest.mark.parametrize(
    ("state", "is_up"),
    [
        ("idle", True), ("mix", True), ("alloc~", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("down*", False), ("drain", False), ("drng", False), ("IDLE+DRAIN", False),
        ("DOWN*+CLOUD", False), ("fail", False),
    ],
)  # fmt: skip
def test_nodes_that_take_no_job_are_no_part_of_a_cluster(
    tmp_path: Path, state: str, is_up: bool
) -> None:
    rows = (
        "PARTITION NODES STATE NODELIST GRES\ngpu 2 idle n[1-2] gpu:a100:4\n"
        "gpu 1 {} n3 gpu:a100:4\n"
    )
    shown = "\n".join(
        NODE.format(gres="gpu:a100:4", tres="").replace("NodeName=n1", f"NodeName=n{i}")
        for i in (1, 2, 3)
    )
    last = shown.rindex("IDLE+CLOUD")
    shown = shown[:last] + state + shown[last + len("IDLE+CLOUD") :]
    for text in (rows.format(state), shown):
        (tmp_path / "nodes.txt").write_text(text)
        notes: list[str] = []
        asked = Asked(cluster=str(tmp_path / "nodes.txt"), gpu="a100-sxm-80gb")
        found = cluster_of(asked, notes=notes)
        assert found["count"] == (12 if is_up else 8)
        assert bool(notes) != is_up
        assert is_up or notes[0].startswith("left out: n3, which ")
