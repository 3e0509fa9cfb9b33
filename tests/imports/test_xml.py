"""XML of NCCL, RCCL and hwloc, and the guard before it."""

from __future__ import annotations

import pytest

from meshwright.errors import SpecError
from meshwright.imports.machines import hwloc, nccl_xml
from meshwright.imports.text import parse_xml
from tests.helpers.import_facts import links_per_gpu
from tests.helpers.import_gpus import (
    A100,
    MI300X,
    PCIE,
    as_topology,
    links_of,
    make_gpu,
    names_of,
    validated,
)

V100 = make_gpu(peer_links=6, peer_link_gb_s=25, pcie_gb_s=12.5)


def pci(busid: str, kind: str, inner: str = "") -> str:
    head = f'<pci busid="{busid}" class="{kind}" link_speed="16 GT/s" link_width="16"'
    return f"{head}>{inner}</pci>"


def gpu(busid: str, dev: int, links: str = "") -> str:
    return pci(busid, "0x030200", f'<gpu dev="{dev}" sm="80">{links}</gpu>')


def link(target: str, count: int, tag: str = "nvlink", tclass: str = "0x030200") -> str:
    return f'<{tag} target="{target}" count="{count}" tclass="{tclass}"/>'


def nic(busid: str, *nets: str) -> str:
    ports = "".join(f'<net name="{n}" speed="200000" dev="0"/>' for n in nets)
    return pci(busid, "0x020700", f"<nic>{ports}</nic>")


def system(*cpus: str, vendor: str = "GenuineIntel", model: str = "143") -> str:
    head = f'arch="x86_64" vendor="{vendor}" familyid="6" modelid="{model}"'
    body = "\n".join(f'<cpu numaid="{i}" {head}>{c}</cpu>' for i, c in enumerate(cpus))
    return f'<system version="1">\n{body}\n</system>'


BRIDGED = system(
    pci("1:0.0", "0x060400", gpu("0000:0f:00.0", 1) + nic("0000:11:00.0", "a", "b")),
    gpu("0000:0E:00.0", 0) + pci("2:0.0", "0x060400", gpu("0000:1f:00.0", 2)),
)


def test_nccl_tree_becomes_pcie_relations() -> None:
    facts = nccl_xml.parse("\n<!-- a -->\n" + BRIDGED, "t.xml")
    assert [device.busid for device in facts.gpus] == [
        "0000:0e:00.0", "0000:0f:00.0", "0000:1f:00.0",
    ]  # fmt: skip
    imported = as_topology(nccl_xml.to_machine, facts, PCIE)
    assert links_of(imported) == {
        ("GPU1", "pcie0"): 25, ("a", "pcie0"): 25, ("b", "pcie0"): 25,
        ("GPU0", "host0"): 25, ("GPU2", "host0"): 25,
        ("host0", "system"): 22, ("pcie0", "system"): 22,
    }  # fmt: skip
    ports = {n["name"]: n.get("gb_s") for n in imported.fields["nodes"]}
    assert ports["a"] == ports["b"] == 200 / 8
    assert validated(imported).gpus == 3
    assert "PCIe of a GPU is taken to be as fast as 4.0 x16: 25 GB/s" in " ".join(
        imported.notes
    )


def test_nccl_nvlinks_of_pairs_and_of_switches() -> None:
    a, b, c = (f"0000:{i}f:00.0" for i in range(3))
    pair = system(gpu(a, 0, link(b, 4)) + gpu(b, 1, link(a, 4)) + gpu(c, 2))
    links = links_of(as_topology(nccl_xml.to_machine, nccl_xml.parse(pair, "t"), A100))
    assert links["GPU0", "GPU1"] == 4 * 25
    switches = link("0000:1a:00.0", 5, tclass="0x068000") + link(
        "x", 7, "nvlink", "0x068000"
    )
    switched = system(gpu(a, 0, switches) + gpu(b, 1, switches))
    facts = nccl_xml.parse(switched, "t")
    assert links_per_gpu(facts, "nvlink") == [12, 12]
    links = links_of(as_topology(nccl_xml.to_machine, facts, A100))
    assert links == {("GPU0", "nvswitch"): 12 * 25, ("GPU1", "nvswitch"): 12 * 25}


def test_rccl_names_its_links_xgmi() -> None:
    ids = [f"0000:{i}c:00.0" for i in range(3)]
    gpus = [
        gpu(one, i, "".join(link(t, 1, "xgmi") for t in ids if t != one))
        for i, one in enumerate(ids)
    ]
    facts = nccl_xml.parse(system("".join(gpus)), "t")
    assert links_per_gpu(facts, "xgmi") == [2, 2, 2]
    links = links_of(as_topology(nccl_xml.to_machine, facts, MI300X))
    assert links == {(f"GPU{i}", "xgmi"): 2 * 64 for i in range(3)}


