"""Transformer layers out of PyTorch operations, and the bytes they save.

Fake tensors have shapes and storages but no numbers, so that a layer of any size is
run in milliseconds. The layers are written from the papers, not from the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from meshwright.spec.model import Model
from meshwright.spec.model_parts import Experts, LatentAttention
from meshwright.spec.spec import Spec
from meshwright.spec.training import Lora

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def saved_bytes_per_token(
    spec: Spec, fused: str, selective: bool = False, batch: int = 1
) -> float:
    """Return what a layer's forward saves: every storage once, no parameters."""
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    training = spec.training
    with FakeTensorMode():
        flash, dtype = training.attention == "flash", DTYPES[training.precision]
        layer = Layer(spec.model, flash, fused, selective, dtype, training.lora)
        shape = (batch, training.seq_len, spec.model.d_model)
        hidden = torch.empty(shape, dtype=layer.dtype, requires_grad=True)
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            result = layer.forward(hidden)
        storages = {key(tensor): tensor.untyped_storage() for tensor in saved}
        left_out = {key(tensor) for tensor in layer.weights + layer.discarded}
        sizes = (s.nbytes() for k, s in storages.items() if k not in left_out)
        total: int = sum(sizes)
    assert result.shape == shape
    return total / (batch * training.seq_len)


def key(tensor: Tensor) -> int:
    """Return what tells the storage of a tensor from others that live."""
    address: int = tensor.untyped_storage()._cdata
    return address


