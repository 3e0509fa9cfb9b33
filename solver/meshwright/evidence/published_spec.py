"""Translates the terms of publications into a cluster, a model and its training."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from meshwright import catalog
from meshwright.catalog import spoken
from meshwright.errors import SpecError
from meshwright.evidence.published_terms import (
    SHAPE,
    VOCABULARY,
    Assumptions,
    Machine,
    Unpriced,
    checked,
)
from meshwright.evidence.runs import Run, RunExperts, RunHardware, RunModel
from meshwright.imports.machines.defaults import PCIE_SHARE
from meshwright.reading.yaml_and_csv import read_yaml
from meshwright.spec.base import divisors
from meshwright.spec.cluster import Cluster
from meshwright.spec.gpu import Gpu
from meshwright.spec.model import Model
from meshwright.spec.topology import USUAL_BUS_SHARE
from meshwright.spec.units import BANDWIDTH_UNITS

FIELD = "hardware.inter_node"

_DECIMAL = r"(\d{1,9}(?:\.\d{1,9})?)"
_BOTH_WAYS = re.compile(rf"{_DECIMAL} GB/s")
_UNIT = r"([GT](?:B/s|b/s|bit/s|bps))"
_ADAPTERS = re.compile(
    rf"(\d{{1,9}})\s{{0,9}}x\s{{0,9}}(?:[EHNX]DR)?\s{{0,9}}{_DECIMAL}(?: ?{_UNIT})?"
)
_RATE = re.compile(rf"{_DECIMAL} ?{_UNIT}")
_GENERATION = re.compile(r"[EHNX]DR")


@cache
def find_gpu(name: str) -> Gpu:
    """Return the bundled GPU of a published name such as 'A100-80GB-SXM'.

    Raises:
        Unpriced: no bundled GPU has this name.
    """
    words = set(re.split(r"[\s_-]+", name.lower()))
    aliases = {"sxm2": "sxm", "sxm4": "sxm", "sxm5": "sxm", "pcie4": "pcie"}
    words = {aliases.get(word, word) for word in words}
    known = {entry: set(entry.split("-")) for entry in catalog.names("topologies/gpus")}
    close = [entry for entry, parts in known.items() if words <= parts]
    if not close:
        return _spelled(name)
    # The fewest further words, then the usual SXM board, then the larger memory.
    best = min(
        close,
        key=lambda entry: (
            len(known[entry] - words),
            "sxm" not in entry,
            -(spoken(entry).memory_gb or 0),
        ),
    )
    path = catalog.locate("topologies/gpus", best, Path())
    return Gpu.model_validate(read_yaml(path).data)


def _spelled(name: str) -> Gpu:
    """Return the GPU that a spec means by a name."""
    try:
        path = catalog.bundled("topologies/gpus", name)
    except SpecError:
        told = f"hardware.gpu: {name} is not in topologies/gpus"
        raise Unpriced(told) from None
    return Gpu.model_validate(read_yaml(path).data)


def find_cluster(
    hardware: RunHardware, assumed: Assumptions, is_on_host: bool = False
) -> Cluster:
    """Return the cluster of a run; what is not published is noted as assumed.

    `is_on_host` says whether some of a run lives on the hosts.

    Raises:
        Unpriced: the GPU or its network is unknown, or a rate is out of range.
    """
    gpu = _variant(find_gpu(hardware.gpu), hardware)
    node = find_node(gpu.name)
    inside = _inside(hardware, assumed)
    levels = [_level(node.link, inside, _link_gb_s(hardware, node), "per_gpu")]
    if hardware.n_gpus > inside:
        gbit_s, uplink = _network(hardware, node, inside, assumed)
        level = _level("network", hardware.n_gpus // inside, gbit_s / 8, uplink)
        levels.append({**level, "bus_share": _bus_share(hardware)})
    topology = {"name": hardware.gpu, "gpu": gpu, "levels": levels}
    if is_on_host:
        topology["host"] = _host(gpu, node, hardware, inside)
    return checked(Cluster, "cluster", {"topology": topology})


HOST_GIB = 2048
"""Memory of a host, of which a run that was made had enough."""


def _host(
    gpu: Gpu, node: Machine, hardware: RunHardware, gpus: int
) -> dict[str, object]:
    """Return the host of a run's GPUs; the GPUs of its machine share its bandwidth."""
    return {
        "gpus": gpus,
        "memory_gib": HOST_GIB,
        "pcie_gb_s": _pcie_gb_s(gpu, node, hardware),
        "memory_gb_s": hardware.host_gb_s or node.host_gb_s * gpus,
    }


