"""Memory costs: bytes per GPU of layers, ends of the model, and workspace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from meshwright.cost import offload
from meshwright.cost.activations import (
    head_saved_bytes,
    layer_input_bytes,
    layer_of,
    mtp_saved_bytes,
    on_one_gpu,
    saved_tensors,
    weighting_bytes,
)
from meshwright.cost.held_state import HeldState, held_state
from meshwright.cost.job import Job
from meshwright.cost.parameters_and_flops import mlp_inputs
from meshwright.cost.saved import Saved
from meshwright.cost.state import (
    is_loss_parallel,
    loss_chunks,
    loss_peak,
    stream_bytes,
)
from meshwright.cost.traffic import hidden_bytes
from meshwright.frameworks.base.framework import CONTEXT_GIB, GATHERED_LOGIT_BYTES
from meshwright.frameworks.base.registry import (
    framework_of,
    leading_columns,
    recomputed_bits,
)
from meshwright.plans.columns import Columns, Floats, Ints, Parts, added, total
from meshwright.plans.skeletons import MLP, Skeletons
from meshwright.spec.plan_fields import FULL_CPU
from meshwright.spec.spec import Spec
from meshwright.spec.units import GIB

PASSING = ("activations", "logits", "workspace")
"""Parts of memory that come and go within a step."""

RECOMPUTE_HOLES = 0.10
SHARDED_HOLES = 0.20
"""Holes over what comes and goes where layers are recomputed, on GPUs with all weights,
and with shards of them: medians of 20 and 36 readings, 0.07 to 0.12 and 0.18 to 0.25
(tenth to ninetieth percentile), of adapters whose logits are never whole
(fms-acceleration 876e2ed, a100_80gb_liger.csv: reserved less allocated memory). 119
runs of LLM Foundry that recompute nothing have filled their cards to the last percent
with none. What frees memory for other sizes is the subject of Guo et al. 2024 (GMLake,
section 2)."""

MATMUL_WORKSPACE_BYTES = 2 * 32 * 2**20
"""cuBLAS's workspaces of the threads of forward and backward, on Hopper and later
(PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp)."""


@dataclass(frozen=True)
class MemoryCosts(Columns):
    """Bytes on one GPU, one row per skeleton.

    A stage of n layers, r of them recomputed, with f micro-batches in flight holds
    n x layer + f x (n x activations - r x freed + outputs) + fixed, and `first` or
    `last` where it is an end of the pipeline (with last_activations of each micro-batch
    whose loss the last stage has in flight). To it comes part_segments for each of its
    chunks that a micro-batch is in, lead + f x lead_activations for each leading part,
    and beside_lead where there is one.
    """

    layer: Parts
    activations: Floats
    freed: Floats
    """Bytes per micro-batch that recomputing a layer frees."""
    outputs: Floats
    """Bytes per micro-batch that a stage keeps of the results that it has sent on."""
    part_segments: Floats
    """Bytes that the last segment of a chunk may keep beyond its share of an input."""
    lead: Parts
    """Difference of a leading part to repeated layers, which may be negative."""
    lead_activations: Floats
    """The same, per micro-batch."""
    beside_lead: Parts
    leading: Ints
    """Leading parts of the model: see `Model.leading_parts`."""
    most_leading: Ints
    """The most of them that a stage holds: see `most_leading_parts`."""
    first: Parts
    last: Parts
    last_activations: Floats
    fixed: Parts
    host_layer: Floats
    """Bytes of a layer on the host of the GPU; the others are those beside them."""
    host_lead: Floats
    host_first: Floats
    host_last: Floats
    holes: Floats
    """Bytes that the allocator cannot use, over those that come and go between which
    they lie: activations, logits and workspace, which the columns above have with
    their holes."""

    def with_holes(self, holes: Floats) -> MemoryCosts:
        """Return the costs of rows that had no holes, with a share of them."""
        more = 1 + holes

        def passing(parts: Parts) -> Parts:
            kept = parts.get("workspace")
            return parts if kept is None else {**parts, "workspace": more * kept}

        return replace(
            self,
            activations=more * self.activations,
            freed=more * self.freed,
            outputs=more * self.outputs,
            part_segments=more * self.part_segments,
            lead_activations=more * self.lead_activations,
            beside_lead=passing(self.beside_lead),
            first=passing(self.first),
            last=passing(self.last),
            last_activations=more * self.last_activations,
            fixed=passing(self.fixed),
            holes=holes,
        )


def apart_from_holes(parts: Parts, holes: Floats) -> Parts:
    """Return the bytes of parts with their holes as a part of their own."""
    if not holes.any():
        return parts
    passing = {name: parts[name] / (1 + holes) for name in PASSING if name in parts}
    lost = {"fragments": holes * total(passing)}
    return {**parts, **passing, **lost}


def memory_costs(job: Job, rows: Skeletons) -> MemoryCosts:
    """Return the bytes that make up every stage of every skeleton."""
    spec, framework = job.spec, framework_of(job.spec)
    tokens = rows.shards.tokens(spec.training.seq_len)
    bits = recomputed_bits(spec, rows)
    tensors = saved_tensors(spec, is_dense=False)
    saved, kept = _activation_bytes(job, rows, tensors, 0 * bits, bits)
    held = held_state(job, rows)
    working = _at_work(job, rows, tokens * _repeated_at_once(rows, saved, kept))
    working = working + _results(job, rows, tokens)
    loss = loss_memory(job, rows)
    lead = _leading_activations(job, rows, bits, tokens, saved, kept)
    outputs = hidden_bytes(job, rows) / rows.shards.sequence_shards
    is_full = rows.repeats_layers
    stays = 1 - offload.offloaded_share(spec)
    left = (1 - stays) * spec.model.n_layers * tokens * kept
    copied = np.where(stays < 1, tokens * kept, 0.0)
    inputs = offload.inputs_on_host(spec, rows)
    moving = held.in_transit + copied + offload.INPUTS_IN_FLIGHT * inputs
    has_outputs = (rows.pp > 1) & framework.keeps_stage_outputs
    turns = _Turns(stays * spec.model.n_layers * tokens * kept, loss.peak(working))
    costs = MemoryCosts(
        layer=held.layer,
        activations=stays * tokens * saved,
        freed=stays * tokens * (saved - kept),
        outputs=np.where(has_outputs, outputs, 0.0),
        part_segments=tokens * kept * np.where(is_full, rows.recompute_segment - 1, 0),
        lead=held.lead,
        lead_activations=lead.activations,
        beside_lead=added([held.beside_lead, lead.working]),
        **leading_columns(spec, rows),
        first=held.first,
        last=added([held.last, {"workspace": loss.peak_beyond(working)}]),
        last_activations=loss.held + _further_activations(job, rows, kept, loss),
        fixed={
            **turns.saved(job, rows, held, working, moving),
            "workspace": working + moving + MATMUL_WORKSPACE_BYTES,
            "overhead": _overhead_gib(spec, rows) * GIB,
        },
        host_layer=held.host_layer + inputs,
        host_lead=held.host_lead,
        host_first=held.host_first + left,
        host_last=held.host_last,
        holes=np.zeros(len(rows)),
    )
    expands = spec.training.expandable_segments
    return costs if expands else costs.with_holes(_holes(rows))


def _holes(rows: Skeletons) -> Floats:
    """Return `MemoryCosts.holes` of PyTorch's allocator where segments do not expand.

    The inputs that recomputed layers keep are cut out of blocks that the tensors of
    other layers have left, and the rest is too small for tensors that come later.
    Without recomputation tensors go in the reverse of the order in which they came.
    What ZeRO-3 gathers and reduces has streams, and memory, of its own.
    """
    sharding = rows.sharding
    is_split = sharding.shards_weights & (sharding.members > 1)
    holes = np.where(is_split, SHARDED_HOLES, RECOMPUTE_HOLES)
    return np.where(rows.repeats_layers, holes, 0.0)


class _Turns(NamedTuple):
    """Bytes that a micro-batch has and that others take the place of, (rows,)."""

    layers: Floats
    """What all layers keep under recomputation."""
    at_end: Floats
    """The largest of loss, head and a layer at work, which follow each other."""

    def saved(
        self,
        job: Job,
        rows: Skeletons,
        held: HeldState,
        working: Floats,
        moving: Floats,
    ) -> Parts:
        """Return the bytes, negative, that are not there while all of these are.

        PyTorch makes the gradient of a layer in its backward, when the loss is done and
        what later layers had saved is gone, and frees it after the step. With one
        micro-batch both follow each other, and the larger counts. Replicas have buckets
        of gradients from the start (torch/nn/parallel/distributed.py).

        The temporaries of an update follow all passes.
        """
        model, framework = job.spec.model, framework_of(job.spec)
        is_alone = rows.pp == 1
        layers = model.n_layers - model.first_dense_layers
        is_made = (rows.dp * rows.cp == 1) | rows.sharding.shards_gradients
        is_late = is_alone & (rows.microbatches == 1) & is_made
        is_late = is_late & framework.makes_gradients_late
        place = layers * self.layers / model.n_layers + self.at_end - working
        made = np.where(is_late, layers * held.layer["gradients"], 0.0)
        late = np.minimum(made, place)
        rest = self.layers + self.at_end + moving - late
        update = np.where(is_alone, np.minimum(held.update, rest), 0.0)
        return {"gradients": -late, "optimizer": -update}


def _results(job: Job, rows: Skeletons, tokens: Floats) -> Floats:
    """Return the bytes of results of recomputed layers that stay until all are done.

    With reentrant checkpoints and frozen weights the hooks of PyTorch's first FSDP on
    the input of a layer that was run again hold what belongs to the graph (torch 2.13
    distributed/fsdp/_runtime_utils.py, `_register_post_backward_reshard_only_hook`).
    """
    spec, lora = job.spec, job.spec.training.lora
    if lora is None or not lora.keeps_results:
        return np.zeros(len(rows))
    width = stream_bytes(spec) * spec.model.d_model / rows.shards.sequence_shards
    layers = -(-spec.model.n_layers // rows.pp)
    return np.where(rows.repeats_layers, layers * tokens * width, 0.0)


def _overhead_gib(spec: Spec, rows: Skeletons) -> Floats:
    """Return the memory of CUDA's context, and of communicators if there are any."""
    framework = framework_of(spec)
    usual = framework.overhead_gib
    if spec.cluster.gpus == 1:
        return np.full(len(rows), min(usual, CONTEXT_GIB))
    is_alone = rows.tp * rows.pp * rows.cp * rows.ep == 1
    few = min(usual, framework.data_parallel_overhead_gib)
    return np.where(is_alone, few, usual)


