"""A framework: all that it does differently from the mathematics of training.

Every module of `meshwright.frameworks` fills in one `Framework`. How it splits layers
over stages is a `Partition`, of how many layers users choose recomputation a
`RecomputeScope`, and which fields are limits their metadata say (`limiting`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from meshwright.plans.columns import Bools, Ints
from meshwright.plans.rule import Rule, Words
from meshwright.plans.skeletons import Shards, Skeletons
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import REPEATS_LAYERS, Module, RecomputeMode
from meshwright.spec.spec import Spec
from meshwright.spec.training import (
    AttentionKernel,
    ContextExchange,
    Fused,
    FusedOperation,
    Numbers,
    Optimizer,
    Overlap,
    Overlaps,
    Training,
)

LIMITS = "limits"
"""Key of a field's metadata under which its `LimitingField` stands."""


@dataclass(frozen=True)
class LimitingField:
    """How a field limits which plans are launched, and its value without the limit.

    The field is lifted together with the rules that have its name, and their sentences
    replace its sentence.
    """

    name: str
    sentence: Callable[[Any], str]
    """The limit in words, from the value that a framework has."""
    lifted: Callable[[Any, Any], Any]
    """The value without the limit, from that of a framework and that of `ideal`."""


def limiting(
    name: str,
    sentence: Callable[[Any], str],
    lifted: Callable[[Any, Any], Any] = lambda _value, ideal: ideal,
) -> dict[str, LimitingField]:
    """Return the metadata of a field that limits which plans are launched."""
    return {LIMITS: LimitingField(name, sentence, lifted)}


STAGE_LAYERS = "stage_layers"
"""Name of the rules on how a framework splits layers over stages."""


@dataclass(frozen=True)
class Partition:
    """How a framework splits the layers of a model over a number of stages."""

    layers: Callable[[Model, int], Sequence[int]]
    """The layers of each stage, for no more stages than layers."""
    sentence: str
    source: str
    """File and version of the framework in which this was read."""

    @property
    def rule(self) -> Rule:
        """Return the rule that the partition gives every stage what it needs."""
        return Rule(
            STAGE_LAYERS,
            f"{self.sentence}: every stage has one, and the first all that lead",
            self.source,
            self._covers,
            "{spec.model.n_layers} layers, pp {pp}",
        )

    def _covers(self, spec: Spec, rows: Skeletons) -> Bools:
        counts, inverse = np.unique(rows.pp, return_inverse=True)
        covers = [self._covers_stages(spec.model, pp) for pp in counts.tolist()]
        return np.array(covers, dtype=bool)[inverse].reshape(rows.pp.shape)

    def _covers_stages(self, model: Model, stages: int) -> bool:
        """Return whether each stage has a layer; more stages break another rule."""
        if stages > model.n_layers:
            return True
        layers = self.layers(model, stages)
        return min(layers) >= 1 and layers[0] >= model.leading_layers


def larger_first(model: Model, stages: int) -> list[int]:
    """Return stages as even as possible, the first ones with a layer more."""
    each, over = divmod(model.n_layers, stages)
    return [each + (stage < over) for stage in range(stages)]


def larger_last(model: Model, stages: int) -> list[int]:
    """Return stages as even as possible, the last ones with a layer more."""
    return larger_first(model, stages)[::-1]


PER_STAGE, ONE_NUMBER, ALL_LAYERS = range(3)
"""Codes of scopes in columns: any number of layers on every stage, one number for all
model chunks, every layer."""


@dataclass(frozen=True)
class RecomputeScope:
    """How many layers of each stage a framework recomputes in one mode."""

    code: int
    sentence: str
    source: str = ""
    """File and version of the framework in which this was read."""


IN_SEGMENTS = RecomputeScope(ALL_LAYERS, "segments hold every layer of a chunk")
ANY_NUMBER = RecomputeScope(PER_STAGE, "every stage recomputes any number of layers")


