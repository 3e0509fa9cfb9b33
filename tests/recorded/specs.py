"""Variations of bundled specs, as YAML files that commands are pointed at."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
BENCHMARKS = ("corners", "irregular")

Data = dict[str, Any]


def bundled() -> list[str]:
    """Return the names of the bundled specs."""
    return sorted(path.stem for path in (ROOT / "specs").glob("*.yaml"))


def _bundled(name: str) -> Data:
    data: Data = yaml.safe_load((ROOT / "specs" / f"{name}.yaml").read_text())
    return data


def changed(name: str, fields: Mapping[str, object]) -> Data:
    """Return a bundled spec with fields set: `{"training.seq_len": 4096}`."""
    data = _bundled(name)
    for path, value in fields.items():
        *parents, last = path.split(".")
        section: Any = data
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = copy.deepcopy(value)
    return data


def _gpu(memory: str) -> Data:
    return {"preset": "h100-sxm-80gb", "memory_gib": memory}


def _box(memory: str, gpus: int = 8) -> Data:
    level = {"name": "nvlink", "size": gpus, "gb_s": 450, "latency_us": 1.0}
    return {"topology": {"gpu": _gpu(memory), "levels": [level]}}


CHANGES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "tight-40": ("llama2-13b-8xa100", {"cluster": _box("40 GiB")}),
    "tight-24": ("llama2-13b-8xa100", {"cluster": _box("24 GiB")}),
    "none-fits": ("llama3-70b-16xh100", {"cluster": _box("24 GiB")}),
    "one-gpu": ("gpt2-xl-2xh100-nvlink", {"cluster": _box("24 GiB", 1)}),
    "six-gpus": ("llama3-8b-2xh100-nvlink", {"cluster": _box("80 GiB", 6)}),
    "odd-batch": ("llama2-13b-8xa100", {"training.global_batch": 63}),
    "long": (
        "llama3-8b-2xh100-nvlink",
        {"training.seq_len": 32768, "cluster": _box("80 GiB")},
    ),
    "limited-links": ("gpt-1.3b-2xh100-nvlink", {"limits.max_link_utilisation": 0.3}),
    "hbm-limit": ("llama2-13b-8xa100", {"limits.memory_margin": 0.3}),
    "pinned-pp": ("llama2-13b-8xa100", {"pins": {"pp": 4}}),
    "pinned-range": ("llama2-13b-8xa100", {"pins": {"tp": {"min": 2, "max": 4}}}),
    "pinned-recompute": ("llama2-13b-8xa100", {"pins": {"recompute": "full"}}),
    "pinned-offload": (
        "llama2-13b-8xa100",
        {"pins": {"offload": "optimizer", "zero": 2}},
    ),
    "pinned-layers": (
        "llama2-13b-8xa100",
        {"pins": {"pp": 2, "recompute": "full", "recompute_layers": 5}},
    ),
    "pins-collide": ("llama2-13b-8xa100", {"pins": {"tp": 8, "pp": 8}}),
    "experts": ("mixtral-8x7b-64xh100", {"pins": {"ep": 8}}),
    "a-run": ("llama3-8b-2xh100-nvlink", {"run": {"tokens": 1e12}}),
    "uncapped": ("llama3-70b-16xh100", {"training.global_batch": 16}),
    "mixed-pinned": ("llama2-13b-8xh100-8xa100", {"pins": {"pp": 2}}),
    "mixed-small": ("gpt2-xl-2x3090-2x4090", {"training.global_batch": 16}),
    "cube-tp8": ("gpt-1.3b-dgx-1v", {"pins": {"tp": 8}}),
    "cube-open": ("gpt-1.3b-dgx-1v", {"pins": {}}),
    "serve-slow": ("serve-llama3-8b-2x4090-pcie", {"inference.batch": 64}),
    "serve-none": ("serve-llama3-70b-2x4090-pcie", {"inference.precision": "bf16"}),
}
"""Name of each variation: the bundled spec, and what is set in it."""

FRAMEWORKS = ("megatron", "deepspeed", "torchtitan", "fsdp", "internevo")

UNDER_EACH_FRAMEWORK = (
    "llama2-13b-8xa100",
    "gpt2-xl-2x4090-pcie",
    "llama3-70b-16xh100",
    "mixtral-8x7b-64xh100",
)


def write_specs(folder: Path) -> None:
    """Write every variation, and the specs of the benchmarks, into a folder."""
    for name, (base, fields) in CHANGES.items():
        _write(folder / f"{name}.yaml", changed(base, fields))
    for name in UNDER_EACH_FRAMEWORK:
        for framework in FRAMEWORKS:
            data = changed(name, {"framework": framework})
            _write(folder / f"{framework}-{name}.yaml", data)
    for kind in BENCHMARKS:
        for path in (ROOT / "benchmarks" / kind).glob("*.yaml"):
            (folder / path.name).write_text(path.read_text())
    _each_text(folder)


def _write(path: Path, data: Data) -> None:
    path.write_text(yaml.safe_dump(data, sort_keys=False))


def _each_text(folder: Path) -> None:
    texts: Mapping[str, Callable[[str], str]] = {
        "misspelt": lambda text: text.replace("seq_len", "seqlen"),
        "no-batch": lambda text: re.sub(r", global_batch: \d+", "", text),
        "bad-unit": lambda text: text.replace("80 GiB", "80 GiBs"),
        "odd-heads": lambda text: text + "pins: {tp: 3}\n",
    }
    good = (ROOT / "specs" / "llama2-13b-8xa100.yaml").read_text()
    for name, change in texts.items():
        (folder / f"{name}.yaml").write_text(change(good))