def _further_activations(
    job: Job, rows: Skeletons, kept: Floats, loss: LossMemory
) -> Floats:
    """Return the bytes per micro-batch of layers that predict further tokens.

    Each has what its layer keeps, the stream and the next embedding as two norms read
    them, both side by side as a matmul reads them, and logits and a loss. Recomputed as
    a whole it keeps stream and embedding.
    """
    spec, count = job.spec, job.spec.model.mtp_layers
    if not count:
        return np.zeros(len(rows))
    tokens = rows.shards.tokens(spec.training.seq_len)
    two_inputs = 2 * layer_input_bytes(spec, rows.shards)
    usual = kept + mtp_saved_bytes(spec, rows.shards)
    each = np.where(rows.repeats_layers, two_inputs, usual)
    return count * (tokens * each + loss.held)


class _Lead(NamedTuple):
    """Bytes that a stage with leading dense layers holds beyond repeated ones."""

    activations: Floats
    """Bytes per layer and micro-batch in flight."""
    working: Parts
    """Bytes of an MLP that is recomputed, beyond those of a recomputed layer."""


def _leading_activations(
    job: Job,
    rows: Skeletons,
    bits: Ints,
    tokens: Floats,
    saved: Floats,
    kept: Floats,
) -> _Lead:
    """Return the difference of leading dense layers to repeated ones, given per token.

    Every recomputed layer counts as freeing what a repeated layer frees. Leading layers
    that free less are taken to be among the recomputed ones, which is safe: no stage
    holds less than its layers keep. Where `mlp` is recomputed, they always free that.
    """
    if not job.spec.model.first_dense_layers:
        return _Lead(np.zeros(len(rows)), {})
    tensors = saved_tensors(job.spec, is_dense=True)
    dense_saved, dense_kept = _activation_bytes(job, rows, tensors, bits & MLP, bits)
    more = np.maximum(dense_saved - saved, dense_kept - kept)
    whole = on_one_gpu(tensors, job.spec, rows.shards)
    working = np.maximum(whole - dense_saved - (saved - kept), 0.0)
    return _Lead(tokens * more, {"workspace": tokens * working})


