"""Tensors that a norm, an MLP or attention saves for its backward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from meshwright.cost.parameters_and_flops import (
    kv_width,
    latent_down_width,
    query_width,
)
from meshwright.plans.skeletons import (
    CHEAP,
    CORE_ATTN,
    LAYERNORM,
    MLA_UP_PROJ,
    PER_OP,
)
from meshwright.spec.model import Model
from meshwright.spec.model_parts import Indexer, LatentAttention
from meshwright.spec.training import Fused

Split = Literal[
    "tensor",
    "kv",
    "keys",
    "gathered",
    "all keys",
    "sequence",
    "whole",
    "scattered",
    "arrived",
    "returned",
    "routed",
    "routed inner",
    "swapped",
]
"""Over which GPUs a tensor is split: the tensor-parallel group, as many of its GPUs as
there are key and value heads, the same for keys and values that context parallelism may
have gathered, and for what is there only where it has, none but those of a sequence
where it has not, the group only under sequence parallelism, or none. `scattered` ones
are split as `sequence`, and are there only with a tensor-parallel group that scatters
them; `arrived` and `returned` ones only with an expert-parallel group, which sends
copies of tokens to experts and their results back. `swapped` ones are split over the
tensor-parallel group, and are there only where context parallelism swaps tokens for
heads. `routed` ones are split as `sequence`, but the fullest GPU of an expert-parallel
group has more of them."""


@dataclass(frozen=True)
class Saved:
    """One saved tensor, or several of one kind."""

    name: str
    bytes_per_token: float
    split: Split
    freed_by: int = PER_OP
    """Bits of which any one frees it, if a recomputed layer repeats that."""
    kept_per_token: float = 0.0
    """Bytes that stay where it is freed."""


@dataclass(frozen=True)
class Layer:
    """The implementation of a layer, which decides what it saves."""

    model: Model
    element: int
    cast: int
    """Bytes per number of the copy that a matmul casts and saves; 0 without a copy."""
    seq_len: int
    flash: bool
    fused: Fused
    joins_norms: bool
    """Whether norms run with the matmul after them."""
    adapted: frozenset[str] | None = None
    """The matrices that have adapters, while all else is frozen; None without LoRA."""
    kept_inputs: int = 0
    """How often inputs of matmuls with frozen matrices are there all the same."""
    drops_inputs: bool = False
    """Whether adapters read copies of which dropout has left a part."""
    fp8_inputs: bool = False
    """Whether activations of MLPs save what they read in 8 bits."""
    limited: int = 0
    """Numbers that limiting what experts activate saves, for each of them."""
    weighted_results: int = 0
    """Bytes of a number of what experts return, saved where it is weighted apart."""
    holds_heads: bool = False
    """Whether recomputation by operations holds queries, keys and values."""
    mlp_chunks: int = 1
    """Parts of the sequence that a dense MLP takes one after another."""

    @property
    def norms_in_fp32(self) -> bool:
        """Return whether norms are plain PyTorch operations; layer norm never is."""
        return "norm" not in self.fused and self.model.norm == "rmsnorm"

    def matmul_input(self, *matrices: str) -> int:
        """Return the bytes of a number that only matmuls with these matrices save.

        It is for the gradients of weights: of a frozen matrix nothing is saved, and an
        adapter beside it saves the input as it is, or with dropout a copy of it
        (`cost.weights.saved_by`). bitsandbytes saved it for frozen
        ones in 4 bits, too (0.42.0 autograd/_functions.py: `MatMul4Bit`, until 9e75374
        of July 2024), as attributes of the graph, which a backward does not free: a
        loop that holds logits holds them while the next micro-batch runs.
        """
        if self.adapted is None:
            return self.cast or self.element
        is_read = self.adapted.intersection(matrices) and not self.drops_inputs
        return self.element * max(self.kept_inputs, bool(is_read))

    def saved(self, name: str, width: float, split: Split, freed_by: int = 0) -> Saved:
        """Return a tensor of the compute precision."""
        return Saved(name, self.element * width, split, freed_by | PER_OP)

    def held(self, name: str, width: float, split: Split, freed_by: int = 0) -> Saved:
        """Return a tensor that attention reads, which its kernel may hold."""
        bits = freed_by | PER_OP * (not self.holds_heads)
        return Saved(name, self.element * width, split, bits)

    def cheap(self, name: str, size: float, split: Split, freed_by: int = 0) -> Saved:
        """Return a result of a norm or activation, recomputed after flash attention."""
        return Saved(name, size, split, freed_by | PER_OP | CHEAP * self.flash)

    def input_norms(
        self, name: str, width: int, norms: int, inputs: int, split: Split
    ) -> list[Saved]:
        """Return the tensors that norms before a matmul save.

        Norms as plain PyTorch operations are separate kernels. Recomputation of
        them starts from their inputs in the compute precision.
        """
        tensors = self.norms(name, width, norms, inputs, split)
        if not self.norms_in_fp32:
            return tensors
        freed_by = LAYERNORM | CHEAP * self.flash
        again = [replace(one, freed_by=one.freed_by | freed_by) for one in tensors]
        start = self.element * width * inputs
        return [*again, Saved(f"{name} input", 0.0, split, freed_by, start)]

    def norms(
        self, name: str, width: int, norms: int, inputs: int, split: Split
    ) -> list[Saved]:
        """Return the tensors saved by norms that read `inputs` different tensors.

        A fused kernel saves what it reads. RMSNorm as plain PyTorch operations computes
        in fp32, and saves its input, and the normalised input for the gradient of a
        weight that is trained (`torch.nn.functional.rms_norm` on CPUs). Llama in
        Hugging Face's Transformers casts before it applies the weight, and saves 2
        bytes less.
        """
        if not self.norms_in_fp32:
            return [self.saved(f"{name} input", inputs * width, split)]
        copies = 4 * width * (norms if self.element < 4 else inputs)
        tensors = [Saved(f"{name} input, fp32", copies, split)]
        if self.adapted is None:
            normalised = 4 * width * norms
            tensors.append(Saved(f"{name} normalised, fp32", normalised, split))
        return tensors

    def mlp(
        self, name: str, width: float, split: Split, freed_by: int, activation: int
    ) -> list[Saved]:
        """Return the tensors that an MLP of an inner width saves beside its input.

        A gated activation saves gate and value, and as plain PyTorch operations also
        the activated gate. Its result is the input of the last matmul. `freed_by`
        repeats the MLP, `activation` the activation function alone. Routed experts have
        no adapters. An MLP that takes the sequence in parts saves its input alone; its
        backward has the tensors of one part.
        """
        width = width / self.mlp_chunks if name == "mlp" else width
        gated = self.model.gated_mlp
        gate = self.element if gated and "activation" not in self.fused else 0
        down = self.matmul_input(*(() if name == "expert" else ("down_proj",)))
        results = (gate + down) * width
        read, made = f"{name} activation input", f"{name} activation output"
        size = (1 if self.fp8_inputs else self.element) * (1 + gated) * width
        return [
            Saved(read, size, split, freed_by | PER_OP),
            self.cheap(made, results, split, freed_by | activation),
        ]


def saved_heads(layer: Layer) -> list[Saved]:
    """Return queries, keys, values and the output of attention."""
    model = layer.model
    queries, keys = query_width(model), kv_width(model)
    tensors = [
        layer.held("queries", queries, "tensor"),
        *_keys_and_values(layer),
        _attention_output(layer, queries),
        _exchanged_output(layer, queries),
    ]
    if model.output_gate:
        # The gate, and the output before it is gated.
        tensors.append(layer.saved("output gate", 2 * queries, "tensor"))
    if model.qk_norm:
        tensors += layer.norms("query norm", queries, 1, 1, "tensor")
        tensors += layer.norms("key norm", keys, 1, 1, "kv")
    return tensors


def _attention_output(layer: Layer, width: float) -> Saved:
    """Return the input of the last matmul, which a flash kernel saves once more."""
    if not layer.flash:
        size = layer.matmul_input("o_proj") * width
        return Saved("attention output", size, "tensor", 0)
    size = layer.element * max(1, layer.kept_inputs)
    size += layer.cast if layer.adapted is None else 0
    return Saved("attention output", size * width, "tensor", 0)


def _exchanged_output(layer: Layer, width: float) -> Saved:
    """Return the output of attention before an all-to-all gives tokens for heads.

    The kernel saves it, and the last matmul what the all-to-all made of it
    (Transformer Engine 2.11, context_parallel.py, `AttnFuncWithCPAndQKVOA2A`).
    """
    return Saved("attention output by heads", layer.element * width, "swapped", 0)


def _keys_and_values(layer: Layer) -> list[Saved]:
    """Return keys and values, which plain attention repeats for its query heads.

    A flash kernel reads each key and value for a group of queries. Recomputation of
    plain attention starts before they are repeated. Where context parallelism gathers
    them, attention saves those of the whole sequence (torchtitan 0.3.0
    distributed/context_parallel/api.py: apply_cp_to_forward).
    """
    model = layer.model
    keys = kv_width(model)
    if layer.holds_heads:
        # Values are part of what the projection made, which stays, unless gathered.
        return [
            layer.held("keys", keys, "keys"),
            layer.saved("values", keys, "keys"),
            Saved("gathered values", 0.0, "gathered", PER_OP, layer.element * keys),
        ]
    name, width = "keys and values", 2 * keys
    if layer.flash or model.n_kv_heads == model.n_heads:
        return [layer.saved(name, width, "keys")]
    repeated = 2 * layer.element * query_width(model)
    core, kept = CORE_ATTN | CHEAP, layer.element * width
    return [
        Saved(name, 0.0, "keys", core, kept),
        Saved(f"repeated {name}", repeated, "tensor", core | PER_OP),
    ]


def saved_latents(layer: Layer, mla: LatentAttention) -> list[Saved]:
    """Return tensors of latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Every GPU of a tensor-parallel group compresses only its tokens. Where norms run
    with the matmul after them, so do those of latents. Values come in one tensor with
    the keys that are not rotated: Megatron-LM's fused rotary kernel copies them out,
    torchtitan keeps the whole tensor. The same holds for compressed values and the keys
    to rotate.
    """
    heads, ranks = layer.model.n_heads, mla.q_rank + mla.kv_rank
    values = mla.v_dim + (0 if "rope" in layer.fused else mla.nope_dim)
    queries, up = query_width(layer.model), MLA_UP_PROJ
    normed = up if layer.joins_norms else 0
    # Part of what the projection makes, which stays unless there are two for queries.
    values_of = layer.held if mla.q_rank else layer.saved
    tensors = [
        layer.held("queries and keys", 2 * queries, "tensor", up),
        values_of("values", heads * values, "tensor", up),
        _attention_output(layer, heads * mla.v_dim),
        _exchanged_output(layer, heads * mla.v_dim),
        *layer.norms("latent norm", ranks, 1, 1, "sequence"),
        *_normed_latents(layer, mla, normed),
    ]
    if not layer.norms_in_fp32:
        tensors.append(layer.saved("keys to rotate", mla.rope_dim, "sequence"))
    return tensors


PICK_BYTES = 4
"""Bytes of a picked token's number."""


