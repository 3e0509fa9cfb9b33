"""Tensors that a norm or an MLP saves for its backward, by implementation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from meshwright.spec.model import Model
from meshwright.spec.training import FusedKernels

Split = Literal["tensor", "kv", "keys", "sequence"]
"""Over which GPUs a tensor is split: the tensor-parallel group, as many of its GPUs as
there are key and value heads, the same for keys and values that context parallelism may
have gathered, or the group only under sequence parallelism."""


@dataclass(frozen=True)
class Saved:
    """One saved tensor, or several of one kind."""

    name: str
    bytes_per_token: float
    split: Split
    kept_per_token: float
    """Bytes that selective recomputation keeps."""


@dataclass(frozen=True)
class Layer:
    """The implementation of a layer, which decides what it saves."""

    model: Model
    element: int
    cast: int
    """Bytes per number of the copy that a matmul casts and saves; 0 without a copy."""
    seq_len: int
    flash: bool
    fused: FusedKernels

    @property
    def norms_in_fp32(self) -> bool:
        """Return whether norms are plain PyTorch operations; layer norm never is."""
        return self.fused == "none" and self.model.norm == "rmsnorm"

    @property
    def matmul_input(self) -> int:
        """Return the bytes of a number that only a matmul saves."""
        return self.cast or self.element

    def saved(self, name: str, width: float, split: Split) -> Saved:
        """Return a tensor of the compute precision that is never recomputed."""
        size = self.element * width
        return Saved(name, size, split, size)

    def matmul_only(self, name: str, width: float, split: Split) -> Saved:
        """Return a tensor that only a matmul saves, never recomputed."""
        size = self.matmul_input * width
        return Saved(name, size, split, size)

    def cheap(self, name: str, size: float, split: Split) -> Saved:
        """Return a result of a norm or activation, recomputed after flash attention."""
        return Saved(name, size, split, 0.0 if self.flash else size)

    def input_norms(
        self, name: str, width: int, norms: int, inputs: int, split: Split
    ) -> list[Saved]:
        """Return what norms before a matmul save; selective recomputation repeats them.

        Recomputation starts from the inputs in the compute precision.
        """
        tensors = self.norms(name, width, norms, inputs, split)
        if not (self.flash and self.norms_in_fp32):
            return tensors
        read, normalised = tensors
        start = self.element * width * inputs
        return [
            replace(read, kept_per_token=start),
            replace(normalised, kept_per_token=0.0),
        ]

    def norms(
        self, name: str, width: int, norms: int, inputs: int, split: Split
    ) -> list[Saved]:
        """Return what norms that read `inputs` different tensors save of them.

        A fused kernel saves what it reads. RMSNorm as plain PyTorch operations computes
        in fp32, and saves its input and the normalised input for the gradient of the
        weight (`torch.nn.functional.rms_norm` on CPUs). Llama in Hugging Face's
        Transformers casts before it applies the weight, and saves 2 bytes less.
        """
        if not self.norms_in_fp32:
            return [self.saved(f"{name} input", inputs * width, split)]
        copies = 4 * width * (norms if self.element < 4 else inputs)
        results = 4 * width * norms
        return [
            Saved(f"{name} input, fp32", copies, split, copies),
            Saved(f"{name} normalised, fp32", results, split, results),
        ]

    def mlp(self, name: str, width: float, split: Split) -> list[Saved]:
        """Return what an MLP of an inner width saves beside its input.

        A gated activation saves gate and value, and as plain PyTorch operations also
        the activated gate. Its result is the input of the last matmul.
        """
        gated = self.model.gated_mlp
        gate = self.element if gated and self.fused != "all" else 0
        results = (gate + self.matmul_input) * width
        return [
            self.saved(f"{name} activation input", (1 + gated) * width, split),
            self.cheap(f"{name} activation output", results, split),
        ]