class FusedGate(torch.autograd.Function):
    """SwiGLU as one kernel: its backward starts from what the forward read."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(gate, value)
        return F.silu(gate) * value


@dataclass
class Layer:
    """A layer of a model; `fused` is a word of `tests.helpers.fused`."""

    model: Model
    flash: bool
    fused: str
    selective: bool
    dtype: torch.dtype
    lora: Lora | None = None
    weights: list[Tensor] = field(default_factory=list)
    discarded: list[Tensor] = field(default_factory=list)
    """Results that are dropped after their use, and recomputed."""

    def weight(self, *shape: int) -> Tensor:
        """Return a new parameter, or a constant that all layers share."""
        is_trained = self.lora is None
        new = torch.empty(shape, dtype=self.dtype, requires_grad=is_trained)
        self.weights.append(new)
        return new

    def adapted(self, x: Tensor, result: Tensor, name: str) -> Tensor:
        """Return the result of a matrix, and of an adapter beside it if it has one."""
        if self.lora is None or name not in self.lora.projections:
            return result
        a = self.weight(self.lora.rank, x.shape[-1]).requires_grad_()
        b = self.weight(result.shape[-1], self.lora.rank).requires_grad_()
        return result + F.linear(F.linear(x, a), b) * 2.0

    def constant(self, *shape: int) -> Tensor:
        """Return a new constant, such as cosines, that all layers share."""
        return self.weight(*shape).requires_grad_(False)

    def linear(self, x: Tensor, width: int, name: str = "") -> Tensor:
        """Return x times a new matrix, by the name that it has for adapters."""
        bias = self.weight(width) if self.model.bias == "all" else None
        result = F.linear(x, self.weight(width, x.shape[-1]), bias)
        return self.adapted(x, result, name)

    def cheaply(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Return the function's result, recomputed if selective and attention flash.

        Megatron-LM's checkpoint that discards its output: inputs are left.
        """
        if not (self.selective and self.flash):
            return function(*inputs)
        self.discarded.append(self.again(function, *inputs))
        return self.discarded[-1]

    def again(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Return the function's result; its inputs are saved, and no more."""
        result: Tensor = checkpoint(
            function, *inputs, use_reentrant=True, preserve_rng_state=False
        )
        return result

    def norm(self, x: Tensor) -> Tensor:
        """Return x normalised over its last axis.

        On CPUs rms_norm is a composition of operations. The fused one exists on GPUs
        alone; layer_norm stands in for it: an input, and statistics per token.
        """
        width, weight = (x.shape[-1],), self.weight(x.shape[-1])
        if self.model.norm == "rmsnorm" and self.fused == "none":
            return F.rms_norm(x, width, weight, 1e-5)
        bias = self.weight(*width) if self.model.norm == "layernorm" else None
        return F.layer_norm(x, width, weight, bias)

    def rotate(self, x: Tensor) -> Tensor:
        """Return (batch, tokens, heads, width) rotated by position (Su et al. 2021)."""
        if self.model.learned_positions:
            return x
        cos, sin = self.constant(*x.shape[1::2]), self.constant(*x.shape[1::2])
        left, right = x.chunk(2, dim=-1)
        turned = torch.cat((-right, left), dim=-1)
        return x * cos[:, None] + turned * sin[:, None]

    def drop(self, x: Tensor) -> Tensor:
        """Return x after dropout, as GPUs do it: with a mask of bytes."""
        if not self.model.dropout:
            return x
        return torch.native_dropout(x, 0.1, True)[0]

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layer adds up to."""
        model, four = self.model, self.model.norms_per_layer == 4
        attend = self.latent_attention if model.mla else self.attention
        normed = self.cheaply(self.norm, x)
        attention = self.drop(attend(normed))
        if model.parallel_residual:
            found = model.norms_per_layer == 2
            normed = self.cheaply(self.norm, x) if found else normed
            return x + attention + self.drop(self.mlp(normed, model.d_ff))
        x = x + (self.norm(attention) if four else attention)
        normed = self.cheaply(self.norm, x)
        mlp = self.experts(normed) if model.moe else self.mlp(normed, model.d_ff)
        return x + (self.norm(self.drop(mlp)) if four else self.drop(mlp))

    def attention(self, x: Tensor) -> Tensor:
        """Return grouped-query attention."""
        model, heads = self.model, (*x.shape[:2], -1, self.model.head_dim)
        q = self.linear(x, model.n_heads * model.head_dim, "q_proj").view(heads)
        k = self.linear(x, model.n_kv_heads * model.head_dim, "k_proj").view(heads)
        v = self.linear(x, model.n_kv_heads * model.head_dim, "v_proj").view(heads)
        if model.qk_norm:
            q, k = self.norm(q), self.norm(k)
        return self.core(self.rotate(q), self.rotate(k), v)

    def latent_attention(self, x: Tensor) -> Tensor:
        """Return multi-head latent attention (DeepSeek-V2, section 2.1)."""
        mla, n_heads = self.mla, self.model.n_heads
        heads, head_dim = (*x.shape[:2], n_heads, -1), mla.nope_dim + mla.rope_dim
        latent = x
        if mla.q_rank:
            latent = self.norm(self.linear(x, mla.q_rank, "q_proj"))
        q = self.linear(latent, n_heads * head_dim, "q_proj").view(heads)
        q_nope, q_rope = q.split((mla.nope_dim, mla.rope_dim), dim=-1)
        q = torch.cat((q_nope, self.rotate(q_rope)), dim=-1)
        down = self.linear(x, mla.kv_rank + mla.rope_dim, "k_proj")
        latent, k_rope = down.split((mla.kv_rank, mla.rope_dim), dim=-1)
        k_rope = self.rotate(k_rope[:, :, None]).expand(-1, -1, n_heads, -1)
        widths = n_heads * (mla.nope_dim + mla.v_dim)
        up = self.linear(self.norm(latent), widths, "k_proj")
        k_nope, v = up.view(heads).split((mla.nope_dim, mla.v_dim), dim=-1)
        k = torch.cat((k_nope, k_rope), dim=-1)
        return self.core(q, k, v.contiguous() if self.fused == "all" else v)

    @property
    def mla(self) -> LatentAttention:
        """Return the widths of latent attention."""
        assert self.model.mla
        return self.model.mla

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return causal attention of (batch, tokens, heads, width), and its output."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if self.flash:
            attended = self.flash_core(q, k, v)
        elif self.selective:
            attended = self.again(self.plain, q, k, v)
        else:
            attended = self.plain(q, k, v)
        flat = attended.transpose(1, 2).flatten(2)
        return self.linear(flat, self.model.d_model, "o_proj")

    def flash_core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return what the kernels of scaled_dot_product_attention on GPUs return."""
        dropout = 0.1 if self.model.dropout else 0.0
        if q.shape[-1] == v.shape[-1]:
            flash = torch.ops.aten._scaled_dot_product_flash_attention
            results = flash(q, k, v, dropout, True)
        else:
            cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention
            results = cudnn(q, k, v, None, True, dropout, True)
        attended: Tensor = results[0]
        return attended

    def plain(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return attention with all scores in memory."""
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
        mask = self.constant(q.shape[2], q.shape[2])
        scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + mask
        return self.drop(torch.softmax(scores, dim=-1)) @ v

    def mlp(self, x: Tensor, width: int) -> Tensor:
        """Return a dense MLP, GELU or SwiGLU."""
        names = ("gate_proj", "up_proj") if self.model.gated_mlp else ("up_proj",)
        inner = [self.linear(x, width, name) for name in names]
        active = self.cheaply(self.activation, *inner)
        return self.linear(active, self.model.d_model, "down_proj")

    def activation(self, gate: Tensor, value: Tensor | None = None) -> Tensor:
        """Return GELU, or with a value SwiGLU (Shazeer 2020)."""
        if value is None:
            return F.gelu(gate)
        if self.fused == "all":
            result: Tensor = FusedGate.apply(gate, value)
            return result
        return F.silu(gate) * value

    def experts(self, x: Tensor) -> Tensor:
        """Return routed and shared experts; every expert gets its even share."""
        moe, flat = self.moe, x.flatten(0, 1)
        scores = torch.softmax(self.linear(flat, moe.n_experts).float(), dim=-1)
        weights, chosen = torch.topk(scores, moe.top_k, dim=-1)
        order = torch.argsort(chosen.flatten())
        routed = flat[order // moe.top_k]
        batches = self.padded(routed).view(moe.n_experts, -1, flat.shape[-1])
        results = self.expert_mlp(batches, weights.flatten()[order]).flatten(0, 1)
        rows = (order // moe.top_k)[:, None].expand_as(routed)
        total = torch.zeros_like(flat).scatter_add(0, rows, results[: len(order)])
        if moe.shared_d_ff:
            total = total + self.mlp(flat, moe.shared_d_ff)
        return total.view_as(x)

    @property
    def moe(self) -> Experts:
        """Return the sizes of the experts."""
        assert self.model.moe
        return self.model.moe

    def padded(self, x: Tensor) -> Tensor:
        """Return rows padded to the capacity of the experts."""
        capacity = round(len(x) * (self.moe.capacity_factor or 1))
        return F.pad(x, (0, 0, 0, capacity - len(x))) if capacity > len(x) else x

    def expert_mlp(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return (experts, rows, width) through each expert's SwiGLU, weighted.

        Before the last matmul where the activation is a kernel that does it, after it
        and in fp32 where not.
        """
        experts, rows, width = x.shape
        weights = self.padded(weights[:, None]).view(experts, rows, 1)
        shape = (experts, width, self.moe.d_ff)
        down = self.weight(experts, self.moe.d_ff, width)
        inner = x @ self.weight(*shape), x @ self.weight(*shape)
        result = self.cheaply(self.activation, *inner) @ down
        return result if self.fused == "all" else (result.float() * weights).to(x.dtype)
