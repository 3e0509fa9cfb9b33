"""Random small specs: 2 to 16 GPUs, 2 to 12 layers, tight and loose memory.

Every spec leaves a few choices open and pins the rest, so that brute force can walk
all plans and splits; over many specs all choices meet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from meshwright.frameworks.base.framework import ALL_FUSED, ALL_OVERLAP
from meshwright.frameworks.base.registry import framework as framework_named
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import OFFLOADS
from meshwright.spec.run_before import DECISIONS, PlanOfMaker, RunBefore, text_of
from meshwright.spec.spec import Spec
from meshwright.spec.training import Lora

SHAPES = [
    [2], [3], [4], [5], [6], [8], [12],
    [2, 2], [2, 3], [3, 2], [4, 2], [2, 4], [3, 4], [4, 4], [6, 2], [2, 8],
    [2, 2, 2], [2, 2, 3], [2, 3, 2], [4, 2, 2],
]  # fmt: skip
"""Fan-outs of one, two and three levels; many are not powers of two."""

FRAMEWORKS = [
    "megatron",
    "deepspeed",
    "internevo",
    "torchtitan",
    "fsdp",
]

PRECISIONS = ["bf16", "fp8", "fp16", "fp32"]

PINNED: dict[str, list[Any]] = {
    "cp": [1, 1, [1, 2]],
    "ep": [1, 1, [1, 2], [1, 4]],
    "vpp": [1, 1, [1, 2]],
    "schedule": ["1f1b", ["1f1b", "gpipe"], ["1f1b", "zb-h1"]],
    "recompute": ["none", "full", ["none", "full"], ["none", "selective"]],
    "offload": ["none", [*OFFLOADS], [*OFFLOADS[1:]], ["none", OFFLOADS[3]]],
    "dp_replicate": [1, [1, 2], [1, 2, 3, 4]],
}
"""How choices that are not left open may be pinned."""

OFFLOADING = [name for name in FRAMEWORKS if framework_named(name).offloads]

PIPED: dict[str, Any] = {"pp": {"min": 2, "max": 3}}

RARE: list[tuple[Sequence[str], dict[str, Any]]] = [
    (["megatron", "torchtitan"], {"cp": {"min": 2}}),
    (["megatron", "torchtitan"], {**PIPED, "vpp": 2, "schedule": "1f1b"}),
    (["torchtitan"], {**PIPED, "schedule": ["gpipe", "zb-h1"]}),
    (
        ["torchtitan"],
        {**PIPED, "vpp": [1, 2], "schedule": ["zb-h1", "zb-v", "dualpipe-v"]},
    ),
    (OFFLOADING, {"offload": [*OFFLOADS[1:]]}),
]
"""Choices that rarely win by themselves, and the frameworks that have them."""


@st.composite
def specs(draw: st.DrawFn, most_layers: int = 12) -> Spec:
    """Return a random small spec."""
    return Spec.model_validate(draw(spec_data(most_layers)))


@st.composite
def known_runs(draw: st.DrawFn) -> RunBefore:
    """Draw combinations that were run, and a share that is doubted beyond them."""
    texts = []
    for _ in range(draw(st.integers(1, 4))):
        codes = (
            draw(st.integers(0, len(decision.words) - 1)) * draw(st.booleans())
            for decision in DECISIONS
        )
        texts.append(text_of(tuple(codes)))
    share = draw(st.sampled_from([0.01, 0.05, 0.15, 0.3]))
    counts = {text: draw(st.sampled_from([2, 10])) for text in texts}
    return RunBefore(combinations=counts, per_decision=share)


@st.composite
def published_plans(draw: st.DrawFn) -> PlanOfMaker:
    """Draw a plan that a maker may publish; some say little of it, some what is odd."""
    values = {
        "tp": (1, 2),
        "pp": (1, 2),
        "cp": (1, 2),
        "zero": (0, 1, 3),
        "micro_batch": (1, 2),
        "recompute": ("none", "full"),
    }
    plan = {
        name: draw(st.sampled_from(of_it))
        for name, of_it in values.items()
        if draw(st.booleans())
    }
    return PlanOfMaker(
        model="",
        params=1,
        gpu="",
        gpus=1,
        framework="generic",
        precision="bf16",
        seq_len=1,
        global_batch=1,
        plan=plan,
        source="drawn",
    )


@st.composite
def expert_specs(draw: st.DrawFn, most_layers: int = 12) -> Spec:
    """Return a random small spec with experts, whose degree is open.

    A third may split experts over the GPUs of tensor parallelism.
    """
    with_experts = spec_data(most_layers).filter(lambda data: "moe" in data["model"])
    data = draw(with_experts)
    data["pins"].pop("ep", None)
    if draw(st.integers(0, 2)) == 0:
        data["pins"]["etp"] = draw(st.sampled_from([{"min": 1}, {"min": 2}, 2]))
        data["framework"] = draw(st.sampled_from(["megatron", "ideal"]))
    return Spec.model_validate(data)


@st.composite
def spec_data(draw: st.DrawFn, most_layers: int = 12) -> dict[str, Any]:
    """Return the data of a random small spec."""
    layers = draw(st.integers(2, most_layers))
    usual: tuple[Sequence[str], dict[str, Any]] = (FRAMEWORKS, {})
    frameworks, forced = draw(st.sampled_from([usual] * len(RARE) + RARE))
    if "vpp" in forced:
        layers = 4
    model = draw(_models(layers))
    sizes = draw(st.sampled_from(SHAPES))
    gpus = math.prod(sizes)
    # Shards of the state, once to eleven times, and room for activations.
    wide = model["moe"]["n_experts"] * 2 + 6 if "moe" in model else 12
    state_gib = 18 * wide * layers * model["d_model"] ** 2 / 2**30 / gpus
    framework = draw(st.sampled_from(frameworks))
    has_host = "offload" in forced or draw(st.booleans())
    may_offload = has_host and bool(framework_named(framework).offloads)
    # With a host even a GPU that holds little of its state may do.
    least = draw(st.sampled_from([0.1, 0.3, 1.0])) if has_host else 1.0
    memory_gib = framework_named(framework).overhead_gib + 0.1
    memory_gib += state_gib * least * (1 + 10 ** draw(st.floats(-2.0, 1.0)))
    room = (-2.0, 0.0) if has_host else (-1.5, 0.7)
    memory_gib += 10 ** draw(st.floats(*room))
    topology = draw(_topologies(sizes, memory_gib))
    training = {
        "seq_len": draw(st.sampled_from([256, 960, 4_096, 8_192])),
        "global_batch": draw(st.sampled_from([gpus, 2 * gpus, 4, 6, 8, 12, 24, 30])),
        "attention": draw(st.sampled_from(["flash", "flash", "plain"])),
        "precision": draw(st.lists(st.sampled_from(PRECISIONS), min_size=1, max_size=2))
        if draw(st.booleans())
        else "bf16",
    }
    training |= draw(switches(framework, "moe" in model))
    training["expandable_segments"] = draw(st.booleans())
    if has_host:
        topology["host"] = draw(_hosts(sizes, state_gib))
        is_nvme = draw(st.booleans()) and "nvme_gib" in topology["host"]
        training["offload_to"] = "nvme" if is_nvme else "cpu"
    return {
        "model": model,
        "cluster": {"topology": topology},
        "framework": framework,
        "training": training,
        "limits": draw(_limits()),
        "pins": draw(_pins(layers, gpus, may_offload)) | forced,
    }


@st.composite
def switches(draw: st.DrawFn, framework: str, has_experts: bool) -> dict[str, Any]:
    """Return what a code base hides, fuses and starts; half of them their defaults.

    Tiny models wait for their host unless CUDA graphs replay their kernels.
    """
    graphs = st.sampled_from([None, True, "outside_experts"])
    found: dict[str, Any] = {"cuda_graphs": draw(graphs)}
    if draw(st.booleans()):
        said = st.sampled_from([None, False, True])
        found["overlap"] = {kind: draw(said) for kind in sorted(ALL_OVERLAP)}
        found["fused"] = sorted(draw(st.sets(st.sampled_from(sorted(ALL_FUSED)))))
        found["compile"] = draw(st.booleans())
        found["tuned"] = draw(st.sampled_from(["vendor", "user"]))
    if has_experts and framework == "megatron":
        found["expert_dispatch"] = draw(st.sampled_from(["alltoall", "deepep"]))
    return found


@st.composite
def _models(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    heads, kv_heads = draw(
        st.sampled_from([(8, 8), (12, 4), (6, 2), (16, 16), (12, 12)])
    )
    width = heads * draw(st.sampled_from([64, 128]))
    model: dict[str, Any] = {
        "n_layers": layers,
        "d_model": width,
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "d_ff": width * draw(st.sampled_from([2, 3, 4])),
        "vocab": draw(st.sampled_from([512, 8_000, 50_000])),
        "gated_mlp": draw(st.booleans()),
        "tied_embeddings": draw(st.booleans()),
        "learned_positions": draw(st.sampled_from([0, 8_192])),
        "dropout": draw(st.booleans()),
    }
    if draw(st.integers(0, 2)) == 0:
        model["moe"] = {
            "n_experts": draw(st.sampled_from([4, 8])),
            "top_k": 2,
            "d_ff": width // draw(st.sampled_from([1, 2])),
            "shared_d_ff": draw(st.sampled_from([0, width])),
            **draw(st.sampled_from([{}, {"route_groups": 4, "groups_per_token": 2}])),
            "first_dense_layers": draw(st.integers(0, min(2, layers - 1))),
        }
    return model


@st.composite
def _pins(draw: st.DrawFn, layers: int, gpus: int, may_offload: bool) -> dict[str, Any]:
    """Return pins of all but a few choices; the fewer GPUs, the more are open."""
    most = 3 if gpus <= 4 else 2 if gpus <= 8 else 1
    is_open = draw(st.sets(st.sampled_from(sorted(PINNED)), max_size=most))
    pins: dict[str, Any] = {
        axis: draw(st.sampled_from(values))
        for axis, values in PINNED.items()
        if axis not in is_open
    }
    if not may_offload:
        pins.pop("offload", None)
    if pins.get("recompute") in ("selective", "full") and draw(st.booleans()):
        pins["recompute_layers"] = "any"
    # Few stages where layers are many: the brute force walks every split.
    return {**pins, "pp": {"max": 3 if layers > 6 else 4}}


@st.composite
def _hosts(draw: st.DrawFn, sizes: list[int], shard_gib: float) -> dict[str, Any]:
    """Return a machine with room for the state of its GPUs, or not quite."""
    gpus = draw(st.sampled_from([sizes[0], math.prod(sizes)]))
    host = {
        "gpus": gpus,
        "memory_gib": gpus * shard_gib * 10 ** draw(st.floats(-0.5, 1.5)),
        "pcie_gb_s": draw(st.sampled_from([12.0, 25.0, 55.0, 400.0])),
        "memory_gb_s": draw(st.sampled_from([50.0, 400.0, 4_000.0])),
    }
    if draw(st.booleans()):
        host["nvme_gib"] = host["memory_gib"] * draw(st.sampled_from([0.5, 4.0]))
        host["nvme_gb_s"] = draw(st.sampled_from([3.0, 25.0]))
    return host


@st.composite
def _limits(draw: st.DrawFn) -> dict[str, float]:
    limits = {}
    if draw(st.integers(0, 5)) == 0:
        shares = st.sampled_from([0.05, 0.2, 0.5, 0.8])
        limits["max_link_utilisation"] = draw(shares)
    if draw(st.integers(0, 5)) == 0:
        limits["tp_min_link_gb_s"] = draw(st.sampled_from([20.0, 60.0, 200.0]))
    return limits


@st.composite
def _peaks(draw: st.DrawFn) -> dict[str, float]:
    """Return peaks; which precision is the fastest is open."""
    peak = draw(st.sampled_from([70.0, 312.0, 989.0]))
    factors = st.sampled_from([0.25, 0.5, 1.0, 2.0])
    return {name: peak * draw(factors) for name in PRECISIONS}


@st.composite
def _topologies(draw: st.DrawFn, sizes: list[int], memory_gib: float) -> dict[str, Any]:
    gb_s = draw(st.sampled_from([10.0, 31.5, 300.0, 900.0]))
    levels = []
    for index, size in enumerate(sizes):
        levels.append(
            {
                "name": f"level{index}",
                "size": size,
                "gb_s": gb_s,
                "latency_us": draw(st.sampled_from([0.5, 2.0, 10.0])),
                "uplink": draw(st.sampled_from(["per_gpu", "shared"])),
            }
        )
        gb_s = gb_s / draw(st.sampled_from([1.0, 2.0, 8.0]))
    gpu = {
        "memory_gib": memory_gib,
        "memory_gb_s": draw(st.sampled_from([900.0, 3_000.0])),
        "peak_tflops": draw(_peaks()),
    }
    return {"gpu": gpu, "levels": levels}


@st.composite
def finetuning_specs(draw: st.DrawFn, most_layers: int) -> Spec:
    """Return random specs with frozen weights, Muon, or a part of memory elsewhere.

    Or with layers that predict further tokens.
    """
    data = draw(spec_data(most_layers))
    training, host = data["training"], data["cluster"]["topology"].get("host")
    kinds = ["lora", "muon", "partition_activations", "mtp_layers", "reference_model"]
    on_host = ["offload_activations", "offload_fraction"] if host else []
    kind = draw(st.sampled_from([*kinds, *on_host]))
    names = {"lora": ["megatron", "fsdp", "deepspeed"], "muon": ["megatron"]}
    names["offload_fraction"] = ["megatron", "deepspeed"]
    names["reference_model"] = ["fsdp", "deepspeed"]
    both = ["generic", "ideal"]
    data["framework"] = draw(st.sampled_from([*both, *names.get(kind, ["megatron"])]))
    if data["framework"] in ("fsdp", "deepspeed"):
        training.pop("expert_dispatch", None)
    if kind == "lora":
        training["precision"] = draw(st.sampled_from(["bf16", "fp16"]))
        rank, targets = st.sampled_from([4, 64]), st.sampled_from(["attention", "mlp"])
        is_packed = data["framework"] != "megatron" and draw(st.booleans())
        training["lora"] = {
            "rank": draw(rank),
            "targets": "attention" if "moe" in data["model"] else draw(targets),
            "weights": draw(st.sampled_from(["nf4", "int8"])) if is_packed else "bf16",
        }
        if data["framework"] != "megatron":
            training["lora"]["ends"] = draw(st.sampled_from(["frozen", "mixed"]))
    elif kind == "muon":
        training["optimizer"] = "muon"
    elif kind == "mtp_layers":
        most = min(2, data["model"]["n_layers"])
        data["model"]["mtp_layers"] = draw(st.integers(1, most))
    elif kind == "reference_model":
        training["reference_model"] = draw(st.sampled_from(["bf16", "fp32"]))
    elif kind == "partition_activations":
        training["partition_activations"] = True
    elif kind == "offload_fraction":
        training["offload_fraction"] = draw(st.sampled_from([0.1, 0.5, 0.9]))
        training["offload_to"] = "cpu"
    else:
        layers = data["model"]["n_layers"]
        training["offload_activations"] = draw(st.integers(0, layers - 1))
    return Spec.model_validate(data)


@st.composite
def alternating_specs(draw: st.DrawFn, most_layers: int) -> Spec:
    """Return a small spec whose layers are of two or three kinds, in some pattern."""
    spec = draw(specs(most_layers))
    model = spec.model.model_dump(exclude_none=True)
    model.get("moe", {})["first_dense_layers"] = 0
    mixer = {
        "form": draw(st.sampled_from(["mamba2", "delta_net"])),
        "n_heads": 12, "head_dim": 32, "groups": 12, "state_dim": 16, "chunk": 32,
    }  # fmt: skip
    kinds: dict[str, dict[str, Any]] = {
        "wide": {}, "narrow": {"d_ff": model["d_ff"] // 2, "attention_window": 64},
        "state": {"mixer": "state_space"},
    }  # fmt: skip
    size = draw(st.integers(2, 4))
    pattern = draw(st.lists(st.sampled_from([*kinds]), min_size=size, max_size=size))[
        : model["n_layers"]
    ]
    used = {name: kinds[name] for name in pattern}
    state = {"state_space": mixer} if "state" in used else {}
    fields = {**model, "kinds": used, "pattern": pattern, **state}
    spec = spec.model_copy(update={"model": Model.model_validate(fields)})
    is_16_bit = {*spec.training.precisions} <= {"bf16", "fp16"}
    if is_16_bit and draw(st.booleans()):
        return spec.having("training", lora=Lora(rank=8))
    if spec.framework in ("generic", "ideal", "megatron"):
        return spec.having("model", mtp_layers=draw(st.integers(0, 1)))
    return spec