def test_nccl_gpus_without_elements_go_by_class_and_bus() -> None:
    plain = pci("0002:00:00.0", "0x030200") + pci("0001:00:00.0", "0x030200")
    facts = nccl_xml.parse(system(plain + pci("0101:00:00.0", "0x020700")), "t")
    assert [device.busid[:4] for device in facts.gpus] == ["0001", "0002"]
    imported = as_topology(nccl_xml.to_machine, facts, make_gpu())
    # 16 GT/s x 16 lanes / 8 x 128/130 = 31.508 GB/s, of which 0.8
    assert links_of(imported)["GPU0", "host0"] == 25.21
    assert names_of(imported, "nic") == ["nic0"]
    assert "The file does not number the GPUs; they are in bus order." in imported.notes


def test_nics_may_stand_below_cpus() -> None:
    eth = '<nic><net name="eth0" speed="10000" guid="0x0" port="0" gdr="0"/></nic>'
    text = system(eth + gpu("0000:0f:00.0", 0), eth + gpu("0000:1f:00.0", 1))
    imported = as_topology(nccl_xml.to_machine, nccl_xml.parse(text, "t"), PCIE)
    assert names_of(imported, "nic") == ["eth0"]
    links = links_of(imported)
    assert links["GPU0", "host0"] == links["eth0", "host0"] == 25


def test_unknown_elements_are_noted() -> None:
    text = system(gpu("0:0f:0.0", 0)).replace("</system>", "<future/>\n</system>")
    notes = as_topology(nccl_xml.to_machine, nccl_xml.parse(text, "t.xml"), PCIE).notes
    assert "t.xml:3: elements 'future' are not known and left out." in notes


def test_graph_dump_holds_channels() -> None:
    text = (
        '<graphs version="1"><graph id="0" pattern="4" nchannels="1" speedintra="20">'
        '<channel><gpu dev="1"/><gpu dev="0"/></channel></graph></graphs>'
    )
    facts = nccl_xml.parse(text, "t.xml")
    assert facts.graphs[0].pattern == "4"
    assert facts.graphs[0].channels == (("1", "0"),)
    with pytest.raises(SpecError, match=r"t\.xml: a graph dump holds NCCL's plan"):
        as_topology(nccl_xml.to_machine, facts, PCIE)


def hwloc_xml(
    distances: str = "", doctype: str = '<!DOCTYPE topology SYSTEM "hwloc2.dtd">'
) -> str:
    def port(index: int, inner: str) -> str:
        bridge = f'<object type="Bridge" gp_index="{index}" bridge_type="1-1">'
        card = f'<object type="PCIDev" gp_index="{index + 1}">{inner}</object>'
        return f"{bridge}{card}</object>"

    def device(index: int, name: str) -> str:
        return f'<object type="OSDev" gp_index="{index}" name="{name}" osdev_type="5"/>'

    def package(index: int, inner: str) -> str:
        host = f'<object type="Bridge" gp_index="{index + 1}" bridge_type="0-1">'
        numa = f'<object type="NUMANode" gp_index="{index + 2}"/>'
        head = f'<object type="Package" gp_index="{index}">'
        return f"{head}{numa}{host}{inner}</object></object>"

    first = port(20, device(50, "cuda1") + device(60, "nvml1")) + port(
        30, device(51, "cuda0") + device(61, "nvml0")
    )
    second = port(40, device(62, "nvml2")) + port(70, device(63, "mlx5_0"))
    machine = package(1, first) + package(5, second)
    body = f'<object type="Machine" gp_index="0">{machine}</object>'
    head = f'<?xml version="1.0" encoding="UTF-8"?>\n{doctype}\n'
    return f'{head}<topology version="2.0">{body}{distances}</topology>'


def distances(objects: list[str], values: list[int]) -> str:
    head = (
        f'<distances2hetero nbobjs="{len(objects)}" kind="25" name="NVLinkBandwidth">'
    )
    indexes = f'<indexes length="9">{" ".join(objects)} </indexes>'
    numbers = [values[i : i + 4] for i in range(0, len(values), 4)]
    parts = "".join(f"<u64values>{' '.join(map(str, n))} </u64values>" for n in numbers)
    return f"{head}{indexes}{parts}</distances2hetero>"


def test_hwloc_pairs() -> None:
    pairs = distances(
        ["OSDev:60", "OSDev:61", "OSDev:62"], [0, 50_000, 0, 50_000, 0, 0, 0, 0, 0]
    )
    facts = hwloc.parse(hwloc_xml(pairs), "t.xml")
    assert [gpu.name for gpu in facts.gpus] == ["nvml0", "nvml1", "nvml2"]
    assert facts.count("cuda") == 2
    imported = as_topology(hwloc.to_machine, facts, V100)
    assert links_of(imported) == {
        ("GPU0", "GPU1"): 50,
        ("GPU0", "host0"): 12.5, ("GPU1", "host0"): 12.5,
        ("GPU2", "host1"): 12.5, ("mlx5_0", "host1"): 12.5,
        ("host0", "system"): 10, ("host1", "system"): 10,
    }  # fmt: skip


