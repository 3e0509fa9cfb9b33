"""What means the same is answered the same, however it is written.

Some spellings keep the plan to the last bit: units, presets, single values as lists,
defaults written out. Others name a plan differently, and keep its time alone: a level
of one child gives meshes a factor more, other names of GPUs another order of ranks.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import yaml

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.loading.load import load_question
from meshwright.spec.open_spec import OpenSpec
from tests.laws.asked import Answer, ask, question
from tests.laws.law import Checks, Data, Law, as_yaml, plain
from tests.laws.specs import every_data

Spelling = Callable[[Data, Random, Path], Data]
"""Writes a spec in another way; files that it names are put into a folder."""


def spellings_are_equal(data: Data, choice: Random) -> Checks:
    """Write a spec to a file in every way that it can be written, and solve each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = _with_bundled_gpu(data, choice)
        try:
            first = _answer(data, folder)
        except SpecError:
            return  # Pins that divide nothing are asked of plans, not of specs.
        for spelling in (*KEEPS_PLANS, *KEEPS_TIMES):
            found = _answer(spelling(plain(data), choice, folder), folder)
            told = f"{spelling.__name__}: {found.best} for {first.best}"
            is_kept = spelling in KEEPS_TIMES or found.best == first.best
            yield is_kept and _is_as_fast(found, first), told


def _is_as_fast(answer: Answer, other: Answer) -> bool:
    if answer.outcome.status != other.outcome.status:
        return False
    return answer.is_no_slower(other) and other.is_no_slower(answer)


def _answer(data: Data, folder: Path) -> Answer:
    path = folder / "spec.yaml"
    path.write_text(as_yaml(data), encoding="utf-8")
    question = load_question(str(path))
    assert not isinstance(question, OpenSpec), "no draw leaves numbers open"
    return ask(question)


def _with_bundled_gpu(data: Data, choice: Random) -> Data:
    """Return a spec on GPUs that have a bundled name, as large as those that it has."""
    found = plain(data)
    topology = found["cluster"].get("topology")
    known = ["a100-sxm-40gb", "h100-sxm-80gb", "rtx-4090", "v100-sxm-16gb"]
    if topology is None or choice.random() < 0.7:
        return found
    name = choice.choice(known)
    found.setdefault("limits", {}).setdefault(
        "memory_gib", topology["gpu"]["memory_gib"]
    )
    topology["gpu"] = yaml.safe_load(_bundled(name))
    precisions = topology["gpu"]["peak_tflops"]
    if "training" in found:
        asked = found["training"].get("precision", "bf16")
        left = [p for p in _listed(asked) if p in precisions]
        found["training"]["precision"] = left or next(iter(precisions))
    return found


def _bundled(name: str) -> str:
    path = catalog.locate("topologies/gpus", name, Path())
    return path.read_text(encoding="utf-8")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _gpus(data: Data) -> list[Data]:
    """Return what has a GPU: the topology, or that of each part."""
    cluster = data["cluster"]
    return [p["topology"] for p in cluster.get("parts", [])] or [cluster["topology"]]


def with_units(data: Data, choice: Random, _folder: Path) -> Data:
    """Write quantities with units, of those that are powers of two times the own."""
    bandwidth = {"GB/s": 1.0, "Gbit/s": 8.0, "Gbps": 8.0}
    memory = {"GiB": 1.0, "MiB": 1024.0, "KiB": 1024.0**2}
    units = {
        "memory_gib": memory, "nvme_gib": memory, "memory_gb_s": bandwidth,
        "gb_s": bandwidth, "pcie_gb_s": bandwidth, "nvme_gb_s": bandwidth,
        "latency_us": {"us": 1.0, "\N{MICRO SIGN}s": 1.0},
    }  # fmt: skip

    def changed(value: Any) -> Any:
        if isinstance(value, list):
            return [changed(one) for one in value]
        if not isinstance(value, dict):
            return value
        return {
            key: written(units[key], each)
            if key in units and isinstance(each, int | float)
            else changed(each)
            for key, each in value.items()
        }

    def written(known: dict[str, float], value: float) -> str:
        unit = choice.choice(sorted(known))
        return f"{value * known[unit]!r}{choice.choice(['', ' '])}{unit}"

    return {**data, "cluster": changed(data["cluster"])}


def with_lists(data: Data, choice: Random, _folder: Path) -> Data:
    """Write single values as lists or ranges, and values of lists twice."""
    for name, value in data.get("pins", {}).items():
        if isinstance(value, int) and not isinstance(value, bool):
            forms: list[Any] = [[value], {"min": value, "max": value}, [value] * 2]
            data["pins"][name] = choice.choice(forms)
        elif isinstance(value, str) and name != "recompute_layers":
            data["pins"][name] = [value]
    if "training" in data:
        found = _listed(data["training"].get("precision", "bf16"))
        data["training"]["precision"] = [*found, found[0]]
    return data


def with_defaults(data: Data, _choice: Random, _folder: Path) -> Data:
    """Write every default out that does not say that something is not there."""
    return question(data).model_dump(mode="json", exclude_none=True)


