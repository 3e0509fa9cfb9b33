"""The `training` section, with `training.lora`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

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
    CountOrNone,
    Flag,
    Length,
    Problem,
    SpecModel,
    number,
    refuse,
)
from meshwright.spec.gpu import Precision

Projection = Literal[
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "in_proj",
    "out_proj",
]
"""A matrix of a layer, by the name that it has in Llama and in PEFT; the last two are
those of a state space, as Mamba-2 has them."""

Target = Projection | Literal["attention", "mlp", "state_space"]

FrozenWeights = Literal["bf16", "fp32", "nf4", "int8", "gptq"]

AdapterFormat = Literal["bf16", "fp32", "autocast", "fused"]

EndFormat = Literal["frozen", "bf16", "mixed"]
"""In which adapters are kept and multiplied; `autocast`: kept in fp32, multiplied in 16
bits; `fused`: in 16 bits, and the matmul that makes a result adds it."""

GROUPS: dict[str, tuple[str, ...]] = {
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
    "state_space": ("in_proj", "out_proj"),
}


def projections(targets: Iterable[str]) -> frozenset[str]:
    """Return the matrices that targets of adapters name, one by one or by group."""
    named = [GROUPS.get(target, (target,)) for target in targets]
    return frozenset(name for group in named for name in group)


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


T = TypeVar("T")


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


class Lora(SpecModel):
    """Adapters of low rank beside frozen matrices (Hu et al. 2021, section 4)."""

    rank: Count = Field(16, description="Columns of A and rows of B, PEFT's `r`.")
    targets: Annotated[
        tuple[Target, ...],
        AfterValidator(_distinct),
        BeforeValidator(_as_list),
        NOT_EMPTY,
    ] = Field(
        ("attention", "mlp"),
        description="The matrices that have adapters, all or some of attention, of MLP "
        "or shared experts, and of a state space; routed experts have none.",
    )
    weights: FrozenWeights = Field(
        "bf16",
        description="In which frozen matrices of layers are kept: in 16 bits, in fp32 "
        "beside a cast copy for matmuls, as bitsandbytes quantises them (nf4, doubly "
        "quantised, or int8), or as GPTQ does, in 4 bits, which several kernels of "
        "PyTorch unpack.",
    )
    adapters: AdapterFormat = Field(
        "bf16",
        description="In which adapters are kept and multiplied: in 16 bits; in fp32, "
        "as PEFT does without autocast; in fp32, cast to 16 bits for matmuls (PEFT "
        "beside a trainer's `bf16: true`); or fused, where the matmul that makes a "
        "result in 16 bits adds it to that of the matrix (Unsloth).",
    )
    dropout: Flag = Field(
        False,
        description="Whether each adapter drops some of its inputs (PEFT's "
        "`lora_dropout`): it keeps a copy of them, and a mask.",
    )
    ends: EndFormat = Field(
        "frozen",
        description="Whether embedding and head are frozen, or copies of both are "
        "trained whole (PEFT's `modules_to_save`): with gradients and moments in 16 "
        "bits, as a copy of bf16 weights has them, or as the framework trains.",
    )
    upcast: Flag = Field(
        False,
        description="Whether all that is not quantised is in fp32, results of matmuls "
        "too, as PEFT's `prepare_model_for_kbit_training` makes it.",
    )
    keeps_results: Flag = Field(
        False,
        description="Whether the results of recomputed layers stay until the step "
        "ends: reentrant checkpoints under PyTorch's first FSDP.",
    )
    keeps_inputs: Flag = Field(
        False,
        description="Whether matmuls with frozen matrices keep their inputs, which no "
        "gradient needs: those of bitsandbytes in 4 bits before 0.43.2.",
    )
    keeps_graph: Flag = Field(
        False,
        description="Whether the loop holds the logits of a micro-batch while the next "
        "one runs, without recomputation: what `keeps_inputs` keeps is there twice.",
    )
    frozen_gradients: Flag = Field(
        False,
        description="Whether frozen matrices of layers have gradients, of zeros, which "
        "are kept and reduced with those of adapters: PyTorch's first FSDP where a "
        "layer's adapters and matrices are one flat parameter.",
    )

    @property
    def is_quantised(self) -> bool:
        """Return whether frozen matrices have to be unpacked before a matmul."""
        return self.weights not in ("bf16", "fp32")

    @property
    def is_all_wide(self) -> bool:
        """Return whether all but quantised matmuls is computed in fp32."""
        return self.upcast and self.adapters == "fp32"

    @property
    def trains_ends(self) -> bool:
        """Return whether copies of embedding and head are trained."""
        return self.ends != "frozen"

    @property
    def projections(self) -> frozenset[str]:
        """Return the matrices that have adapters."""
        return projections(self.targets)


def _as_lora(value: Any) -> Any:
    return {"rank": value} if type(value) is int else value


LoraField = Annotated[
    Lora | None, BeforeValidator(_as_lora, json_schema_input_type=Lora | int | None)
]

FusedOperation = Literal[
    "norm", "residual", "rope", "activation", "softmax", "loss", "dropout"
]  # fmt: skip
"""An operation that may be one kernel, which saves what it reads, or several.

