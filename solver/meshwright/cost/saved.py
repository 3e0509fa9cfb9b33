"""What a norm or an MLP saves for its backward, by how it is implemented."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from meshwright.spec.model import Model
from meshwright.spec.training import FusedKernels

Split = Literal["tensor", "kv", "sequence"]
"""Over the tensor-parallel group always, over as many of it as there are key and value
heads, or only under sequence parallelism."""


@dataclass(frozen=True)
class Saved:
    """One saved tensor, or several alike."""

    name: str
    bytes_per_token: float
    split: Split
    kept_per_token: float
    """Bytes that are left under selective recomputation."""


@dataclass(frozen=True)
class Layer:
    """A layer and how its tensors are computed."""

    model: Model
    element: int
    cast: int
    """Bytes of the copy that a matmul casts of its input and saves, if it does."""
    seq_len: int
    flash: bool
    fused: FusedKernels

    @property
    def norms_in_fp32(self) -> bool:
        """Return whether norms are PyTorch operations; layer norm is always fused."""
        return self.fused == "none" and self.model.norm == "rmsnorm"

    @property
    def matmul_input(self) -> int:
        """Return the bytes of a number that nothing but a matmul saves."""
        return self.cast or self.element

    def saved(self, name: str, width: float, split: Split) -> Saved:
        """Return a tensor of the compute precision that is never recomputed."""
        size = self.element * width
        return Saved(name, size, split, size)

    def matmul_only(self, name: str, width: float, split: Split) -> Saved:
        """Return a tensor that nothing but a matmul saves, never recomputed."""
        size = self.matmul_input * width
        return Saved(name, size, split, size)

    def cheap(self, name: str, size: float, split: Split) -> Saved:
        """Return a result of a norm or activation, recomputed after flash attention."""
        return Saved(name, size, split, 0.0 if self.flash else size)

    def input_norms(
        self, name: str, width: int, norms: int, inputs: int, split: Split
    ) -> list[Saved]:
        """Return what norms before a matmul save: as others, but recomputed cheaply.

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

        A kernel saves what it reads. RMSNorm out of PyTorch operations computes in
        fp32, and saves its input and the normalised input for the weight's gradient:
        `torch.nn.functional.rms_norm` on CPUs. Llama in Hugging Face's Transformers
        casts before it applies the weight, and saves 2 bytes less per number.
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

        A gated activation saves gate and value, and out of PyTorch operations also
        the activated gate. Its result is the input of the last matmul.
        """
        gated = self.model.gated_mlp
        gate = self.element if gated and self.fused != "all" else 0
        results = (gate + self.matmul_input) * width
        return [
            self.saved(f"{name} activation input", (1 + gated) * width, split),
            self.cheap(f"{name} activation output", results, split),
        ]
