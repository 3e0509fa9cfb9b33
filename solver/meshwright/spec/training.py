"""The `training` and `limits` sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from meshwright.spec.base import (
    NOT_EMPTY,
    Count,
    Margin,
    Problem,
    Share,
    SpecModel,
    number,
    refuse,
)
from meshwright.spec.gpu import Precision
from meshwright.spec.units import GBPerS, GiB

FusedKernels = Literal["all", "norms", "none"]
"""Which operations are one kernel that saves only its input: norms and gated
activations, norms, or none."""


ContextExchange = Literal["ring", "gather", "ulysses"]

Imbalance = Annotated[float, number("from 1 to 100", lambda x: 1 <= x <= 100)]

LossBytes = Annotated[float, number("from 0 to 100", lambda x: 0 <= x <= 100)]


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _distinct(values: tuple[Precision, ...]) -> tuple[Precision, ...]:
    return tuple(dict.fromkeys(values))


Precisions = Annotated[
    tuple[Precision, ...],
    AfterValidator(_distinct),
    BeforeValidator(_as_list),
    NOT_EMPTY,
]


class Training(SpecModel):
    """What one optimizer step does."""

    model_config = ConfigDict(serialize_by_alias=True)

    NOT_MODELLED: ClassVar[Mapping[str, str]] = {
        "lora": "weights that are frozen, beside small ones that are trained",
        "peft": "weights that are frozen, beside small ones that are trained",
        "partition_activations": "checkpoints split over tensor-parallel GPUs",
        "offload_activations": "activations in host memory",
        "cpu_offloading_num_layers": "activations in host memory",
    }

    seq_len: Count = Field(description="Tokens per sequence.")
    global_batch: Count = Field(description="Sequences per optimizer step.")
    precisions: Precisions = Field(
        ("bf16",),
        alias="precision",
        description="Of matmuls and activations: one, or a list to choose from.",
    )
    gradients: Literal["bf16", "fp32"] | None = Field(
        None,
        description="In which gradients are added up and reduced (bf16: in 16 bits); "
        "default by framework.",
    )
    optimizer: Literal["adamw", "adamw-8bit", "sgd", "adafactor"] = Field(
        "adamw",
        description="adamw keeps two fp32 moments per parameter, adamw-8bit two of a "
        "byte, sgd one in fp32, adafactor a row and a column per matrix.",
    )
    moments: Literal["bf16", "fp32"] = Field(
        "fp32", description="In which adamw keeps its moments."
    )
    master_weights: Literal["fp32", "remainders"] = Field(
        "fp32",
        description="What adamw keeps beside 16-bit weights: fp32 ones, or the lower "
        "halves of those, which bf16 weights lack.",
    )
    fp8_weights: Literal["copies", "primary"] = Field(
        "copies",
        description="Whether fp8 weights are copies of 16-bit ones, or stand for them.",
    )
    attention: Literal["flash", "plain"] = Field(
        "flash", description="plain stores the seq_len x seq_len scores."
    )
    fused_kernels: FusedKernels | None = Field(
        None,
        description="all: norms and gated activations save their inputs alone; norms: "
        "activations are PyTorch operations; none: norms too; default by framework.",
    )
    fused_loss: bool | None = Field(
        None,
        description="Whether cross-entropy is one kernel; default by framework.",
    )
    context_exchange: ContextExchange | None = Field(
        None,
        description="How the ranks of a sequence get what attention needs: ring passes "
        "keys and values on, gather has them all first, ulysses exchanges tokens for "
        "heads; default by framework.",
    )
    expert_imbalance: Imbalance | None = Field(
        None,
        description="Tokens that the experts of the fullest GPU get, over the average, "
        "as memory counts them; default 1.2, or 1 where a capacity drops tokens.",
    )
    loss_bytes: LossBytes | None = Field(
        None,
        description="Bytes per logit at the peak of the loss, beside the logit itself; "
        "default by framework.",
    )
    loss_chunks: Count | None = Field(
        None,
        description="Parts of the sequence that head and loss take one after another; "
        "default by framework.",
    )
    loss_parallel: bool | None = Field(
        None,
        description="Whether tensor parallelism splits the loss over the vocabulary "
        "instead of gathering the logits; default by framework.",
    )
    offload_to: Literal["cpu", "nvme"] = Field(
        "cpu", description="Where offloaded state lives: host memory or its drives."
    )

    @model_validator(mode="after")
    def _check_state(self) -> Training:
        refuse(self._broken_state())
        return self

    def _broken_state(self) -> Iterator[Problem]:
        """Yield the settings of state that mean nothing beside the others."""
        if self.moments == "bf16" and self.optimizer != "adamw":
            sentence = f"beside training.optimizer {self.optimizer}; accepted: fp32"
            yield Problem(("moments",), self.moments, sentence)
        if self.fp8_weights == "primary" and "fp8" not in self.precisions:
            sentence = "without fp8 in training.precision; accepted: copies"
            yield Problem(("fp8_weights",), self.fp8_weights, sentence)
        if self.master_weights == "fp32":
            return
        path, value = ("master_weights",), self.master_weights
        if self.optimizer != "adamw":
            sentence = f"beside training.optimizer {self.optimizer}; accepted: fp32"
            yield Problem(path, value, sentence)
        if self.fp8_weights == "primary":
            sentence = "beside primary fp8 weights; accepted: fp32"
            yield Problem(path, value, sentence)
        if wide := sorted({*self.precisions} - {"bf16", "fp8"}):
            sentence = f"beside training.precision {wide[0]}; accepted: fp32"
            yield Problem(path, value, sentence)

    @property
    def precision(self) -> Precision:
        """Return the only precision of the job; see `Spec.at`.

        Raises:
            ValueError: the choice is still open.
        """
        (only,) = self.precisions
        return only


class Limits(SpecModel):
    """Hard constraints on every plan."""

    memory_margin: Margin = Field(
        0.03,
        description="Share of GPU and host memory that a plan leaves free: to the "
        "allocator's fragments, and to what is not counted.",
    )
    memory_gib: GiB | None = Field(
        None, description="Usable memory per GPU; replaces the margin."
    )
    max_link_utilisation: Share | None = Field(
        None, description="Share of the step for which any link may carry traffic."
    )
    tp_min_link_gb_s: GBPerS | None = Field(
        None, description="Least bandwidth per GPU for tensor-parallel groups."
    )

    def usable_gib(self, total_gib: float) -> float:
        """Return the memory of a GPU that a plan may use, GiB, given all its memory."""
        if self.memory_gib is not None:
            return self.memory_gib
        return total_gib * (1 - self.memory_margin)
