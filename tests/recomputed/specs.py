"""Random small specs with everything that a plan's price depends on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

from meshwright.spec.model import Model
from meshwright.spec.spec import Spec
from meshwright.spec.training import Training

SHAPES = ([2], [4], [6], [8], [2, 2], [3, 2], [4, 2], [2, 2, 2], [4, 4], [2, 2, 3])
"""GPUs below every switch, innermost level first."""

FUSED = ("norm", "residual", "rope", "activation", "softmax", "loss", "dropout")

OVERLAP = ("gradients", "parameters", "tp", "ep", "pp")

PINS = {"pp": {"max": 4}, "recompute_layers": "any"}


def random_spec(
    random: Random,
    frameworks: Sequence[str],
    has_host: bool,
    has_lora: bool = False,
    has_muon: bool = False,
    offloads_activations: bool = False,
    splits_activations: bool = False,
    has_fraction: bool = False,
    splits_experts: bool = False,
) -> Spec:
    """Return a spec that leaves nearly all choices of a plan open."""
    framework, sizes = random.choice(frameworks), random.choice(SHAPES)
    # Only DeepSpeed offloads to drives.
    has_drives = framework == "deepspeed" and has_host and random.random() < 0.4
    has_drives = has_drives and not has_fraction
    topology = _topology(random, sizes)
    if has_host:
        topology["host"] = _host(random, has_drives)
    training = _training(random, math.prod(sizes))
    is_low = {*training["precision"]} <= {"bf16", "fp8"}
    if framework in ("fsdp", "torchtitan", "generic") and is_low:
        training["master_weights"] = random.choice(["fp32", "fp32", "none"])
    if framework in ("fsdp", "generic", "ideal"):
        training["gradient_sync"] = random.choice(["each", "last"])
    training["compile"] = training["reentrant"] = False
    if framework in ("fsdp", "torchtitan"):
        training["compile"] = random.random() < 0.5
        training["reentrant"] = random.random() < 0.3
    if training["optimizer"] == "adamw" and framework != "deepspeed":
        training["foreach"] = random.random() < 0.3
    is_pure = training.get("master_weights") == "none"
    if framework == "generic" and is_pure and "fp8" in training["precision"]:
        training["fp8_weights"] = random.choice(["copies", "primary"])
    if framework in ("megatron", "generic", "ideal") and not is_pure:
        training |= _small_state(random, training)
        training["expert_dispatch"] = random.choice(["alltoall", "deepep", "deepep"])
    if framework == "torchtitan":
        training["expert_dispatch"] = random.choice(["alltoall", "deepep"])
    if framework == "megatron":
        exchanges = [None, "ring", "gather", "ulysses"]
        training["context_exchange"] = random.choice(exchanges)
    training["expert_imbalance"] = random.choice([None, None, 1, 1.5])
    training["loss_chunks"] = random.choice([None, None, 1, 4])
    training["loss_parallel"] = random.choice([None, None, True, False])
    training["loss_bytes"] = random.choice([None, None, None, 0, 6.5])
    training["offload_to"] = "nvme" if has_drives else "cpu"
    model = _model(random)
    if splits_activations:
        training["partition_activations"] = True
    if framework in ("generic", "ideal", "megatron") and random.random() < 0.2:
        training["fp8_activation_inputs"] = True
    if offloads_activations:
        training["offload_activations"] = random.randint(1, model["n_layers"] - 1)
    training["holds_gradients"] = framework == "fsdp" and random.random() < 0.3
    if has_fraction:
        training["offload_fraction"] = random.choice([0.1, 0.25, 0.5, 0.75, 0.9])
    if has_muon:
        for name in ("moments", "master_weights"):
            training.pop(name, None)
        training["optimizer"] = "muon"
    if has_lora:
        training |= _lora(random, framework, training, model)
    training["expandable_segments"] = random.random() < 0.5
    if framework in ("generic", "ideal", "megatron") and not has_lora:
        model["mtp_layers"] = random.choice([0, 0, 1, 2])
    if framework not in ("megatron", "torchtitan") and not model.get("mtp_layers"):
        training["reference_model"] = random.choice(["none", "none", "bf16", "fp32"])
    if not has_lora and model["n_layers"] % 3 == 0:
        training["mlp_chunks"] = 4
    return Spec.model_validate(
        {
            "model": model,
            "cluster": {"topology": topology},
            "framework": framework,
            "training": training,
            "pins": {**PINS, "etp": {"min": 1}} if splits_experts else PINS,
        }
    )


def packed(random: Random, training: Training) -> Training:
    """Return the same with sequences of several texts, in loops or without."""
    fields = {
        "document_tokens": random.choice([60, 200, 2_000]),
        "text_loops": random.random() < 0.8,
        "context_exchange": random.choice([training.context_exchange, "ulysses"]),
        "fused": random.choice([None, random.sample(FUSED, k=2)]),
    }
    return training.model_copy(update=fields)


def picking(random: Random, spec: Spec) -> Spec:
    """Return the same with an indexer that picks tokens for latent attention."""
    fields = {
        "indexer_loss": random.choice(["picked", "picked", "all", "none"]),
        "document_tokens": random.choice([None, None, 200, 2_000]),
    }
    training = spec.training.model_copy(update=fields)
    latent = {**_latent(random, spec.model.n_heads), "qk_norm": False}
    sizes = {"n_heads": random.choice([2, 32, 64]), "head_dim": 64}
    latent["mla"] |= {"q_rank": 96, "indexer": {**sizes, "top_k": 300}}
    shape = spec.model.model_dump(exclude={"head_dim", "details"}) | latent
    model = Model.model_validate({k: v for k, v in shape.items() if v is not None})
    return spec.model_copy(update={"model": model, "training": training})


def _model(random: Random) -> dict[str, Any]:
    heads, kv_heads = random.choice([(8, 8), (8, 2), (12, 4), (12, 12), (6, 3)])
    width = heads * random.choice([64, 96])
    parallel = random.random() < 0.2
    model: dict[str, Any] = {
        "n_layers": random.choice([4, 6, 8, 12]),
        "d_model": width,
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "d_ff": width * random.choice([2, 3, 4]),
        "vocab": random.choice([512, 8_000, 50_003]),
        "gated_mlp": random.random() < 0.5,
        "norm": random.choice(["layernorm", "rmsnorm"]),
        "parallel_residual": parallel,
        "norms_per_layer": random.choice([1, 2] if parallel else [2, 2, 4]),
        "embedding_norm": random.random() < 0.2,
        "tied_embeddings": random.random() < 0.5,
        "dropout": random.random() < 0.3,
        **random.choice([{}, {"learned_positions": 8_192}, {"alibi": True}]),
    }
    model |= _latent(random, heads) if random.random() < 0.3 else _heads(random)
    if random.random() < 0.5:
        model["moe"] = _experts(random, width)
    return model


def _heads(random: Random) -> dict[str, Any]:
    odd = {"head_dim": random.choice([36, 80])} if random.random() < 0.2 else {}
    bias = random.choice(["none", "qkv", "all"])
    return {"bias": bias, "qk_norm": random.random() < 0.3, **odd}


def _latent(random: Random, heads: int) -> dict[str, Any]:
    mla = {
        "q_rank": random.choice([0, 96]),
        "kv_rank": random.choice([64, 128]),
        "rope_dim": random.choice([16, 32]),
        "nope_dim": random.choice([32, 64]),
        "v_dim": random.choice([48, 64]),
    }
    return {"n_kv_heads": heads, "bias": "none", "mla": mla}


def _experts(random: Random, width: int) -> dict[str, Any]:
    return {
        "n_experts": 8,
        "top_k": random.choice([1, 2]),
        "route_groups": random.choice([4, 8]),
        "groups_per_token": random.choice([2, 3]),
        "d_ff": width // random.choice([1, 2]),
        "shared_d_ff": random.choice([0, width]),
        "first_dense_layers": random.choice([0, 0, 1, 2]),
        "router_bias": random.random() < 0.3,
        "capacity_factor": random.choice([None, 1.25, 4.0]),
        "activation_limit": random.choice([None, None, 7.0]),
    }


def _training(random: Random, gpus: int) -> dict[str, Any]:
    optimizers = ["adamw", "adamw", "adamw-8bit", "sgd", "adafactor"]
    precisions = ["bf16", "fp8", "fp16", "tf32", "fp32"]
    return {
        "seq_len": random.choice([480, 960, 4_096]),
        "global_batch": random.choice([gpus, 2 * gpus, 12, 24]),
        "precision": random.sample(precisions, k=random.choice([1, 2])),
        "attention": random.choice(["flash", "flash2", "triton", "cudnn", "plain"]),
        "gradients": random.choice([None, "bf16", "fp32"]),
        "optimizer": random.choice(optimizers),
        "compile": random.random() < 0.3,
        "cuda_graphs": random.choice([None, True, False, "outside_experts"]),
        "overlap": {kind: random.choice([None, False, True]) for kind in OVERLAP},
        "fused": random.choice(
            [None, None, random.sample(FUSED, k=random.randint(0, 7))]
        ),
    }


def _small_state(random: Random, training: dict[str, Any]) -> dict[str, Any]:
    """Fields by which state takes fewer bytes, as far as they go with the others."""
    fields: dict[str, Any] = {}
    is_adam, precisions = training["optimizer"] == "adamw", {*training["precision"]}
    if is_adam and random.random() < 0.5:
        fields["moments"] = "bf16"
    if is_adam and precisions <= {"bf16", "fp8"} and random.random() < 0.5:
        fields["master_weights"] = "remainders"
    elif "fp8" in precisions and random.random() < 0.5:
        fields["fp8_weights"] = "primary"
    return fields


def _lora(
    random: Random, framework: str, training: dict[str, Any], model: dict[str, Any]
) -> dict[str, Any]:
    """Adapters, and precisions beside which weights may be frozen."""
    kept = [one for one in training["precision"] if one in ("bf16", "fp16", "fp8")]
    kept = kept or ["bf16"]
    is_plain = framework == "megatron" or "fp8" in kept
    formats = ["bf16"] if is_plain else ["nf4", "int8", "gptq"]
    gate = ["gate_proj"] if model["gated_mlp"] else []
    moe = model.get("moe")
    has_mlp = moe is None or moe["shared_d_ff"] or moe["first_dense_layers"]
    mlp = ["mlp", "up_proj", "down_proj", *gate] if has_mlp else []
    names = ["attention", "q_proj", "k_proj", "v_proj", "o_proj", *mlp]
    lora = {
        "keeps_results": random.random() < 0.3,
        "upcast": random.random() < 0.3,
        "adapters": random.choice(["bf16", "fp32", "autocast", "fused"]),
        "keeps_inputs": random.random() < 0.3,
        "frozen_gradients": random.random() < 0.3,
        "dropout": random.random() < 0.3,
        "rank": random.choice([4, 16, 64]),
        "targets": random.sample(names, k=random.choice([1, 2, 4])),
        "weights": random.choice(["bf16", *formats]),
    }
    lora["keeps_graph"] = lora["rank"] == 16
    if framework != "megatron" and training["seq_len"] < 4_096:
        is_alone = training["seq_len"] == 480 and framework != "deepspeed"
        lora["ends"] = "bf16" if is_alone else "mixed"
    return {"precision": kept, "lora": lora}


def _topology(random: Random, sizes: list[int]) -> dict[str, Any]:
    peak, gb_s = random.choice([312.0, 650.0, 989.0]), random.choice([31.5, 300.0])
    shares = {"fp8": 2.0, "bf16": 1.0, "fp16": 1.0, "tf32": 0.5, "fp32": 0.25}
    levels = []
    for index, size in enumerate(sizes):
        level = {"name": f"level{index}", "size": size, "gb_s": gb_s}
        level["latency_us"] = random.choice([0.5, 2.0, 10.0])
        level["uplink"] = random.choice(["per_gpu", "shared"])
        levels.append(level)
        gb_s /= random.choice([1.0, 2.0, 8.0])
    gpu = {
        "memory_gib": 80.0,
        "memory_gb_s": random.choice([900.0, 3_000.0]),
        "peak_tflops": {name: peak * share for name, share in shares.items()},
        "matmul_share": 0.75,
        "matmul_share_fp8": 0.65,
    }
    if gpu["memory_gb_s"] == 900.0:
        gpu |= {"tdp_w": 700.0, "power_limit_w": 500.0, "shared_memory_kib": 100}
        gpu |= {"grouped_matmul_share": 0.3}
    return {"gpu": gpu, "levels": levels}


def _host(random: Random, has_drives: bool) -> dict[str, Any]:
    drives = {"nvme_gib": 9_000.0, "nvme_gb_s": random.choice([5.0, 900.0])}
    return {
        "memory_gib": 1_000.0,
        "pcie_gb_s": random.choice([12.0, 55.0]),
        "memory_gb_s": random.choice([50.0, 4_000.0]),
        **(drives if has_drives else {}),
    }