def _activation_bytes(
    job: Job,
    rows: Skeletons,
    tensors: list[Saved],
    always: Ints,
    recomputed: Ints,
) -> tuple[Floats, Floats]:
    """Return bytes per token and layer: saved tensors, and kept when recomputed.

    Bits say what is repeated of a layer that is not recomputed, and of one that is.
    """
    spec, shards = job.spec, rows.shards
    full = layer_input_bytes(spec, shards) / rows.recompute_segment
    full = np.where(rows.recompute == FULL_CPU, 0.0, full)
    saved = selective = on_one_gpu(tensors, spec, shards, always)
    if (recomputed != always).any():
        selective = on_one_gpu(tensors, spec, shards, recomputed)
    return saved, np.where(rows.repeats_layers, full, selective)


def _repeated_at_once(rows: Skeletons, saved: Floats, kept: Floats) -> Floats:
    """Return the bytes per token that are there again while the backward needs them.

    They are those of one layer, or of all layers of a segment, without its input.
    """
    return rows.recompute_segment * (saved - kept)


def _at_work(job: Job, rows: Skeletons, freed: Floats) -> Floats:
    """Return the bytes of recomputed layers and of gradients in the backward.

    The backward of an activation has the gradients of its inputs and of its result. The
    latter takes the place of the result itself, which the last matmul has saved, unless
    that matmul is frozen and saves nothing.
    """
    spec, model = job.spec, job.spec.model
    tokens = rows.shards.tokens(spec.training.seq_len)
    has_place = layer_of(spec).matmul_input("down_proj") > 0
    parts = spec.training.mlp_chunks if model.moe is None else 1
    inner = (mlp_inputs(model) + (not has_place)) * model.d_ff / parts
    if (mixer := model.mixing_space) is not None:
        inner = max(inner, mixer.input_width)
    widest = (model.d_model + inner / rows.tp) * stream_bytes(spec)
    return freed + tokens * np.maximum(widest, weighting_bytes(spec, rows.shards))