Norms, residual sums with the norm after them, rotary positions, gated activations, the
softmax of plain attention, cross-entropy, and dropout with the sum after it."""

LIGER_FUSED: tuple[FusedOperation, ...] = ("norm", "rope", "activation", "loss")
"""The operations of Liger-Kernel (transformers/monkey_patch.py)."""

Fused = frozenset[FusedOperation]


ExpertDispatch = Literal["alltoall", "deepep"]
"""How tokens get to their experts."""

CudaGraphs = Flag | Literal["outside_experts"]
"""Whether CUDA graphs replay the kernels; of Megatron Core's scopes, those of attention
and the router leave the kernels of experts to the host (transformer_config.py:
`cuda_graph_scope`)."""

Tuned = Literal["vendor", "user"]
"""Who tuned a run: the vendor of its GPUs, to publish it, or a user of them."""


ContextExchange = Literal["ring", "gather", "ulysses"]

AttentionKernel = Literal[
    "flash1", "triton", "flash2", "flash3", "flash4", "cudnn", "efficient"
]  # fmt: skip
"""A fused kernel of attention: FlashAttention by version, that in Triton of
2023, the library of the GPU's vendor (cuDNN for GPUs of NVIDIA), or the
memory-efficient one that PyTorch takes beside a mask."""

ReferenceWeights = Literal["none", "bf16", "fp32"]

IndexerLoss = Literal["picked", "all", "none"]
"""Tokens over which a loss compares an indexer with attention."""

Imbalance = Annotated[float, number("from 1 to 100", lambda x: 1 <= x <= 100)]

Fraction = Annotated[float, number("above 0, up to 1", lambda x: 0 < x <= 1)]

LossBytes = Annotated[float, number("from 0 to 100", lambda x: 0 <= x <= 100)]


Precisions = Annotated[
    tuple[Precision, ...],
    AfterValidator(_distinct),
    BeforeValidator(_as_list),
    NOT_EMPTY,
]


class Overlap(SpecModel):
    """Which traffic hides behind compute; each by default as the framework has it."""

    gradients: Flag | None = Field(
        None, description="Reductions of gradients, behind the backward."
    )
    parameters: Flag | None = Field(
        None, description="Gathers of weights, behind the forward and the backward."
    )
    tp: Flag | None = Field(
        None,
        description="Messages of tensor parallelism inside a node, behind the matmuls "
        "that read or write them; sequence parallelism splits them into pieces.",
    )
    ep: Flag | None = Field(
        None,
        description="Messages of experts, behind the compute of another micro-batch.",
    )
    pp: Flag | None = Field(
        None, description="Sends of interleaved stages, behind their next chunk."
    )


Overlaps = frozenset[str]
"""Names of fields of `Overlap`."""

FusedOperations = Annotated[
    tuple[FusedOperation, ...], AfterValidator(_distinct), BeforeValidator(_as_list)
]


Optimizer = Literal["adamw", "adamw-8bit", "sgd", "adafactor", "muon"]
"""Bytes and sources of each are in `cost.state`."""

Numbers = Literal["nothing", "rounding", "optimizer", "weights", "trained"]
"""The change of a switch to the numbers of training: the order of sums at most, the
rounding of kernels and messages, how the optimizer converges, the frozen weights, or
which weights are trained."""


OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)

MATRIX_OPTIMIZERS: frozenset[Optimizer] = frozenset({"muon"})
"""Those that update the matrices of layers whole, and all else as AdamW does."""


class Training(SpecModel):
    """The `training` section: one optimizer step."""

    model_config = ConfigDict(serialize_by_alias=True)

    NOT_MODELLED: ClassVar[Mapping[str, str]] = {
        "peft": "adapters other than those of training.lora",
        **dict.fromkeys(
            ("grpo", "ppo", "rlhf", "reward_model"),
            "training that keeps several models, such as a policy and its critic; a "
            "spec trains one, and may have training.reference_model beside it",
        ),
    }

    REPLACED: ClassVar[Mapping[str, str]] = {
        "fused_kernels": "fused, a list of norm, rope, activation, softmax, loss and "
        "dropout",
        "fused_loss": "fused, a list with loss or without",
        "dpo": "reference_model, the format of the frozen copy; pairs are two "
        "sequences each",
    }

    seq_len: Length = Field(
        description="Tokens per sequence; or text: 128k is 131,072."
    )
    global_batch: Count = Field(description="Sequences per optimizer step.")
    document_tokens: Count | None = Field(
        None,
        description="Mean length of the texts that are packed into a sequence and "
        "attend to none but theirs (`cu_seqlens`); default: a sequence is one text.",
    )
    text_loops: Flag = Field(
        False,
        description="Whether the host loops over packed texts: Megatron Core 0.19 for "
        "rotary positions that are not `fused`, and Transformer Engine before 2.18 "
        "for `context_exchange: ulysses`.",
    )
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
    gradient_sync: Literal["each", "last"] = Field(
        "each",
        description="When ZeRO-2 and 3 reduce gradients: after each micro-batch, or "
        "once, after the last, until which they add up unsharded.",
    )
    optimizer: Optimizer = Field(
        "adamw",
        description="adamw keeps two fp32 moments per parameter, adamw-8bit two of a "
        "byte, sgd one in fp32, adafactor a row and a column per matrix; muon one in "
        "fp32 for the matrices of layers, and for all else what adamw does.",
    )
    moments: Literal["bf16", "fp32"] = Field(
        "fp32", description="In which adamw keeps its moments."
    )
    master_weights: Literal["fp32", "remainders", "none"] = Field(
        "fp32",
        description="What the optimizer keeps beside 16-bit weights: fp32 ones, the "
        "lower halves of those, which bf16 weights lack, or none: weights, gradients "
        "and moments are all in bf16.",
    )
    fp8_weights: Literal["copies", "primary"] = Field(
        "copies",
        description="Whether fp8 weights are copies of 16-bit ones, or stand for them; "
        "without other master weights the optimizer then keeps the 16-bit ones.",
    )
    attention: Literal["flash", "plain"] | AttentionKernel = Field(
        "flash",
        description="flash: the fused kernel that the framework runs on the GPU; or "
        "that of a name, FlashAttention 1 to 4, triton or cudnn; efficient: PyTorch's "
        "for texts with padding, whose mask it reads, so that it skips nothing; plain "
        "stores the seq_len x seq_len scores.",
    )
    indexer_loss: IndexerLoss = Field(
        "picked",
        description="Tokens over which a loss compares the scores of model.mla.indexer "
        "with attention: those that it picked, all before them, or none, which trains "
        "no indexer.",
    )
    fused: FusedOperations | None = Field(
        None,
        description="Operations that are one kernel each: others read and write memory "
        "several times, and keep more of it; default by framework.",
    )
    overlap: Overlap = Field(
        Overlap(), description="Which traffic hides behind compute."
    )
    expert_dispatch: ExpertDispatch = Field(
        "alltoall",
        description="alltoall: every copy of a token is sent on its own; deepep: once "
        "to each node, which passes it on (DeepEP, HybridEP).",
    )
    tuned: Tuned = Field(
        "user",
        description="Who tunes the run: the vendors of GPUs publish faster runs than "
        "users get from the same code; moves step times, and no choice of plan.",
    )
    compile: Flag = Field(
        False,
        description="Whether torch.compile or XLA fuses element-wise operations; the "
        "host then takes half as long for a layer.",
    )
    cuda_graphs: CudaGraphs | None = Field(
        None,
        description="Whether graphs replay the kernels, so that no layer waits for the "
        "host; outside_experts: all kernels but those of experts. Default by "
        "framework.",
    )
    lora: LoraField = Field(
        None,
        description="Freezes all weights and trains adapters beside them; a number is "
        "their rank.",
    )
    reference_model: ReferenceWeights = Field(
        "none",
        description="In which a frozen copy of the model is kept that runs forward "
        "over each micro-batch (DPO), sharded as what is trained; beside lora it is "
        "the model without adapters, and takes no memory.",
    )
    reentrant: Flag = Field(
        False,
        description="Whether checkpoints are PyTorch's reentrant ones, which run a "
        "recomputed layer to its end; others stop before the last matmul.",
    )
    foreach: Flag = Field(
        False,
        description="Whether adamw is PyTorch's without `fused=True`, whose update "
        "makes as much as one moment of all parameters at a time.",
    )
    expandable_segments: Flag = Field(
        True,
        description="Whether PyTorch's allocator gives freed memory to tensors of any "
        "size (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), as launch files that "
        "we write ask of NVIDIA's GPUs. Where not, recomputed layers leave holes.",
    )
    partition_activations: Flag = Field(
        False,
        description="Whether the inputs of recomputed layers are split over the "
        "tensor-parallel group, and gathered before they are needed.",
    )
    fp8_activation_inputs: Flag = Field(
        False,
        description="Whether MLPs keep what their activation read in 8 bits (Megatron "
        "Core's `activation_func_fp8_input_store`).",
    )
    offload_activations: CountOrNone = Field(
        0,
        description="Layers whose activations wait in host memory for the backward.",
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
        "in memory and in time; default 1.2, or 1 where a capacity drops tokens.",
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
    mlp_chunks: Count = Field(
        1,
        description="Parts of the sequence that an MLP takes one after another, each "
        "once more in its backward (DeepSpeed's TiledMLP); experts are not cut.",
    )
    loss_parallel: bool | None = Field(
        None,
        description="Whether tensor parallelism splits the loss over the vocabulary "
        "instead of gathering the logits; default by framework.",
    )
    offload_to: Literal["cpu", "nvme"] = Field(
        "cpu", description="Where offloaded state lives: host memory or its drives."
    )
    offload_fraction: Fraction = Field(
        1.0,
        description="Share of the parameters whose optimizer leaves, where a plan "
        "offloads the optimizer; the GPU keeps and updates the others.",
    )
    holds_gradients: Flag = Field(
        False,
        description="Whether the GPU holds reduced gradients until the backward ends, "
        "though offload copies them to the host: PyTorch's first FSDP.",
    )

    @property
    def has_reference(self) -> bool:
        """Return whether a frozen copy of the model runs beside what is trained."""
        return self.reference_model != "none"

    @property
    def forwards(self) -> int:
        """Return the forwards of a micro-batch: a reference has one more."""
        return 2 if self.has_reference else 1

    @model_validator(mode="after")
    def _check_state(self) -> Training:
        refuse(self._broken_state())
        return self

    def _broken_state(self) -> Iterator[Problem]:
        """Yield the settings of state that mean nothing beside the others."""
        if self.moments == "bf16" and self.optimizer != "adamw":
            sentence = f"beside training.optimizer {self.optimizer}; accepted: fp32"
            yield Problem(("moments",), self.moments, sentence)
        if self.foreach and self.optimizer != "adamw":
            sentence = f"beside training.optimizer {self.optimizer}; accepted: false"
            yield Problem(("foreach",), self.foreach, sentence)
        if self.fp8_weights == "primary" and "fp8" not in self.precisions:
            sentence = "without fp8 in training.precision; accepted: copies"
            yield Problem(("fp8_weights",), self.fp8_weights, sentence)
        if self.text_loops and self.document_tokens is None:
            sentence = "without training.document_tokens; accepted: false"
            yield Problem(("text_loops",), self.text_loops, sentence)
        yield from self._broken_lora()
        if self.master_weights == "fp32":
            return
        path, value = ("master_weights",), self.master_weights
        lacks = MATRIX_OPTIMIZERS if value == "none" else {*OPTIMIZERS} - {"adamw"}
        if self.optimizer in lacks:
            sentence = f"beside training.optimizer {self.optimizer}; accepted: fp32"
            yield Problem(path, value, sentence)
        if self.fp8_weights == "primary" and value == "remainders":
            sentence = "beside primary fp8 weights; accepted: fp32, none"
            yield Problem(path, value, sentence)
        if wide := sorted({*self.precisions} - {"bf16", "fp8"}):
            sentence = f"beside training.precision {wide[0]}; accepted: fp32"
            yield Problem(path, value, sentence)

    def _broken_lora(self) -> Iterator[Problem]:
        """Yield the formats of frozen weights that no matmul of the job reads."""
        if self.lora is None:
            return
        if self.optimizer in MATRIX_OPTIMIZERS:
            sentence = "beside training.lora, whose matrices are thin; accepted: adamw"
            yield Problem(("optimizer",), self.optimizer, sentence)
        wide = {"tf32", "fp32"} & {*self.precisions}
        no_copies = {"fp8"} & {*self.precisions} if self.lora.weights != "bf16" else {}
        if found := sorted({*wide, *no_copies}):
            sentence = f"beside training.precision {found[0]}; accepted: bf16, fp16"
            yield Problem(("lora", "weights"), self.lora.weights, sentence)

    @property
    def text_tokens(self) -> int:
        """Return the tokens that attend to each other: of a text, or a sequence."""
        return min(self.document_tokens or self.seq_len, self.seq_len)

    @property
    def texts(self) -> float:
        """Return the texts of a sequence in the mean."""
        return self.seq_len / self.text_tokens

    @property
    def stores_scores(self) -> bool:
        """Return whether attention stores its scores, as no fused kernel does."""
        return self.attention == "plain"

    @property
    def precision(self) -> Precision:
        """Return the only precision of the job; see `Spec.at`.

        Raises:
            ValueError: the choice is still open.
        """
        (only,) = self.precisions
        return only