def _pcie_gb_s(gpu: Gpu, node: Machine, hardware: RunHardware) -> float:
    """Return the rate between a GPU and its host, GB/s: lanes that are said count."""
    if node.link == "pcie" and _BOTH_WAYS.search(hardware.intra_node or ""):
        return PCIE_SHARE * _link_gb_s(hardware, node)
    return gpu.pcie_gb_s or node.gb_s


def _variant(usual: Gpu, hardware: RunHardware) -> Gpu:
    """Return a GPU with the memory and the power limit that a run says it had."""
    names = ("memory_gib", "memory_gb_s", "power_limit_w")
    said = hardware.model_dump(include={*names}, exclude_none=True)
    return checked(Gpu, "hardware", usual.model_dump() | said) if said else usual


def find_node(gpu: str) -> Machine:
    """Return the reference machine of a bundled GPU.

    Raises:
        Unpriced: no machine is known for the GPU.
    """
    for start, node in VOCABULARY.hardware.machines.items():
        if gpu == start or gpu.startswith(start + "-"):
            return node
    raise Unpriced(f"hardware.gpu: no node of {gpu} is known")


def _inside(hardware: RunHardware, assumed: Assumptions) -> int:
    """Return the GPUs that a run uses of each node, equally many.

    For instance 64 of the 72 GPUs of an NVL72 rack, for a run on 256 GPUs.
    """
    most = hardware.gpus_per_node or assumed.value("hardware.gpus_per_node", 8)
    inside = max(n for n in divisors(hardware.n_gpus) if n <= most)
    if inside < min(most, hardware.n_gpus):
        assumed.value("hardware.gpus_per_node (used)", inside)
    return inside


def _link_gb_s(hardware: RunHardware, node: Machine) -> float:
    """Return the rate of a GPU inside its node, GB/s per direction.

    Published rates sum both directions, as vendors quote them.
    """
    found = _BOTH_WAYS.search(hardware.intra_node or "")
    return float(found[1]) / 2 if found else node.gb_s


def _level(name: str, size: int, gb_s: float, uplink: str) -> dict[str, object]:
    return {
        "name": name,
        "size": size,
        "gb_s": gb_s,
        "latency_us": VOCABULARY.hardware.latency_us[name],
        "uplink": uplink,
    }


def _bus_share(hardware: RunHardware) -> float:
    """Return the share of its rate that the network reaches, by its name."""
    text = hardware.inter_node or ""
    shares = VOCABULARY.hardware.network_shares
    named = (share for word, share in shares.items() if word in text)
    return next(named, USUAL_BUS_SHARE)


def _network(
    hardware: RunHardware, node: Machine, per_node: int, assumed: Assumptions
) -> tuple[float, str]:
    """Return the rate of an uplink, Gbit/s, and whether each GPU has one.

    A rate is of one GPU where the text says "per GPU", else of all adapters of a node.
    """
    text = hardware.inter_node or ""
    if found := _ADAPTERS.search(text):
        adapters, gbit_s = int(found[1]), _gbit_s(*found.groups()[1:])
        per_gpu = adapters // per_node
        return (
            (per_gpu * gbit_s, "per_gpu") if per_gpu else (adapters * gbit_s, "shared")
        )
    is_per_gpu = "per GPU" in text
    if found := _RATE.search(text):
        return _gbit_s(*found.groups()), "per_gpu" if is_per_gpu else "shared"
    if found := _GENERATION.search(text):
        gbit_s = VOCABULARY.hardware.adapter_gbit_s[found[0]]
        return gbit_s if is_per_gpu else assumed.value(FIELD, gbit_s), "per_gpu"
    if node.network_gbit_s is None:
        raise Unpriced(f"{FIELD}: not published")
    return assumed.value(FIELD, node.network_gbit_s), "per_gpu"


