"""`ibnetdiscover` and lists of InfiniBand ports."""

from __future__ import annotations

import pytest

from meshwright.errors import SpecError
from meshwright.imports import infiniband
from tests.helpers.import_facts import (
    block_count,
    names_seen_from_switches,
    port_lines_by_speed,
)
from tests.helpers.import_gpus import validated


def switch(name: str, ports: list[str]) -> str:
    head = (
        f'switchguid=0x{name}({name})\nSwitch\t41 "S-{name}"\t# "MF0;{name}" base port'
    )
    lines = [f"[{i}]\t{port} s=4 w=2" for i, port in enumerate(ports, 1)]
    return "\n".join([head, *lines, "", ""])


def to_host(host: str, adapter: int, speed: str) -> str:
    return f'"H-{host}{adapter}"[1](0f)\t# "{host} mlx5_{adapter}" lid 7 {speed}'


def to_switch(name: str, port: int, speed: str = "4xHDR") -> str:
    return f'"S-{name}"[{port}]\t# "MF0;{name}" lid 9 {speed}'


def adapter(host: str, number: int, name: str, port: int, speed: str) -> str:
    return (
        f'caguid=0x1\nCa\t1 "H-{host}{number}"\t# "{host} mlx5_{number}"\n'
        f'[1](0f)\t"S-{name}"[{port}]\t# lid 1 lmc 0 "MF0;{name}" lid 9 {speed}\n'
    )


def fabric(speed: str = "4xNDR") -> str:
    """Return 2 rails of leaves over hosts a and b, 2 over c and d, and 1 spine.

    Each leaf has two cables to the spine; SHARP sits at the spine.
    """
    parts = ["[root@a ~]# ibnetdiscover\n# Topology file: generated\n"]
    for group, hosts in enumerate(["ab", "cd"]):
        for rail in range(2):
            name = f"e{group}{rail}"
            ports = [to_host(host, rail, speed) for host in hosts]
            up = 2 * (2 * group + rail) + 1
            ports += [to_switch("5f", up), to_switch("5f", up + 1)]
            parts.append(switch(name, ports))
            parts += [
                adapter(host, rail, name, i, speed) for i, host in enumerate(hosts, 1)
            ]
    down = [
        to_switch(f"e{leaf // 2}{leaf % 2}", 3 + i) for leaf in range(4) for i in (0, 1)
    ]
    sharp = '"H-99"[1](99)\t# "Mellanox Technologies Aggregation Node" lid 3 4xHDR'
    parts.append(switch("5f", [*down, sharp]))
    return "\n".join(parts)


def test_rails_join_the_hosts_of_several_leaves() -> None:
    facts = infiniband.parse_ibnetdiscover(fabric(), "t")
    assert block_count(facts, "Switch") == 5
    assert block_count(facts, "Ca") == 8
    assert sorted(facts.hosts) == ["a", "b", "c", "d"]
    assert names_seen_from_switches(facts) == {"a", "b", "c", "d", "Mellanox"}
    # hosts: 8 ports at either end; leaves 8 cables at either end, and SHARP
    assert port_lines_by_speed(facts) == {"4xNDR": 16, "4xHDR": 17}
    imported = infiniband.to_levels(facts)
    levels = [(v["name"], v["size"], v["gb_s"]) for v in imported.fields["levels"]]
    # a host: 2 x 400 Gbit/s; a group of 2 leaves: 4 cables of 200 Gbit/s
    assert levels == [("leaf", 2, 2 * 400 / 8), ("spine", 2, 4 * 200 / 8)]
    assert validated(imported).gpus == 4


@pytest.mark.parametrize(
    ("speed", "gbit_s"),
    [("4xEDR", 100), ("4xHDR", 200), ("2xHDR", 100), ("4xNDR", 400), ("4xXDR", 800)],
)
def test_speeds_of_cables(speed: str, gbit_s: float) -> None:
    facts = infiniband.parse_ibnetdiscover(fabric(speed), "t")
    leaf = infiniband.to_levels(facts).fields["levels"][0]
    assert leaf["gb_s"] == 2 * gbit_s / 8


def test_unequal_leaves_are_cut_into_equal_blocks() -> None:
    text = switch("e0", [to_host(h, 0, "4xHDR") for h in "abc"] + [to_switch("5f", 1)])
    text += switch("e1", [to_host(h, 0, "4xHDR") for h in "def"] + [to_switch("5f", 2)])
    text += switch("e2", [to_host("g", 0, "4xHDR"), to_switch("5f", 3)])
    imported = infiniband.to_levels(infiniband.parse_ibnetdiscover(text, "t"))
    # a host of the small leaf has the cable up to the spine alone, one of the others
    # a third of it; leaves are no level, since no number divides 3, 3 and 1
    (level,) = imported.fields["levels"]
    assert (level["name"], level["size"]) == ("spine", 7)
    assert level["gb_s"] == pytest.approx(67 / 8)
    told = "Groups of a leaf have 2 x 3, 1 x 1 hosts: no number of hosts divides all"
    assert any(told in note for note in imported.notes)


def test_parts_that_are_not_joined_are_told() -> None:
    text = switch("e0", [to_host(h, 0, "4xHDR") for h in "abc"])
    text += switch("e1", [to_host(h, 0, "4xHDR") for h in "de"])
    imported = infiniband.to_levels(infiniband.parse_ibnetdiscover(text, "t"))
    assert [level["size"] for level in imported.fields["levels"]] == [3]
    told = "by hosts: that of a (3), that of d (2). that of a is described."
    assert any(told in note for note in imported.notes)


BROKEN = {
    "speed": (fabric("4xZDR"), "ib.txt:6: ZDR: unknown speed; accepted: SDR, DDR"),
    "port": ('Switch 1 "S-1"\n[1] nowhere', "ib.txt:2: '[1] nowhere': expected a port"),
    "outside": ('[1] "S-1"[2]', "a port outside of a block"),
    "block": ("Switch S-1", "ib.txt:1: 'Switch S-1': expected a block"),
    "nothing": ("", "ib.txt: no block such as Switch 41"),
    "no host": (
        'Switch 1 "S-1"\n[1] "S-2"[1] # "x" 4xHDR',
        "ib.txt: no host is joined",
    ),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_fabric_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        infiniband.to_levels(infiniband.parse_ibnetdiscover(text, "ib.txt"))
    assert message in str(caught.value)


def test_ports_by_host() -> None:
    facts = infiniband.parse_ibstat(
        "VM_hostname a\n0f0000000001\n0F0000000002\nVM_hostname b\n", "t"
    )
    assert facts.guids == {"a": ("0f0000000001", "0f0000000002"), "b": ()}
    printed = (
        "CA 'mlx5_0'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Active\n\t\tRate: 400\n"
        "\t\tPort GUID: 0x0f0000000003\n"
    )
    assert infiniband.parse_ibstat(printed, "t").guids == {
        "localhost": ("0f0000000003",)
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("VM_hostname a", "t: no port GUID; expected the output of ibstat"),
        ("VM_hostname a\nxyz", "t:2: 'xyz': expected VM_hostname, a port GUID"),
    ],
)
def test_broken_port_list_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        infiniband.parse_ibstat(text, "t")
    assert message in str(caught.value)
