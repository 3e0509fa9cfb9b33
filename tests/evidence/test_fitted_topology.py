"""Logs of nccl-tests on machines of nodes and links, and on what joins them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.errors import SpecError
from meshwright.evidence.fitted_topology import (
    apply,
    apply_to_nodes,
    price,
    price_on_nodes,
)
from meshwright.evidence.link_fit import LinkFit, predicted_s
from meshwright.spec.topology import USUAL_BUS_SHARE, Topology

GPU = {"memory_gib": 80, "memory_gb_s": 2_000, "peak_tflops": {"bf16": 300}}
LEAF = {"name": "leaf", "gb_s": 25, "latency_us": 2.0, "uplink": "per_nic"}


def star(**above: Any) -> dict[str, Any]:
    """Return four GPUs at a switch of 100 GB/s, two NICs on a PCIe switch of 50."""
    gpus = [f"g{i}" for i in range(4)]
    nodes = [{"name": name} for name in gpus]
    nodes += [{"name": name, "kind": "switch"} for name in ("nv", "pcie")]
    nodes += [{"name": name, "kind": "nic"} for name in ("n0", "n1")]
    links = [{"between": [g, "nv"], "gb_s": 100, "latency_us": 1} for g in gpus]
    links += [
        {"between": [end, "pcie"], "gb_s": 60, "latency_us": 0.5}
        for end in (*gpus, "n0", "n1")
    ]
    return {"name": "star", "gpu": GPU, "nodes": nodes, "links": links, **above}


def fit(ranks: int, op: str = "all_gather", gb_s: float = 80.0) -> LinkFit:
    """Return a fit of all sizes from 1 KiB to 1 GiB."""
    sizes = [2**i for i in range(10, 31)]
    errors = tuple((size, 0.0) for size in sizes)
    return LinkFit(gb_s, 6.0, 0.0, errors, op, ranks, None, f"{op}.log")


def rates(fields: dict[str, Any]) -> dict[tuple[str, str], tuple[float, float]]:
    return {
        tuple(link["between"]): (
            link["gb_s"] * link.get("bus_share", USUAL_BUS_SHARE),
            link["latency_us"],
        )
        for link in fields["links"]
    }


def after(
    fields: dict[str, Any], *fits: LinkFit
) -> tuple[Topology, dict[str, Any], tuple[str, ...]]:
    result, notes = apply_to_nodes(fields, Topology.model_validate(fields), fits)
    return Topology.model_validate(result), result, notes


SIZES = np.array([2.0**14, 2.0**22, 2.0**30])


def predicted(link_fit: LinkFit) -> Any:
    return pytest.approx([predicted_s(link_fit, size) for size in SIZES], rel=1e-3)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "alltoall"])
def test_one_machine_tells_the_links_to_its_switch(op: str) -> None:
    found = fit(4, op)
    topology, fields, notes = after(star(scale_out=LEAF), found)
    assert rates(fields)["g2", "nv"] == (80, 6)
    assert rates(fields)["g2", "pcie"] == (48, 0.5)
    assert fields["scale_out"] == LEAF
    assert notes[0].startswith("nv: bus_share 0.8 -> 0.8, 80 of 100 GB/s, fitted ")
    assert price_on_nodes(topology, found, SIZES) == predicted(found)


@pytest.mark.parametrize(
    ("op", "gb_s", "way_us"),
    [
        # A ring of 40 GB/s leaves a machine once, over two NICs. Of its 7 hops, of 6 us
        # each way, six are inside, of 1 us each way; the other has 7 x 6 - 6 x 1 us.
        ("all_gather", 40 / 2, 36),
        # Each of 4 GPUs sends 4 of 7 parts to the other machine: 4 x 40 x 4/7 / 2. All
        # are under way at once: the longest way is the one of 6 us.
        ("alltoall", 4 * 40 * 4 / 7 / 2, 6),
    ],
)
@pytest.mark.parametrize("above", ["scale_out", "levels"])
def test_several_machines_tell_the_nics(
    op: str, gb_s: float, way_us: float, above: str
) -> None:
    # All links are faster than what the log reached.
    fast = {**LEAF, "gb_s": 50}
    level = fast if above == "scale_out" else {**fast, "size": 2}
    given = star(**{above: level if above == "scale_out" else [level]})
    found = fit(8, op, gb_s=40.0)
    topology, fields, _ = after(given, found)
    changed = fields[above] if above == "scale_out" else fields[above][0]
    assert changed["gb_s"] * changed["bus_share"] == pytest.approx(gb_s, rel=1e-3)
    # GPU to PCIe to NIC is 1 us of one way.
    assert changed["latency_us"] == pytest.approx(way_us - 1, rel=1e-3)
    assert rates(fields) == rates(given)
    assert price_on_nodes(topology, found, SIZES) == predicted(found)


def pairs() -> dict[str, Any]:
    """Return the star, whose GPUs also have direct links in pairs."""
    fields = star(scale_out=LEAF)
    for a, b in (("g0", "g1"), ("g2", "g3")):
        link = {"between": [a, b], "gb_s": 200, "latency_us": 1}
        fields["links"].append(link)
    return fields


def test_machines_without_one_switch_are_fitted_outside_alone() -> None:
    with pytest.raises(
        SpecError, match=r"all_gather\.log: pairs of GPUs have direct links"
    ):
        after(pairs(), fit(4))
    topology, fields, notes = after(pairs(), fit(8, gb_s=40.0))
    assert fields["scale_out"]["gb_s"] == LEAF["gb_s"]
    assert fields["scale_out"]["bus_share"] == 20 / 25
    assert not [note for note in notes if note.startswith("machine:")]
    assert price_on_nodes(topology, fit(8), SIZES).shape == SIZES.shape


def test_ranks_must_be_all_gpus_of_machines() -> None:
    for ranks in (2, 6):
        message = f"{ranks} ranks are not all GPUs of machines of 4"
        with pytest.raises(SpecError, match=message):
            after(star(scale_out=LEAF), fit(ranks))
    with pytest.raises(SpecError, match="8 ranks do not fill levels of 4 GPUs"):
        after(star(), fit(8))


@pytest.mark.parametrize("uplink", ["per_gpu", "shared"])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "alltoall"])
def test_levels_with_a_fit_price_the_log_again(op: str, uplink: str) -> None:
    inner = {"name": "nv", "size": 4, "gb_s": 300, "latency_us": 1.5}
    outer = {"name": "leaf", "gb_s": 400, "latency_us": 2, "uplink": uplink}
    found = fit(16, op)
    fields, _ = apply({"levels": [inner], "scale_out": outer}, [found])
    assert price(fields, found, SIZES) == predicted(found)