class LossMemory(NamedTuple):
    """Bytes of the head and its loss on the last stage, (rows,)."""

    held: Floats
    """Bytes of a micro-batch at the peak of its loss: logits and inputs of the head."""
    at_loss: Floats
    """The same with what the head has gathered."""
    at_head: Floats
    """In the backward of the head, when the loss is done."""

    def peak(self, working: Floats) -> Floats:
        """Return the largest of loss, backward of the head, and working layers."""
        return np.maximum(np.maximum(self.at_loss, self.at_head), working)

    def peak_beyond(self, working: Floats) -> Floats:
        """Return the peak of the last stage beyond `held` and a working layer.

        Loss, backward of the head and backward of layers follow each other, so that
        the largest of them counts once. The result is negative where both are more
        than that.
        """
        return self.peak(working) - self.held - working


def loss_memory(job: Job, rows: Skeletons) -> LossMemory:
    """Return the memory of head and loss.

    Logits of one part of the sequence are there at a time where the loss is chunked.
    Those of a frozen reference come and go between the forward of what is trained,
    whose logits are there, and its loss (trl f2cd577 trainer/dpo_trainer.py,
    `_compute_loss`).

    The head keeps the input of the final norm and of its matmul. Its backward holds the
    gradients of the logits in the compute precision, and that of its input; under
    sequence parallelism also the whole input, which is gathered again, and its share
    of the gradient (Megatron-LM core 0.19.2, tensor_parallel/layers.py,
    `LinearWithGradAccumulationAndAsyncCommunication`).
    """
    spec, tp = job.spec, rows.tp
    tokens = rows.shards.tokens(spec.training.seq_len)
    element = stream_bytes(spec)
    chunks = loss_chunks(spec)
    shards = np.where(is_loss_parallel(spec), tp, 1)
    numbers = tokens / chunks * spec.model.vocab / shards
    inputs = tokens * head_saved_bytes(spec, rows.shards)
    hidden = hidden_bytes(job, rows)
    is_split = rows.sequence_parallel & (tp > 1)
    gathered = np.where(is_split, hidden, 0.0)
    if chunks > 1:
        # The gradients of all chunks are put together in fp32.
        gathered = gathered + 4 * tokens * spec.model.d_model
    gathering = np.where((tp > 1) & (shards == 1), GATHERED_LOGIT_BYTES, 0)
    peak = loss_peak(spec)
    beside = np.where(shards > 1, peak.parallel, peak.whole)
    held = numbers * (element + beside + gathering) + inputs
    forwards = spec.training.forwards * numbers * element + inputs
    at_loss = np.maximum(held, forwards) + gathered
    gradients = numbers * element + hidden + np.where(is_split, hidden / tp, 0.0)
    return LossMemory(held=held, at_loss=at_loss, at_head=inputs + gathered + gradients)