def test_hwloc_switches_are_pci_devices_and_cpus_are_none() -> None:
    objects = ["OSDev:60", "OSDev:61", "PCIDev:900", "PCIDev:901", "Package:1"]
    row = [0, 0, 25_000, 50_000, 75_000]
    values = [*row, *row, *[0] * 15]
    facts = hwloc.parse(hwloc_xml(distances(objects, values)), "t.xml")
    imported = as_topology(hwloc.to_machine, facts, V100)
    links = links_of(imported)
    assert links["GPU0", "nvswitch"] == links["GPU1", "nvswitch"] == 75
    assert "NVLink of GPUs to Package objects is left out." in imported.notes


def test_hwloc_without_drivers_has_cards() -> None:
    card = '<object type="PCIDev" gp_index="9" pci_type="0302 [10de:20b0] a1"/>'
    text = f'<topology><object type="Machine" gp_index="0">{card}</object></topology>'
    facts = hwloc.parse(text, "t.xml")
    assert [gpu.gp_index for gpu in facts.gpus] == ["9"]
    assert names_of(as_topology(hwloc.to_machine, facts, V100), "gpu") == ["GPU0"]
    with pytest.raises(SpecError, match=r"t\.xml: no GPU; expected OS devices"):
        as_topology(hwloc.to_machine, hwloc.parse("<topology/>", "t.xml"), V100)


BILLION = '<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;">]><a>&d;</a>'
BROKEN = {
    "entities": (BILLION, "t.xml:1: <!DOCTYPE 'a'>: expected XML without declarations"),
    "foreign type": ('<!DOCTYPE a SYSTEM "file:///x"><a/>', "t.xml:1: <!DOCTYPE 'a'>"),
    "subset": (
        '\n<!DOCTYPE topology SYSTEM "hwloc2.dtd" [<!ENTITY a "b">]><topology/>',
        "t.xml:2: <!DOCTYPE 'topology'>",
    ),
    "not closed": ("<a>\n<b>\n</a>", "t.xml:3: not well-formed XML: mismatched tag"),
    "no XML": ("GPU0", "t.xml:1: not well-formed XML: syntax error"),
    "nothing": ("", "t.xml:1: not well-formed XML: no element found"),
    "deep": ("<a>" * 300, "t.xml:1: expected at most 200,000 elements and 200 levels"),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_unsafe_or_broken_xml_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_xml(text, "t.xml")
    assert message in str(caught.value)


COUNT = system(gpu("0:0f:0.0", 0, link("0:1f:0.0", 4))).replace(
    'count="4"', 'count="x"'
)


SLOW = system(gpu("0:0f:0.0", 0) + nic("0:11:0.0", "a").replace("200000", "7"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SLOW, "t.xml:2: <net speed='7'>: expected at least 8 Mbit/s"),
        (
            COUNT.replace('"x"', '"1001"'),
            "t.xml:2: <nvlink count='1001'>: expected a whole number up to 1,000",
        ),
        ("<topology/>", "t.xml:1: 'topology': unknown root element; accepted: system"),
        (COUNT, "t.xml:2: <nvlink count='x'>: expected a whole number"),
        ("<graphs><graph/></graphs>", "t.xml:1: nchannels='': expected a whole number"),
    ],
)
def test_broken_nccl_file_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        nccl_xml.parse(text, "t.xml")
    assert message in str(caught.value)


@pytest.mark.parametrize("peer_link_gb_s", [0.0001, 1_000_000])
def test_bandwidths_that_no_topology_takes_are_refused(peer_link_gb_s: float) -> None:
    """Not as errors of a topology that the user never wrote."""
    pair = system(gpu("0:0f:0.0", 0, link("0:1f:0.0", 4)) + gpu("0:1f:0.0", 1))
    odd = A100.model_copy(update={"peer_link_gb_s": peer_link_gb_s})
    with pytest.raises(SpecError, match=r"GPU0 - GPU1: .* GB/s; accepted: 0.001 to"):
        as_topology(nccl_xml.to_machine, nccl_xml.parse(pair, "t"), odd)


def test_nccl_file_without_gpus_is_no_machine() -> None:
    facts = nccl_xml.parse(system(nic("0:1:0.0", "a")), "t.xml")
    assert not facts.gpus
    with pytest.raises(SpecError, match=r"t\.xml: the file names no GPU"):
        as_topology(nccl_xml.to_machine, facts, PCIE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<system/>", "t.xml:1: 'system': unknown root element; accepted: topology"),
        (
            hwloc_xml(distances(["OSDev:60"], [0, 1])),
            "t.xml:3: NVLinkBandwidth: 1 objects and 2 values; expected nbobjs='1'",
        ),
        (
            hwloc_xml(distances(["OSDev:60"], [-1])),
            "t.xml:3: NVLinkBandwidth: expected whole numbers of MB/s",
        ),
    ],
)
def test_broken_hwloc_file_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        hwloc.parse(text, "t.xml")
    assert message in str(caught.value)