def saved_picks(layer: Layer, mla: LatentAttention, indexer: Indexer) -> list[Saved]:
    """Return tensors of latent attention to the tokens that an indexer picks.

    Queries are kept as heads, for the gradient of the matrix that brings them to the
    latent width, and as the kernel reads them; so are its results before and after they
    are brought to heads. It keeps the picks, which stay as its result does where single
    operations run again (Megatron-LM d98e8a6, transformer/
    experimental_attention_variant/: absorbed_mla.py; dsa_cudnn_kernels.py:
    `FusedSparseAttentionFunc`). All heads share one key, which every GPU of a tensor-
    parallel group has.
    """
    heads, ranks = layer.model.n_heads, mla.q_rank + mla.kv_rank
    key, up = latent_down_width(layer.model), MLA_UP_PROJ
    normed = up if layer.joins_norms else 0
    tensors = [
        layer.held("queries", heads * mla.nope_dim, "tensor", up),
        layer.held("latent queries", heads * key, "tensor", up),
        layer.held("latent keys", key, "all keys", up),
        layer.saved("latent output", heads * mla.kv_rank, "tensor"),
        Saved(
            "attention output",
            layer.matmul_input("o_proj") * heads * mla.v_dim,
            "tensor",
            0,
        ),
        *layer.norms("latent norm", ranks, 1, 1, "sequence"),
        *_normed_latents(layer, mla, normed),
    ]
    if layer.flash:
        picks = PICK_BYTES * min(indexer.top_k, layer.seq_len)
        tensors.append(Saved("picks", picks, "whole", 0))
    if not layer.norms_in_fp32:
        tensors.append(layer.saved("keys to rotate", mla.rope_dim, "sequence"))
    return tensors


