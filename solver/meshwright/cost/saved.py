"""Tensors that a norm or an MLP saves for its backward, by implementation.

Every tensor knows what frees it if it is recomputed (`plans.recomputation`). The input
of a recomputed module stays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from meshwright.plans.recomputation import CHEAP, LAYERNORM, PER_OP
from meshwright.spec.model import Model
from meshwright.spec.training import Fused

Split = Literal[
    "tensor",
    "kv",
    "keys",
    "sequence",
    "whole",
    "scattered",
    "exchanged",
    "routed",
    "swapped",
]
"""Over which GPUs a tensor is split: the tensor-parallel group, as many of its GPUs as
there are key and value heads, the same for keys and values that context parallelism may
have gathered, the group only under sequence parallelism, or none. The next two are
split as `sequence`, and are there only with a tensor-parallel group that scatters them,
or with an expert-parallel group that exchanges them. `swapped` ones are split over the
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

    @property
    def norms_in_fp32(self) -> bool:
        """Return whether norms are plain PyTorch operations; layer norm never is."""
        return "norm" not in self.fused and self.model.norm == "rmsnorm"

    def matmul_input(self, *matrices: str) -> int:
        """Return the bytes of a number that only matmuls with these matrices save.

        It is for the gradients of weights: of a frozen matrix nothing is saved, and an
        adapter beside it saves the input as it is.
        """
        if self.adapted is None:
            return self.cast or self.element
        return self.element if self.adapted.intersection(matrices) else 0

    def saved(self, name: str, width: float, split: Split, freed_by: int = 0) -> Saved:
        """Return a tensor of the compute precision."""
        return Saved(name, self.element * width, split, freed_by | PER_OP)

    def cheap(self, name: str, size: float, split: Split, freed_by: int = 0) -> Saved:
        """Return a result of a norm or activation, recomputed after flash attention."""
        return Saved(name, size, split, freed_by | PER_OP | CHEAP * self.flash)

    def input_norms(
        self, name: str, width: int, norms: int, inputs: int, split: Split
    ) -> list[Saved]:
        """Return what norms before a matmul save.

        Norms as plain PyTorch operations are kernels of their own. Recomputation of
        them starts from their inputs in the compute precision.
        """
        tensors = self.norms(name, width, norms, inputs, split)
        if not self.norms_in_fp32:
            return tensors
        freed_by = LAYERNORM | CHEAP * self.flash
        again = [replace(own, freed_by=own.freed_by | freed_by) for own in tensors]
        start = self.element * width * inputs
        return [*again, Saved(f"{name} input", 0.0, split, freed_by, start)]

    def norms(
        self, name: str, width: int, norms: int, inputs: int, split: Split
    ) -> list[Saved]:
        """Return what norms that read `inputs` different tensors save of them.

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
        """Return what an MLP of an inner width saves beside its input.

        A gated activation saves gate and value, and as plain PyTorch operations also
        the activated gate. Its result is the input of the last matmul. `freed_by`
        repeats the MLP, `activation` the activation function alone. Routed experts have
        no adapters.
        """
        gated = self.model.gated_mlp
        gate = self.element if gated and "activation" not in self.fused else 0
        down = self.matmul_input(*(() if name == "expert" else ("down_proj",)))
        results = (gate + down) * width
        read, made = f"{name} activation input", f"{name} activation output"
        return [
            self.saved(read, (1 + gated) * width, split, freed_by),
            self.cheap(made, results, split, freed_by | activation),
        ]
