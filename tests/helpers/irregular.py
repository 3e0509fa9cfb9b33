"""Machines whose GPUs are not alike, and random small specs on them."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

import meshwright as mw
from meshwright.spec.spec import Spec
from tests.helpers.strategies import FRAMEWORKS, switches

GPU = {
    "memory_gib": 24,
    "memory_gb_s": 900,
    "peak_tflops": {"bf16": 70.0},
}

Wires = Iterable[tuple[str, str, float, float]]
"""The names of two nodes, GB/s and us."""


def machine(
    gpus: int, switches: Iterable[str], wires: Wires, nics: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the topology of one machine with GPUs gpu0, gpu1 and so on."""
    nodes: list[dict[str, Any]] = [{"name": f"gpu{i}"} for i in range(gpus)]
    nodes += [{"name": name, "kind": "switch"} for name in switches]
    nodes += [{"name": name, "kind": "nic"} for name in nics]
    links = [
        {"between": [a, b], "gb_s": gb_s, "latency_us": latency_us}
        for a, b, gb_s, latency_us in wires
    ]
    return {"gpu": GPU, "nodes": nodes, "links": links}


def in_pairs(pairs: Iterable[tuple[int, int]]) -> dict[str, Any]:
    """Return four GPUs below one CPU, with NVLink bridges between some of them."""
    wires = [(f"gpu{i}", "cpu", 25.0, 2.0) for i in range(4)]
    wires += [(f"gpu{a}", f"gpu{b}", 56.25, 3.0) for a, b in pairs]
    return machine(4, ["cpu"], wires)


def on_sockets(socket_of: Mapping[int, int], pcie_gb_s: float = 12.5) -> dict[str, Any]:
    """Return GPUs on sockets that are joined by a slow link."""
    wires = [
        (f"gpu{gpu}", f"cpu{socket}", pcie_gb_s, 2.0)
        for gpu, socket in socket_of.items()
    ]
    wires.append(("cpu0", "cpu1", 10.0, 1.0))
    return machine(len(socket_of), ["cpu0", "cpu1"], wires)


def islands(members: Iterable[Iterable[int]]) -> dict[str, Any]:
    """Return GPUs with an NVLink switch for each island, below one CPU."""
    groups = [list(member) for member in members]
    gpus = sum(len(group) for group in groups)
    wires = [(f"gpu{i}", "cpu", 12.5, 2.0) for i in range(gpus)]
    wires += [
        (f"gpu{gpu}", f"nvlink{island}", 150.0, 1.5)
        for island, one in enumerate(groups)
        for gpu in one
    ]
    switches = ["cpu", *(f"nvlink{island}" for island in range(len(groups)))]
    return machine(gpus, switches, wires)


def renamed(topology: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a machine whose GPUs are listed in another order, by other names."""
    changed = [{**one, "name": names[one["name"]]} for one in topology["nodes"]]
    links = [
        {**one, "between": [names[end] for end in one["between"]]}
        for one in topology["links"]
    ]
    return {
        **topology,
        "nodes": sorted(changed, key=lambda node: node["name"]),
        "links": links,
    }


@st.composite
def machines(draw: st.DrawFn, least: int = 3, most: int = 4) -> dict[str, Any]:
    """Return a random machine: PCIe on one or two sockets, NVLink between some."""
    gpus = draw(st.integers(least, most))
    latencies = st.sampled_from([0.0, 1.0, 3.0])
    sockets = draw(st.integers(1, 2))
    wires = [
        (
            f"gpu{gpu}",
            f"cpu{draw(st.integers(0, sockets - 1))}",
            draw(st.sampled_from([6.0, 12.5, 25.0])),
            draw(latencies),
        )
        for gpu in range(gpus)
    ]
    wires += [("cpu0", "cpu1", draw(st.sampled_from([5.0, 20.0])), 1.0)] * (sockets > 1)
    wires += [
        (f"gpu{a}", f"gpu{b}", gb_s, draw(latencies))
        for a, b in itertools.combinations(range(gpus), 2)
        if (gb_s := draw(st.sampled_from([0.0, 0.0, 25.0, 50.0])))
    ]
    return machine(gpus, [f"cpu{i}" for i in range(sockets)], wires)


def small_spec(topology: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the data of a spec of a small model on one machine."""
    model = {
        "n_layers": 4,
        "d_model": 1024,
        "n_heads": 8,
        "n_kv_heads": 8,
        "d_ff": 4096,
        "vocab": 8_000,
    }
    return {
        "model": model,
        "cluster": {"topology": topology},
        "framework": "megatron",
        "training": {"seq_len": 2048, "global_batch": 24},
        **fields,
    }


FORCED: list[dict[str, Any]] = [
    {},
    {"tp": {"min": 2}},
    {"pp": {"min": 2}},
    {"cp": 2, "dp_shard": 2},
    {"ep": {"min": 2}},
]
"""Choices that would rarely win by themselves."""


def irregular_specs() -> st.SearchStrategy[Spec]:
    """Return random small specs on three or four GPUs that are not alike."""
    return irregular_data().map(Spec.model_validate)


@st.composite
def irregular_data(draw: st.DrawFn) -> dict[str, Any]:
    """Return the data of a random small spec on GPUs that are not alike."""
    forced = draw(st.sampled_from(FORCED))
    topology = draw(machines(4 if "dp_shard" in forced else 3))
    data = small_spec(topology)
    width = draw(st.sampled_from([256, 1024]))
    data["model"] |= {"d_model": width, "d_ff": 3 * width}
    data["model"]["n_layers"] = draw(st.integers(2, 4))
    if "ep" in forced or draw(st.integers(0, 3)) == 0:
        data["model"]["moe"] = {"n_experts": 4, "top_k": 2, "d_ff": width}
    known = FRAMEWORKS if not forced else ["megatron", "torchtitan"]
    data["framework"] = draw(st.sampled_from(known))
    has_experts = "moe" in data["model"]
    data["training"] |= draw(switches(data["framework"], has_experts))
    data["training"]["seq_len"] = draw(st.sampled_from([480, 1920]))
    data["training"]["global_batch"] = draw(st.sampled_from([4, 6, 12]))
    usual = {"vpp": 1, "schedule": "1f1b", "recompute": "none", "dp_replicate": [1, 2]}
    data["pins"] = usual | forced
    limits = {}
    if draw(st.integers(0, 3)) == 0:
        limits["tp_min_link_gb_s"] = draw(st.sampled_from([5.0, 10.0, 20.0]))
    if draw(st.integers(0, 3)) == 0:
        shares = st.sampled_from([0.05, 0.2, 0.5, 0.8])
        limits["max_link_utilisation"] = draw(shares)
    data["limits"] = limits
    return data


def loaded(cluster: dict[str, Any], **fields: Any) -> Spec:
    """Return a small spec on a cluster that names what is bundled."""
    data = small_spec({}, **fields) | {"cluster": cluster}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.yaml"
        path.write_text(yaml.safe_dump(data))
        return mw.load(str(path), mw.Spec)