def saved_by_indexer(layer: Layer, indexer: Indexer) -> list[Saved]:
    """Return what an indexer saves for the backward of its loss.

    Kernels have made gradients of its queries, weights and key, in the pass that made
    the loss (`FusedQKTopKWithSparseLossFunc`); operations of PyTorch keep all three
    themselves (dsa.py: `FusedDSAIndexerLoss`). Inputs of its matrices are kept by
    others.
    """
    width = indexer.n_heads * (indexer.head_dim + 1) + indexer.head_dim
    return [layer.saved("indexer", width, "whole")]


def _normed_latents(layer: Layer, mla: LatentAttention, freed_by: int) -> list[Saved]:
    """Return the inputs of the projections from latents to heads."""
    name, bits = "normed latents", freed_by | PER_OP
    if layer.adapted is None:
        size = (mla.q_rank + mla.kv_rank) * layer.matmul_input()
        return [Saved(name, size, "sequence", bits)]
    size = mla.q_rank * layer.matmul_input("q_proj")
    size += mla.kv_rank * layer.matmul_input("k_proj", "v_proj")
    return [Saved(name, size, "whole", bits)]


PLAIN_PICKS_BYTES = 4 + 4 + 2 + 3
"""Bytes of a score where all are stored and those not picked masked: the exponential,
the same masked, the result in 16 bits, and three masks (Megatron-LM d98e8a6,
dsa_masking.py: `masked_softmax`)."""


def saved_scores(layer: Layer) -> list[Saved]:
    """Return the tensors of the softmax: scores, or statistics of a flash kernel."""
    heads, element = layer.model.n_heads, layer.element
    if layer.flash:
        # One fp32 logarithm per row of scores (Dao 2023, section 3.1.1).
        return [Saved("softmax statistics", 4 * heads, "tensor", 0)]
    scores, core = heads * layer.seq_len, CORE_ATTN | CHEAP
    if layer.model.picker is not None:
        return [Saved("softmax", PLAIN_PICKS_BYTES * scores, "tensor", core)]
    tensors = [Saved("softmax output", element * scores, "tensor", core)]
    if layer.model.dropout:
        dropped = (element + 1) * scores
        tensors.append(
            Saved("score dropout and mask", dropped, "tensor", core | PER_OP)
        )
    return tensors