def in_files(data: Data, _choice: Random, folder: Path) -> Data:
    """Write the model, the topology and its GPU into files of their own."""
    for index, topology in enumerate(_gpus(data)):
        path = folder / f"gpu{index}.yaml"
        path.write_text(as_yaml(topology["gpu"]), encoding="utf-8")
        topology["gpu"] = path.name
    (folder / "model.yaml").write_text(as_yaml(data["model"]), encoding="utf-8")
    data["model"] = "model.yaml"
    if "topology" in data["cluster"]:
        path = folder / "topology.yaml"
        path.write_text(as_yaml(data["cluster"].pop("topology")), encoding="utf-8")
        data["cluster"]["machine"] = path.name
    return data


def over_presets(data: Data, choice: Random, folder: Path) -> Data:
    """Write fields beside a preset that has others there."""
    other = {**data["model"], "n_layers": 3, "vocab": 77}
    (folder / "other.yaml").write_text(as_yaml(other), encoding="utf-8")
    kept = {name: data["model"][name] for name in ("n_layers", "vocab")}
    data["model"] = {"preset": "other.yaml", **kept}
    for topology in _gpus(data):
        path = folder / f"gpu-{choice.random()}.yaml"
        other = {**topology["gpu"], "memory_gib": 1}
        path.write_text(as_yaml(other), encoding="utf-8")
        gib = topology["gpu"]["memory_gib"]
        topology["gpu"] = {"preset": path.name, "memory_gib": gib}
    return data


def by_name(data: Data, choice: Random, _folder: Path) -> Data:
    """Write a bundled GPU by its name or by another spelling of it."""
    aliases = yaml.safe_load(
        (Path(str(catalog.folder("topologies"))) / catalog.ALIASES).read_text("utf-8")
    )["gpus"]
    for topology in _gpus(data):
        name = topology["gpu"].get("name")
        if name in catalog.names("topologies/gpus"):
            others = [alias for alias, one in aliases.items() if one == name]
            names = [name, name.upper(), name.replace("-", "_"), f"NVIDIA {name}"]
            topology["gpu"] = choice.choice(names + others)
    return data


def as_json(data: Data, _choice: Random, folder: Path) -> Data:
    """Write the cluster as JSON, which is YAML, in one line of a file."""
    if "topology" in data["cluster"]:
        text = json.dumps(data["cluster"]["topology"])
        (folder / "topology.json").write_text(text, encoding="utf-8")
        data["cluster"]["topology"] = "topology.json"
    return data


def once(data: Data, _choice: Random, _folder: Path) -> Data:
    """Write that there is one of what there is one of."""
    data["cluster"].setdefault("count", 1)
    for part in data["cluster"].get("parts", []):
        part.setdefault("count", 1)
    return data


def with_thin_levels(data: Data, choice: Random, _folder: Path) -> Data:
    """Put a level of one child above the others, or between with links like none."""
    topology = data["cluster"].get("topology", {})
    levels = topology.get("levels")
    if not levels or data.get("pins", {}).get("mesh"):
        return data
    at = choice.randint(1, len(levels))
    is_top = at == len(levels) and "scale_out" not in topology
    gb_s, latency_us = (1.0, 50.0) if is_top else (1e6, 0.0)
    thin = {"name": "thin", "size": 1, "gb_s": gb_s, "latency_us": latency_us}
    topology["levels"] = [*levels[:at], thin, *levels[at:]]
    return data


def with_flat_copies(data: Data, _choice: Random, _folder: Path) -> Data:
    """Write copies that a network joins as one level more, or the reverse."""
    cluster = data["cluster"]
    topology = cluster.get("topology", {})
    out, levels = topology.pop("scale_out", None), topology.get("levels", [])
    if out is not None:
        topology["levels"] = [*levels, {**out, "size": cluster.pop("count", 1)}]
    elif len(levels) > 1:
        *inner, last = levels
        cluster["count"] = last.pop("size")
        topology |= {"levels": inner, "scale_out": last}
    return data


def renamed(data: Data, _choice: Random, _folder: Path) -> Data:
    """Give other names to all that has one, and list nodes in the opposite order."""
    data["model"]["name"] = "another"
    for topology in _gpus(data):
        topology["name"] = "another"
        for level in topology.get("levels", []):
            level["name"] = f"other-{level['name']}"
        if "nodes" in topology:
            topology["nodes"] = [_other_name(n) for n in reversed(topology["nodes"])]
            for link in topology["links"]:
                link["between"] = [f"other-{end}" for end in reversed(link["between"])]
    return data


def _other_name(node: Data) -> Data:
    return {**node, "name": f"other-{node['name']}"}


KEEPS_PLANS = (
    with_units, with_lists, with_defaults, in_files, over_presets, by_name, as_json,
    once,
)  # fmt: skip
KEEPS_TIMES = (with_thin_levels, with_flat_copies, renamed)

LAW = Law(
    "spellings",
    "what means the same is answered the same, however it is written",
    every_data(),
    spellings_are_equal,
    tested=5,
)