def _gbit_s(number: str, unit: str | None) -> float:
    """Return a rate in Gbit/s, which it is in without a unit."""
    return float(number) * 8 * BANDWIDTH_UNITS[unit or "Gbit/s"]


VOCAB_SLACK = 0.03
"""Largest relative difference of vocabularies, which tensor parallelism pads."""

Fields = dict[str, Any]

_WIDTHS = ("d_model", "n_heads", "n_kv_heads", "head_dim", "gated_mlp")

_NOT_COPIED = ("name", "published_params")

_FILL = (
    "bloom-176b", "deepseek-v2", "deepseek-v2-lite", "deepseek-v3", "falcon-180b",
    "falcon-40b", "gemma2-27b", "glm-5.2", "gpt-1.3b", "gpt-neox-20b",
    "gpt-oss-120b", "gpt-oss-20b", "gpt2-xl", "gpt3-175b", "llama2-13b",
    "llama2-70b", "llama2-7b", "llama3-405b", "llama3-70b", "llama3-8b",
    "llama3.1-70b", "llama3.1-8b", "megatron-1t", "megatron-22b", "megatron-530b",
    "mistral-7b", "mixtral-8x22b", "mixtral-8x7b", "mpt-30b", "mt-nlg-530b",
    "nemotron-3-nano-30b-a3b", "nemotron-3-nano-4b", "nemotron-4-15b",
    "nemotron-4-340b", "opt-175b", "qwen2.5-72b", "qwen2.5-7b", "qwen3-0.6b",
    "qwen3-4b", "qwen3-14b", "qwen3-235b-a22b", "qwen3-30b-a3b", "qwen3-32b", "qwen3-8b"
)  # fmt: skip
"""Presets that fill the gaps of runs. Others were not tried on them: many small ones
have the widths of a benchmark's model that is no such model, as Pythia has GPT's."""


def model_of(run: Run, assumed: Assumptions) -> Model:
    """Return the model of a run; what is not published is noted as assumed.

    Raises:
        Unpriced: the shape is incomplete, or of no kind that is modelled.
    """
    published = _published(run.model)
    preset = _preset_of(published)
    if preset:
        assumed.value("model (from preset)", True)
    fields = {**_usual(run, preset, assumed), **preset, **published}
    if "moe" in published:
        fields["moe"] = {**_dict(preset.get("moe")), **_dict(published["moe"])}
    if run.model.pos_emb is None and fields.get("learned_positions"):
        fields["learned_positions"] = run.model.seq_len
    if "mla" in published:
        fields |= {"qk_norm": False, "bias": "none"}
        fields.pop("head_dim", None)
        fields.pop("n_kv_heads", None)
    if (run.model.arch_note or "").startswith("MLA") and "mla" not in fields:
        raise Unpriced("model.mla: not published")
    if (run.model.arch_note or "").startswith("sliding"):
        assumed.value("model.arch_note", "full attention")
    return checked(Model, "model", fields)


def with_named_shape(run: Run, assumed: Assumptions) -> Run:
    """Return a run whose model has what its name says of what is not published."""
    model = run.model
    if not any(getattr(model, name) is None for name in SHAPE):
        return run
    try:
        path = catalog.bundled("specs/models", model.name)
    except SpecError:
        return run
    if path.stem not in _FILL:
        return run
    preset = Model.model_validate(catalog.read(path).data)
    known: Fields = {
        "tied": preset.tied_embeddings,
        "seq_len": preset.learned_positions or None,
        **{name: getattr(preset, name) for name in _NAMED},
    }
    if preset.moe is not None and model.moe is None:
        moe = preset.moe
        known["moe"] = RunExperts(
            n_experts=moe.n_experts,
            top_k=moe.top_k,
            expert_d_ff=moe.d_ff,
            shared=moe.shared_d_ff // moe.d_ff,
            dense_layers=moe.first_dense_layers,
        )
    left = {name: known[name] for name in known if getattr(model, name) is None}
    assumed.value("model (by its name)", sorted(left))
    return run.model_copy(update={"model": model.model_copy(update=left)})