def one_number(source: str) -> RecomputeScope:
    """Return the scope of a framework that has one number for all model chunks."""
    sentence = "every model chunk recomputes its first k layers, k the same for all"
    return RecomputeScope(ONE_NUMBER, sentence, source)


def all_layers(source: str) -> RecomputeScope:
    """Return the scope of a framework that recomputes every layer or none."""
    return RecomputeScope(ALL_LAYERS, "every layer is recomputed", source)


def fewest_in_scope(scope: Ints, needed: Ints, layers: Ints, chunks: Ints) -> Ints:
    """Return the fewest recomputed layers that scopes allow, (rows, stages).

    Stages have `layers`, must recompute at least `needed`, and `scope` and `chunks`
    are columns, (rows, 1). A stage whose v chunks differ by at most one layer
    recomputes min(v k, n) of its n layers where each chunk recomputes its first k: up
    to the size of the small chunks all recompute k, and one more is every layer.
    """
    k = (-(-needed // chunks)).max(axis=-1, keepdims=True)
    first = np.minimum(chunks * k, layers)
    allowed: Ints = np.select(
        [scope == PER_STAGE, scope == ONE_NUMBER], [needed, first], layers
    )
    return allowed


CONTEXT_GIB = 1.1
"""Memory of the CUDA context with its kernels, which every `overhead_gib` includes."""

MANY_GROUPS_OVERHEAD_GIB = 3.0
FEW_GROUPS_OVERHEAD_GIB = 1.5
"""CUDA context (1.1 to 1.5 GiB with its kernels) and 0.25 to 0.4 GiB of buffers per
communicator: one or two for FSDP, about eight axes of ranks where pipelines and tensors
are split too, and DeepSpeed's two buckets of 5e8 elements."""

ALL_FUSED: Fused = frozenset(get_args(FusedOperation))

ALL_OVERLAP: Overlaps = frozenset(Overlap.model_fields)

GATHERED_LOGIT_BYTES = 4
"""Bytes per logit of a loss that is not parallel, beside all others: what is gathered,
and its gradient, each in 16 bits."""

EAGER_LOSS_BYTES = 12
"""Bytes per logit of an unfused cross-entropy at its peak: three fp32 tensors.

In Megatron-LM and its forks for DeepSpeed they are a copy of the logits, the copy less
its maximum, and the exponentials; in the backward of PyTorch the saved logarithms,
their gradient, and the gradient of the fp32 copy."""


class LossPeak(NamedTuple):
    """Bytes per logit in 16 bits of a loss at its peak, beside the logit."""

    whole: float
    parallel: float
    """Where tensor parallelism splits the vocabulary."""


EAGER_LOSS = LossPeak(EAGER_LOSS_BYTES, EAGER_LOSS_BYTES)


def no_shards(_spec: Spec, shards: Shards) -> Bools:
    """Return that no shards do."""
    return np.zeros(len(shards), dtype=bool)


def every_row(rows: Skeletons) -> Bools:
    """Return that every row does."""
    return np.full(len(rows), True)


@dataclass(frozen=True)
class StateBytes:
    """Bytes per parameter before sharding, and bytes that cross the links."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    """Weights in matmuls and in all-gathers of ZeRO-3."""
    reduced: float
    """Gradients in reduce-scatters and all-reduces."""
    main_gradients: float = 0.0
    """fp32 sums beside the gradients; ZeRO has none from stage 2 on."""
    copied: float = 0.0
    """Temporaries of the update, such as fp32 copies of gradients, where there are no
    such sums; sharded as the optimizer is."""
    by_operations: float = 0.0
    """Bytes that an update on the GPU moves as several kernels, beyond those of one."""
    is_frozen: bool = False
    """Whether nothing updates the parameters."""

    @property
    def total(self) -> float:
        """Return the bytes per parameter without sharding, outside the update."""
        return self.weights + self.gradients + self.optimizer

    @property
    def updated(self) -> float:
        """Return the bytes that an update moves: state both ways, gradients once."""
        if self.is_frozen:
            return 0.0
        return 2 * (self.optimizer + self.weights) + self.gradients

    @property
    def renewed(self) -> float:
        """Return the bytes of a weight that an update changes, as it is gathered."""
        return 0.0 if self.is_frozen else self.gathered


@dataclass(frozen=True)
class Selective:
    """The selective recomputation of a framework."""

    modules: int = 0
    """Bits of the modules that a plan may name: see `plans.skeletons`."""
    unnamed: int = 0
    """Repeated where a plan names no modules, as a bit; 0 if plans must."""
    unless_named: Module | None = None
    """Repeated where a launch names no modules, if plans must."""

    def joined(self, other: Selective) -> Selective:
        """Return the modules of both; what this one repeats by itself comes first."""
        return Selective(
            self.modules | other.modules,
            self.unnamed or other.unnamed,
            self.unless_named or other.unless_named,
        )


Setting = bool | int | str
"""The position of a switch."""


@dataclass(frozen=True)
class Lever:
    """A switch that whoever trains with a framework may set."""

    switch: str
    """The path below `training`, as in 'loss_chunks' or 'overlap.tp'."""
    settings: tuple[Setting, ...] | Callable[[Spec], tuple[Setting, ...]]
    """Its positions beside the usual one, those that change least first."""
    option: str
    """The option of a launch, or the line of a training script."""
    source: str
    """Where it was read, with the version of the package."""
    numbers: Numbers = "nothing"
    beside: str = ""
    """A switch that must be on for it to have any effect."""

    def settings_for(self, spec: Spec) -> tuple[Setting, ...]:
        """Return the positions that it may have in a job."""
        given = self.settings
        return given(spec) if callable(given) else given


class Operations(NamedTuple):
    """Small operations of both passes of a layer."""

    forward: int
    backward: int


@dataclass(frozen=True)
class TextLoops:
    """Operations that loops of the host start for every text of a packed sequence.

    The host waits for the GPU before it enters them, but for those of positions in a
    backward.
    """

    positions: Operations
    """Of rotary positions that are not one kernel, for queries and keys."""
    latent_positions: Operations
    """The same of latent attention."""
    split_positions: int
    """What context parallelism adds to both in a forward."""
    exchange: Operations
    """Of an exchange of tokens for heads, for each rank of context parallelism."""


@dataclass(frozen=True)
class Framework:
    """All that a training framework does differently.

    Rules and fields with the metadata of `limiting` say which plans it launches: they
    are its limits. All other fields say what its code does in those plans.
    """

    title: str
    """The framework's name as its authors write it."""
    mixed_state: Callable[[Training, float], StateBytes]
    """State of a parameter in mixed precision, from `training` and the bytes that the
    optimizer holds beside the weight."""
    levers: tuple[Lever, ...] = ()
    """The switches that it offers, which answers price."""
    state_options: frozenset[str] = frozenset()
    """The options of `shared.STATE_OPTIONS` that it has."""
    partitions_activations: bool = False
    """Whether checkpoints may be split over a tensor-parallel group."""
    stores_fp8_inputs: bool = False
    """Whether MLPs may keep what their activation read in 8 bits."""
    on_host: frozenset[str] = frozenset()
    """How activations may wait in host memory, without a pipeline: a field of
    `training`, for those of some layers, or a mode of recomputation."""
    has_mtp: bool = False
    """Whether it trains layers that predict further tokens."""
    has_reference: bool = False
    """Whether a frozen copy of the model runs beside what it trains."""
    matrix_optimizers: frozenset[Optimizer] = frozenset()
    """Optimizers that update whole matrices, of those that it has."""
    frozen_weights: frozenset[str] = frozenset()
    trained_ends: frozenset[str] = frozenset()
    """How embedding and head can be trained beside adapters (`lora.ends`)."""
    """Formats of frozen weights beside LoRA's; none without LoRA."""
    degree_rules: tuple[Rule, ...] = ()
    """Rules on degrees, beside those that every plan keeps."""
    plan_rules: tuple[Rule, ...] = ()
    """Rules on whole skeletons, beside those that every plan keeps."""
    rule_words: Mapping[str, Words] = field(default_factory=dict, hash=False)
    """Its words for the rules that every plan keeps, by their names."""
    context_exchanges: tuple[ContextExchange, ...] = ("ring",)
    """How the ranks of a sequence get what their attention needs; the first unless a
    spec says otherwise.

    `ring`: keys and values go round, hidden behind the attention that they feed (Liu et
    al. 2023, Ring Attention, section 3). `gather`: keys and values of all are gathered
    first (Dubey et al. 2024, The Llama 3 Herd of Models, section 3.3.2). `ulysses`:
    all-to-alls exchange tokens for heads before attention, and back after it (Jacobs et
    al. 2023, DeepSpeed Ulysses, section 3.2).
    """
    has_deepep: bool = False
    """Whether tokens may be sent to each node once (DeepEP, HybridEP)."""
    offloads: tuple[int, ...] = field(
        default=(),
        metadata=limiting("offload_supported", lambda _: "some state is not offloaded"),
    )
    """Codes of the offloads that it supports; its rules say under which conditions."""
    selective_scope: RecomputeScope = field(
        default=ANY_NUMBER,
        metadata=limiting(
            "recompute_scope", lambda it: f"selective recomputation: {it.sentence}"
        ),
    )
    """How many layers of each stage may be recomputed selectively."""
    full_scope: RecomputeScope = field(
        default=ANY_NUMBER,
        metadata=limiting(
            "recompute_scope", lambda it: f"full recomputation: {it.sentence}"
        ),
    )
    """How many layers of each stage may be recomputed in full."""
    splits_experts: bool = field(
        default=False,
        metadata=limiting("expert_parts_supported", lambda _: "experts are whole"),
    )
    """Whether GPUs of tensor parallelism may share an expert."""
    has_segments: bool = field(
        default=False,
        metadata=limiting(
            "recompute_segments_supported",
            lambda _: "full recomputation keeps the input of every layer",
        ),
    )
    """Whether full recomputation may keep the input of every n-th layer alone."""
    stops_recompute: Literal["never", "compiled", "always"] = "never"
    """When a layer that is recomputed leaves out its last matmul.

    Nothing in the backward needs its result, only its input. Compilers see that, and
    PyTorch's checkpoints that are not reentrant stop at the last tensor that is needed
    (torch 2.13 utils/checkpoint.py, `early_stop`).
    """
    has_uneven_chunks: bool = field(
        default=False,
        metadata=limiting("chunks_even", lambda _: "chunks of stages are equal"),
    )
    """Whether some chunks of interleaved stages may have a layer less than others."""
    makes_v: bool = False
    """Whether it launches schedules under which the stages make a V."""
    partition: Partition | None = field(
        default=None, metadata=limiting(STAGE_LAYERS, lambda split: split.sentence)
    )
    """How layers are split over stages; None where users say it."""
    fused: Fused = frozenset({"norm"})
    """Operations that are one kernel unless a spec says otherwise. PyTorch fuses norms
    from 2.9 on without compilation (`torch.nn.functional.rms_norm` on GPUs)."""
    overlap: Overlaps = frozenset({"gradients", "parameters"})
    """Traffic that hides behind compute unless a spec says otherwise: what the launches
    that we write ask of the framework."""
    hides_experts: Callable[[Skeletons], Bools] = every_row
    """Rows for which it can overlap expert all-to-all with compute."""
    asks_overlap: bool = False
    """Whether gradients and weights hide only where a launch asks for it."""
    always_hides: Mapping[int, Overlaps] = field(default_factory=dict, hash=False)
    """By ZeRO stage, traffic that hides whatever a launch asks."""
    has_plain_norm: bool = False
    """Whether its norms are PyTorch's, which are one kernel since version 2.9."""
    joins_norms: bool = False
    """Whether a fused norm runs with the matmul after it, as Transformer Engine's."""
    loss: LossPeak = EAGER_LOSS
    """What an unfused loss takes at its peak."""
    compiled_loss: LossPeak | None = None
    """The same of a loss that is compiled with the model; None where it is not."""
    loss_chunks: int = 1
    """Parts of the sequence that head and loss take one after another."""
    is_loss_parallel: bool = True
    """Whether the loss is computed of logits that tensor parallelism has split."""
    selective: Selective | None = field(
        default=None,
        metadata=limiting(
            "recompute_supported",
            lambda _: "not every module can be recomputed",
            lambda some, ideal: some.joined(ideal) if some else ideal,
        ),
    )
    """Selective recomputation; None if layers are recomputed whole or not at all."""
    overhead_gib: float = MANY_GROUPS_OVERHEAD_GIB
    """CUDA context and the buffers of communicators on each GPU, GiB."""
    data_parallel_overhead_gib: float = math.inf
    """The overhead where nothing but data parallelism communicates, if less, GiB."""
    prefetched_params: float = math.inf
    """Most parameters that ZeRO-3 gathers ahead; infinite for the whole next layer
    (PyTorch FSDP, `backward_prefetch`)."""
    updated_params: float = math.inf
    """Most parameters of a GPU that an update takes at a time under ZeRO-3."""
    waits_for_inputs: bool = False
    """Whether kernels wait while the input of a layer goes to the host or comes back.

    PyTorch's `save_on_cpu` copies so (torch 2.13 autograd/graph.py). prime-rl's steps
    with 64 k tokens take as much longer with it as PCIe takes for the inputs.
    """
    has_cast_weights: bool = False
    """Whether matmuls use a cast copy of fp32 parameters."""
    shards_gradients_after_pipeline: bool = False
    """Whether beside a pipeline gradients of all micro-batches add up unsharded, and
    weights stay gathered, until the last micro-batch.

    PyTorch's pipelines do so at every stage of ZeRO (torch 2.14
    distributed/pipelining/stage.py, `backward_maybe_with_nosync`).
    """
    has_no_sync: bool = False
    """Whether gradients of micro-batches may add up unsharded under ZeRO-2 and 3."""
    keeps_whole_ends: bool = False
    """Whether ZeRO-3 keeps embedding and head whole from forward to backward."""
    makes_gradients_late: bool = False
    """Whether gradients are made in the backward and freed after the step, and moments
    in the first update, as PyTorch does without buffers."""
    has_gradient_buffers: bool = False
    """Whether there is one gradient in the compute precision for every shape of weight,
    which all layers share, beside those of the step.

    Transformer Engine adds gradients to those of the step as it computes them, and
    returns this buffer to PyTorch (`get_dummy_wgrad`, since version 2.3).
    """
    keeps_stage_outputs: bool = False
    """Whether a stage keeps the results that it has sent on until its backward."""
    keeps_fp8_copies: bool = False
    """Whether fp8 copies are kept, as Transformer Engine does.

    It casts an input to two copies, one as stored and one transposed, which Hopper's
    8-bit matmuls need for gradients of weights; it saves one and drops the other
    (transformer_engine/pytorch/module/linear.py, `update_usage`). It keeps both copies
    of a weight over all micro-batches (`is_first_microbatch`). torchao instead saves
    inputs in 16 bits and casts them again (torchao/float8/float8_linear.py).
    """
    keeps_fp8_inputs: bool = False
    """Whether a matmul in fp8 saves its input in 8 bits, where weights have no copies.

    llm.q does (b77d969 src/models/llama_run_state.cpp, `keep_fwd_quant_tensors`).
    """
    layer_dispatch: float = 1.0
    """Host seconds to dispatch a layer over those of plain PyTorch operations."""
    whole_layer_dispatch: float | None = None
    """The dispatch of a layer under ZeRO-2 and 3, and beside adapters, where no tensor
    parallelism or pipeline needs a model that comes with the framework; None where it
    is `layer_dispatch` too."""
    hook_dispatch: float = 0.0
    """The dispatch of hooks before and after modules with parameters, under ZeRO-3."""
    text_loops: TextLoops | None = None
    """What its loops over packed texts start, in versions that have them
    (`training.text_loops`)."""
    bucket_params: float = 1.0
    """Parameters whose gradients, or new weights, are sent at once where those of
    several layers are."""
    deals_tensors: bool = False
    """Whether ZeRO-1 gives every rank whole tensors, in place of equal parts."""
    expert_bias_passes: float = 1.0
    """Passes over the results of experts that adding their biases takes, forward; the
    backward takes twice that. One kernel reads and writes them, and its backward reads
    gradients."""
    expert_limit_passes: float = 0.0
    """Passes over the inner width of experts that limiting it takes, forward; the
    backward takes twice that. One kernel limits and activates."""
    expert_limit_saved: int = 0
    """Numbers that limiting it saves for the backward, for each that is activated."""
    has_torch_experts: bool = False
    """Whether experts are operations of PyTorch: `torch._grouped_mm`, others that
    weight their results in fp32, and sums by index."""
    host_update: float = 1.0
    """Time of an update on the host over that of a fused kernel."""
    has_cuda_graphs: bool = False
    """Whether CUDA graphs replay kernels outside pipelines and experts, unless a spec
    says otherwise."""
    pads_vocabulary: bool = False
    """Whether the vocabulary is padded so that tensor cores read it at full speed."""
    newer_attention: AttentionKernel = "flash2"
    """Fused kernel of attention on GPUs with instructions newer than those of A100,
    unless a spec names one; on all others it is FlashAttention-2."""
    scores_by_head: Callable[[Spec, Shards], Bools] = no_shards
    """Where an indexer scores tokens by operations in fp32, head after head, in place
    of one kernel."""
    repeats_picked_core: bool = False
    """Whether the loss of an indexer that picks for other layers, too, runs the forward
    of attention once more."""
    has_compiled_attention: bool = False
    """Whether its usual attention is compiled by itself. To recomputation by operations
    it is one operation, whose results are also what its backward reads."""
    kernels: str = ""
    """The framework whose kernels it runs, where it has none.

    Measured efficiencies of kernels and links are those of who owns the kernels; costs
    of the host, and what hides behind compute, are those of this framework.
    """
    kin: str = ""
    """A word that frameworks share whose plans are alike, so that what was run with one
    was run with all; empty where plans are those of any framework."""
    programs: tuple[str, ...] = ()
    """Programs that train by it, which people name in its place; lower-case."""
    published_as: tuple[str, ...] = ()
    """Lower-case words by which publications name it, or a code base like it."""
    published_lora: tuple[str, ...] = ("attention", "mlp")
    """Matrices that published runs with LoRA are taken to adapt, if they do not say."""
    sequence_parallel_since: str | None = None
    """Date from which published runs with tensor parallelism are taken to have sequence
    parallelism, if they do not say; empty for always, None for never."""
    has_tuned_chunks: bool = False
    """Whether published runs without a micro-batch are taken to have chunks of one
    layer."""
    counts_ends_as_layers: bool = True
    """Whether embedding and head count as one layer each if layers do not divide."""

    def recompute_scope(self, mode: RecomputeMode, segment: int = 1) -> RecomputeScope:
        """Return how many layers of each stage may be recomputed in a mode."""
        if segment > 1:
            return IN_SEGMENTS
        if mode in REPEATS_LAYERS:
            return self.full_scope
        return self.selective_scope if mode == "selective" else ANY_NUMBER
