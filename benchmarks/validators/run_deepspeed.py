"""Trains three steps of an exported DeepSpeed configuration on CPU; torchrun starts it.

The words are those of `launch.sh`, and the program is the exported `train.py` on a
small Llama. Pipelines have no such program: a few layers stand for the user's.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import deepspeed
import torch
from common import llama_config, run_program
from deepspeed.pipe import LayerSpec, PipelineModule
from transformers import AutoModelForCausalLM

STEPS = 3


def main() -> None:
    """Train, and let each rank print what it holds."""
    facts = json.loads(os.environ["FACTS"])
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo suffices
    if facts["pp"] > 1:
        engine, losses = _pipeline(facts)
    else:
        losses = _recorded()
        engine = run_program(facts)["engine"]
        losses = losses[:: facts["microbatches"]]
    print("RAN " + json.dumps(_report(engine, facts, losses)), flush=True)


def _recorded() -> list[float]:
    """Return the list that each micro-batch's loss will be added to, on every rank."""
    losses: list[float] = []
    backward = deepspeed.DeepSpeedEngine.backward

    def recorded(engine: Any, loss: Any, *given: Any, **named: Any) -> Any:
        losses.append(float(loss))
        return backward(engine, loss, *given, **named)

    deepspeed.DeepSpeedEngine.backward = recorded
    return losses


class _Layer(torch.nn.Module):
    """A layer of a stage: a matmul and its sum, as pipelines pass hidden states."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width, bias=False)

    def forward(self, hidden: Any) -> Any:
        return hidden + self.linear(hidden)


def _stages(facts: dict[str, Any]) -> Any:
    """Return as many layers as the plan has, cut as DeepSpeed cuts them."""
    layers = [
        LayerSpec(torch.nn.Embedding, facts["vocab"], facts["d_model"]),
        *(LayerSpec(_Layer, facts["d_model"]) for _ in range(facts["n_layers"])),
        LayerSpec(torch.nn.Linear, facts["d_model"], facts["vocab"], bias=False),
    ]
    return PipelineModule(
        layers,
        num_stages=facts["pp"],
        partition_method="type:_layer",
        loss_fn=lambda logits, targets: torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten()
        ),
    )


def _pipeline(facts: dict[str, Any]) -> tuple[Any, list[float]]:
    asked = deepspeed.add_config_arguments(argparse.ArgumentParser())
    words, _ = asked.parse_known_args()
    torch.manual_seed(1)
    deepspeed.init_distributed()
    model = _stages(facts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(words, model, optimizer)

    def batches() -> Any:
        while True:
            tokens = torch.randint(0, 16, (facts["micro_batch"], facts["seq_len"] + 1))
            yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    source = batches()
    return engine, [float(engine.train_batch(source)) for _ in range(STEPS)]


def _report(engine: Any, facts: dict[str, Any], losses: list[float]) -> dict[str, Any]:
    held = [*engine.module.parameters()]
    local = sum(getattr(p, "ds_tensor", p).numel() for p in held)
    experts = engine._config.expert_parallel_config
    degrees = {
        "pp": engine.grid.pipe_parallel_size if facts["pp"] > 1 else 1,
        "tp": max(engine.autotp_size(), 1),
        "cp": engine.sequence_parallel_size,
        "ep": experts.autoep_size if experts else 1,
        "dp": engine.seq_dp_world_size // engine.sequence_parallel_size,
    }
    return {
        "rank": torch.distributed.get_rank(),
        "backend": torch.distributed.get_backend(),
        "steps": engine.global_steps,
        "losses": losses,
        "whole_below": 3,
        "zero": engine.zero_optimization_stage(),
        "degrees": degrees,
        "layers": _layers(engine, facts),
        "parameters": local if facts["pp"] > 1 else _whole(facts),
        "local_parameters": local,
    }


def _whole(facts: dict[str, Any]) -> int:
    """Return the parameters of the model, no part of which is left out."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(llama_config(facts))
    return sum(p.numel() for p in model.parameters())


def _layers(engine: Any, facts: dict[str, Any]) -> int:
    if facts["pp"] == 1:
        return len(engine.module.model.layers)
    return sum(
        isinstance(forward_func, _Layer) for forward_func in engine.module.forward_funcs
    )


if __name__ == "__main__":
    main()