_NAMED = (
    "n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab",
    "gated_mlp",
)  # fmt: skip
"""Fields that a run's model and a preset have in common."""

_ASIDE = ("dropout", "mtp_layers")
"""Fields that say how a model was trained, which no preset has."""


def _published(model: RunModel) -> Fields:
    """Return the published fields of a model, under the names of `Model`."""
    fields = {name: getattr(model, name) for name in ("name", *_NAMED, *_ASIDE)}
    fields["tied_embeddings"] = model.tied
    fields["mla"] = model.mla.model_dump() if model.mla else None
    fields["moe"] = _experts(model)
    if model.d_ff is None and model.moe and not model.moe.dense_layers:
        fields["d_ff"] = model.moe.expert_d_ff  # unused: all layers have experts
    if model.pos_emb is not None:
        is_learned = model.pos_emb.startswith("learned")
        fields["learned_positions"] = model.seq_len if is_learned else 0
        fields["alibi"] = model.pos_emb.startswith("ALiBi")
    return {name: value for name, value in fields.items() if value is not None}


def _experts(model: RunModel) -> Fields | None:
    moe = model.moe
    if moe is None:
        return None
    factor = moe.capacity_factor
    capacity: Fields = {} if factor is None else {"capacity_factor": factor}
    return capacity | {
        "n_experts": moe.n_experts,
        "top_k": moe.top_k,
        "d_ff": moe.expert_d_ff,
        "shared_d_ff": moe.shared * moe.expert_d_ff,
        "first_dense_layers": moe.dense_layers,
    }


def _usual(run: Run, preset: Fields, assumed: Assumptions) -> Fields:
    """Return usual values for what neither the run nor a preset says."""
    model = run.model
    is_gated = model.gated_mlp
    if is_gated is None and not preset:
        is_gated = assumed.value("model.gated_mlp", False)
    if model.tied is None and not preset:
        assumed.value("model.tied", not is_gated)
    is_gpt = not is_gated and run.era < VOCABULARY.since.no_gpt
    if is_gpt and not preset and model.dropout is None:
        assumed.value("model.dropout", is_gpt)
    is_learned = is_gpt and model.pos_emb is None
    return {
        "gated_mlp": bool(is_gated),
        "norm": "rmsnorm" if is_gated else "layernorm",
        "bias": "none" if is_gated else "all",
        "tied_embeddings": not is_gated,
        "learned_positions": model.seq_len if is_learned else 0,
        "dropout": is_gpt,
    }


def _preset_of(published: Fields) -> Fields:
    """Return the fields of the preset with the same widths; empty without one.

    Depth may differ, since benchmarks run a few layers of a model.
    """
    alike = [p for p in _presets() if _is_like(p, published)]
    nearest = min(alike, key=lambda p: _vocab_gap(p, published), default={})
    return {name: value for name, value in nearest.items() if name not in _NOT_COPIED}


def _is_like(preset: Fields, published: Fields) -> bool:
    """Return whether a preset has the published widths and nearly the vocabulary."""
    widths = [name for name in _WIDTHS if name in published]
    ours, other = _dict(preset.get("moe")), _dict(published.get("moe"))
    return (
        all(preset[name] == published[name] for name in widths)
        and ("moe" in published or preset["d_ff"] == published.get("d_ff"))
        and all(ours.get(name) == other.get(name) for name in ("n_experts", "d_ff"))
        and _vocab_gap(preset, published) <= VOCAB_SLACK
    )


def _vocab_gap(preset: Fields, published: Fields) -> float:
    return abs(float(preset["vocab"] / published["vocab"]) - 1)


@cache
def _presets() -> tuple[Fields, ...]:
    """Return the bundled presets, sorted by name, with the defaults of their heads."""
    kind = "specs/models"
    paths = [catalog.locate(kind, name, Path()) for name in _FILL]
    models = [Model.model_validate(catalog.read(path).data) for path in paths]
    return tuple(model.model_dump(exclude_none=True) for model in models)


def _dict(value: object) -> Fields:
    return value if isinstance(value, dict) else {}
