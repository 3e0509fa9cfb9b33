"""Trains three steps of an exported DeepSpeed configuration on CPU; torchrun starts it.

The words are those of `launch.sh`. The model is a small Llama of transformers, cut into
stages where the plan has some; the rest is `deepspeed.initialize` with the file.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import deepspeed
import torch
from common import llama_config
from deepspeed.pipe import LayerSpec, PipelineModule
from transformers import LlamaForCausalLM

STEPS = 3


def main() -> None:
    """Train, and let each rank print what it holds."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--deepspeed_config")
    asked.add_argument("--deepspeed", action="store_true")
    words, _ = asked.parse_known_args()
    facts = json.loads(os.environ["FACTS"])
    with open(words.deepspeed_config) as file:
        config = json.load(file)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo suffices
    deepspeed.init_distributed("gloo")
    torch.manual_seed(1)
    model = _stages(facts) if facts["pp"] > 1 else _llama(facts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    config["zero_allow_untested_optimizer"] = True
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    losses = _pipeline(engine, facts) if facts["pp"] > 1 else _steps(engine, facts)
    print("RAN " + json.dumps(_report(engine, facts, losses)), flush=True)


def _llama(facts: dict[str, Any]) -> Any:
    return LlamaForCausalLM(llama_config(facts, attn_implementation="sdpa"))


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


def _tokens(facts: dict[str, Any]) -> Any:
    shape = facts["micro_batch"], facts["seq_len"] + 1
    return torch.randint(0, 16, shape)


def _steps(engine: Any, facts: dict[str, Any]) -> list[float]:
    losses = []
    for _ in range(STEPS * facts["microbatches"]):
        tokens = _tokens(facts)
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        losses.append(float(loss))
    return losses[:: facts["microbatches"]]


def _pipeline(engine: Any, facts: dict[str, Any]) -> list[float]:
    def batches() -> Any:
        while True:
            tokens = _tokens(facts)
            yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    source = batches()
    return [float(engine.train_batch(source)) for _ in range(STEPS)]


def _report(engine: Any, facts: dict[str, Any], losses: list[float]) -> dict[str, Any]:
    held = [*engine.module.parameters()]
    whole = [getattr(p, "ds_numel", p.numel()) for p in held]
    local = [getattr(p, "ds_tensor", p).numel() for p in held]
    grid = getattr(engine, "grid", None)
    return {
        "rank": torch.distributed.get_rank(),
        "backend": torch.distributed.get_backend(),
        "steps": engine.global_steps,
        "losses": losses,
        "whole_below": 3,
        "zero": engine.zero_optimization_stage(),
        "degrees": {
            "pp": grid.pipe_parallel_size if grid else 1,
            "dp": engine.dp_world_size,
        },
        "layers": _layers(engine, facts),
        "parameters": sum(whole),
        "local_parameters": sum(local),
    }


def _layers(engine: Any, facts: dict[str, Any]) -> int:
    if facts["pp"] == 1:
        return len(engine.module.model.layers)
    return sum(isinstance(own, _Layer) for own in engine.module.forward_funcs)


if __name__ == "__main__":
    main()
