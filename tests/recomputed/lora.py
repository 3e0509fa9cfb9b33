"""What LoRA adds to a layer: A and B beside the matrices that it names.

Hu et al. 2021, section 4.1. Over a tensor-parallel group B is split as the matrix's
output, A as its input (torchtitan 0.3.0, components/lora.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from tests.recomputed.case import Case


class Pair(NamedTuple):
    """A, of `rank` x `inputs`, and B, of `outputs` x `rank`."""

    rank: int
    inputs: int
    outputs: int
    split: Literal["tp", "kv", "whole"]
    """How B is split."""
    reads_parts: bool = False
    """Whether A is split, by its inputs."""
    own_tokens: bool = False
    """Whether a rank has tokens for itself."""
    in_mlp: bool = False

    def shapes(self, case: Case) -> tuple[float, float, float]:
        """Tokens, inputs and outputs on one rank."""
        parts = {"tp": case.plan.tp, "kv": case.kv_shards, "whole": 1}
        tokens = case.own_tokens if self.own_tokens else case.tokens
        inputs = self.inputs / (case.plan.tp if self.reads_parts else 1)
        return tokens, inputs, self.outputs / parts[self.split]


def named(case: Case) -> set[str]:
    """The matrices of a layer that have adapters."""
    lora = case.training.lora
    if lora is None:
        return set()
    every = {
        "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
        "mlp": ["gate_proj", "up_proj", "down_proj"],
    }
    return {name for target in lora.targets for name in every.get(target, [target])}


def pairs(case: Case, is_dense: bool) -> Iterator[Pair]:
    lora, model, names = case.training.lora, case.model, named(case)
    if lora is None:
        return
    r, d, mla = lora.rank, model.d_model, model.mla
    heads, kv_heads, head = model.n_heads, model.n_kv_heads, model.head_dim
    if mla is not None:
        if "q_proj" in names:
            if mla.q_rank:
                yield Pair(r, d, mla.q_rank, "whole", own_tokens=True)
            yield Pair(r, mla.q_rank or d, heads * (mla.nope_dim + mla.rope_dim), "tp")
        if "k_proj" in names or "v_proj" in names:
            down = mla.kv_rank + mla.rope_dim
            yield Pair(r, d, down, "whole", own_tokens=True)
            yield Pair(r, mla.kv_rank, heads * (mla.nope_dim + mla.v_dim), "tp")
    else:
        if "q_proj" in names:
            yield Pair(r, d, heads * head * (1 + model.output_gate), "tp")
        for name in ("k_proj", "v_proj"):
            if name in names and not (name == "v_proj" and model.keys_are_values):
                yield Pair(r, d, kv_heads * head, "kv")
    if "o_proj" in names:
        out = heads * (mla.v_dim if mla is not None else head)
        yield Pair(r, out, d, "whole", reads_parts=True)
    moe = model.moe
    inner = model.d_ff if is_dense or moe is None else moe.shared_d_ff
    if not inner:
        return
    for name in ("gate_proj", "up_proj") if model.gated_mlp else ("up_proj",):
        if name in names:
            yield Pair(r, d, inner, "tp", in_mlp=True)
    if "down_proj" in names:
        yield Pair(r, inner, d, "whole", reads_parts=True, in_mlp=True)


def in_16_bits(case: Case) -> float:
    """Bytes of the largest matrix, which bitsandbytes brings to 16 bits alone."""
    lora, model, tp = case.training.lora, case.model, case.plan.tp
    if lora is None or lora.weights == "bf16":
        return 0.0
    widths = [model.n_heads * model.head_dim / tp]
    if model.moe is not None:
        widths += [model.moe.shared_d_ff / tp, model.moe.d_ff]
    if model.moe is None or model.first_dense_layers:
        widths.append(model.d_ff / tp)
    return max(widths) * model.d_model * 2
