"""Bytes on one GPU of each stage, and on its host."""

from __future__ import annotations

import math
from collections import defaultdict

from tests.recomputed import lora, traffic
from tests.recomputed.activations import Layer, bytes_left, layer_bytes, on_host
from tests.recomputed.case import Case
from tests.recomputed.parameters import Share, fixed_copy, mlp_numbers
from tests.recomputed.schedule import head_stage, most_held
from tests.recomputed.state import sharded

Parts = dict[str, float]

GIB = 2**30
OFFLOADS = ("none", "optimizer", "gradients", "parameters")
"""Each takes what the ones before it take, too."""


def leaves(case: Case, what: str) -> bool:
    """Whether a part of the state lives on the host."""
    return OFFLOADS.index(case.plan.offload) >= OFFLOADS.index(what)


def stays(case: Case, what: str) -> float:
    """The share of what the update reads that the GPU holds, for what it updates.

    The first FSDP holds gradients that it has copied until the backward is done.
    """
    if what == "gradients" and case.training.holds_gradients:
        return 1.0
    return 1 - case.training.offload_fraction if leaves(case, what) else 1.0


def streams_weights(case: Case) -> bool:
    """Whether weights come to the GPU for each use: ZeRO-2 has them once a step."""
    return leaves(case, "parameters") and case.plan.zero != 2


def stage_bytes(case: Case, stage: int) -> Parts:
    parts: Parts = defaultdict(float)
    is_last = stage == head_stage(case.plan)
    for is_leading in case.layers(stage):
        _add_state(case, parts, traffic.layer_shares(case, is_leading), is_layer=True)
    if stage == 0:
        _add_state(case, parts, traffic.embedding_shares(case), is_layer=False)
    if is_last:
        _add_state(case, parts, traffic.head_shares(case), is_layer=False)
        for _ in range(case.model.mtp_layers):
            _add_state(case, parts, traffic.further_shares(case), is_layer=True)
    parts["activations"] = _activations(case, stage)
    working = _working_layer(case) + _results_that_stay(case)
    late = _gradients_that_come_later(case, working)
    # Where all come later, sums of them in another order leave nothing.
    is_all = math.isclose(parts["gradients"], late)
    parts["gradients"] = 0.0 if is_all else parts["gradients"] - late
    parts["optimizer"] -= _update_after_all(case, working, late)
    parts["workspace"] += max(working, *_at_the_end(case)) if is_last else working
    parts["workspace"] += _in_transit(case) + _buffers(case, stage)
    # cuBLAS has one workspace for each of two threads.
    parts["workspace"] += 64 * 2**20
    parts["workspace"] += on_host(case).moving + _whole_ends(case, stage)
    if case.model.first_dense_layers and any(case.layers(stage)):
        parts["workspace"] += _larger_lead(case)
    parts["logits"] = 0.0
    if is_last:
        held = most_held(case.plan, stage, head_alone=True)
        each = _logits_of_one(case) + _saved_further(case)
        parts["logits"] = held * (_logits_of_one(case) + each * case.model.mtp_layers)
        parts["workspace"] -= _logits_of_one(case)
    # A context, and communicators: two of FSDP's, eight of others, none at best.
    usual = {"torchtitan": 1.5, "fsdp": 1.5, "ideal": 1.1}
    parts["overhead"] = usual.get(case.spec.framework, 3.0) * GIB
    if case.spec.framework == "generic" and case.is_data_parallel_alone:
        parts["overhead"] = 1.5 * GIB
    if not case.training.expandable_segments:
        _add_holes(case, parts)
    return dict(parts)


def _add_holes(case: Case, parts: Parts) -> None:
    """Add what the allocator loses between the tensors of recomputed layers."""
    plan = case.plan
    is_whole = plan.recompute in ("full", "full-cpu")
    is_split = plan.zero == 3 and plan.dp_shard * plan.cp > 1
    share = (0.2 if is_split else 0.1) if is_whole else 0.0
    passing = sum(parts[name] for name in ("activations", "logits", "workspace"))
    if share:
        parts["fragments"] = share * passing


def _add_state(case: Case, parts: Parts, shares: list[Share], is_layer: bool) -> None:
    """Add what stays on the GPU of some parameters."""
    zero = case.plan.zero
    fixed = fixed_copy(case, shares)
    for share in [*shares, *fixed]:
        state = share.state
        held = sharded(case, state, share.shards, zero)
        weights = held.weights
        if state.cast:
            # FSDP keeps fp32 in shards from stage 2 on, what it casts in stage 3 alone.
            weights = state.weights / (share.shards if zero >= 2 else 1)
            weights += state.cast if zero < 3 or case.keeps_weights else 0
        if leaves(case, "parameters"):
            # ZeRO-2 keeps gathered weights on the GPU until the step ends.
            weights = state.gathered if zero == 2 else 0.0
        has_copies = case.keeps_fp8 and case.training.fp8_weights == "copies"
        has_copies = has_copies and not share.is_adapter and share not in fixed
        if is_layer and has_copies and zero < 3 and not streams_weights(case):
            weights += 1 + 1  # as stored and transposed
        parts["weights"] += share.numbers * weights
        each = state.reduced if case.reduces_once else held.gradients
        parts["gradients"] += share.numbers * each * stays(case, "gradients")
        later = share.state.update / (share.shards if zero >= 1 else 1)
        optimizer = held.optimizer - (1 - at_once(case)) * later
        parts["optimizer"] += share.numbers * optimizer * stays(case, "optimizer")
    for name in ("weights", "gradients", "optimizer"):
        parts[name] += 0.0


def host_bytes(case: Case, stage: int) -> float:
    shares = [
        layer_share
        for lead in case.layers(stage)
        for layer_share in traffic.layer_shares(case, lead)
    ]
    shares += traffic.embedding_shares(case) if stage == 0 else []
    if stage == head_stage(case.plan):
        shares += traffic.head_shares(case)
        shares += traffic.further_shares(case) * case.model.mtp_layers
    total = case.plan.stages[stage].layers * on_host(case).left
    for share in [*shares, *fixed_copy(case, shares)]:
        # The host of ZeRO-2 has shards of the weights that the GPU has gathered.
        is_gathered = case.plan.zero == 2 and leaves(case, "parameters")
        stage = 3 if is_gathered else case.plan.zero
        held = sharded(case, share.state, share.shards, stage)
        if leaves(case, "optimizer"):
            total += case.training.offload_fraction * share.numbers * held.optimizer
        if leaves(case, "gradients"):
            total += share.numbers * held.gradients
        if leaves(case, "parameters"):
            total += share.numbers * held.weights
    return total


def _activations(case: Case, stage: int) -> float:
    """What all micro-batches in flight have saved on a stage."""
    usual = layer_bytes(case, case.is_dense(False))
    lead = layer_bytes(case, True)
    # Leading layers always run their MLP again where any layer does.
    lead_plain = bytes_left(case, True, case.repeats & {"mlp"})
    saved = 0.0
    for is_leading in case.layers(stage):
        saved += usual.plain
        if is_leading:
            # A plan counts recomputed layers, and does not say which they are: a
            # leading layer is taken to be whichever of the two leaves more.
            saved += max(lead_plain - usual.plain, lead.kept - usual.kept)
    # Without a pipeline all of them lie on the only stage.
    saved -= case.training.offload_activations * usual.plain
    segment = case.plan.recompute_segment
    for _ in range(case.plan.stages[stage].recompute_layers):
        saved -= usual.plain - usual.kept / segment
    # The last segment of each chunk may have one layer alone, and keeps a whole input.
    saved += case.plan.vpp * (segment - 1) * usual.kept / segment
    if case.spec.framework == "deepspeed" and case.plan.pp > 1:
        # Its pipeline holds what a stage has sent on until the backward.
        saved += case.own_tokens * case.model.d_model * case.element
    return saved * most_held(case.plan, stage) / case.plan.vpp


def _results_that_stay(case: Case) -> float:
    """What hooks hold of layers that ran again, until the backward is done."""
    if case.plan.recompute not in ("full", "full-cpu") or case.training.lora is None:
        return 0.0
    layers = math.ceil(case.model.n_layers / case.plan.pp)
    one = case.own_tokens * case.model.d_model * case.stream
    return layers * one if case.training.lora.keeps_results else 0.0


def _left_by_layers(case: Case, count: int) -> float:
    """The least that some layers leave of one micro-batch on the only stage."""
    left = layer_bytes(case, case.is_dense(False)).kept / case.plan.recompute_segment
    return count * left * (1 - case.training.offload_activations / case.model.n_layers)


def _gradients_that_come_later(case: Case, working: float) -> float:
    """Gradients of layers that are not there while logits and activations are.

    They are of layers that are all alike, with one micro-batch in a step; only code
    without buffers does so, and not on replicas.
    """
    plan = case.plan
    is_made = plan.zero >= 2 or plan.dp_shard * plan.dp_replicate * plan.cp == 1
    if case.spec.framework not in ("generic", "fsdp") or not is_made:
        return 0.0
    if plan.pp * plan.microbatches > 1:
        return 0.0
    count = case.model.n_layers - case.model.first_dense_layers
    made = 0.0
    for share in traffic.layer_shares(case, False):
        each = sharded(case, share.state, share.shards, plan.zero).gradients
        made += share.numbers * (share.state.reduced if case.reduces_once else each)
    place = _left_by_layers(case, count) + max(working, *_at_the_end(case)) - working
    return min(count * made * stays(case, "gradients"), place)


def _update_after_all(case: Case, working: float, late: float) -> float:
    """Temporaries of an update that take the place of what the passes have."""
    if case.plan.pp > 1:
        return 0.0
    shares = [
        one for lead in case.layers(0) for one in traffic.layer_shares(case, lead)
    ]
    shares += traffic.embedding_shares(case) + traffic.head_shares(case)
    shares += traffic.further_shares(case) * case.model.mtp_layers
    made = 0.0
    for share in shares:
        shards = share.shards if case.plan.zero >= 1 else 1
        made += share.numbers * share.state.update / shards
    made *= stays(case, "optimizer") * at_once(case)
    there = _left_by_layers(case, case.model.n_layers) - late
    there += max(working, *_at_the_end(case)) + _in_transit(case) + on_host(case).moving
    return min(made, there)


def at_once(case: Case) -> float:
    """The share of a rank's parameters in a group of 1e9, which DeepSpeed updates."""
    if case.spec.framework != "deepspeed" or case.plan.zero < 3:
        return 1.0
    shares = [
        one for lead in case.layers(0) for one in traffic.layer_shares(case, lead)
    ]
    shares += traffic.embedding_shares(case) + traffic.head_shares(case)
    shares += traffic.further_shares(case) * case.model.mtp_layers
    trained = sum(o.numbers / o.shards for o in shares if o.state.is_trained)
    return min(1.0, 1e9 / trained) if trained else 1.0


def _logits_of_one(case: Case) -> float:
    """Logits and loss of one micro-batch at their peak, and what the head read."""
    framework = case.spec.framework
    is_split = case.plan.tp > 1 and case.is_loss_parallel
    loss: float = 12
    if "loss" in case.fused or framework == "megatron":
        loss = 4
    elif framework == "torchtitan" and case.training.compile:
        # The gradient in 16 bits; one of zeros in 32, and its sum with exponentials.
        loss = 4 + 4 if is_split else 2
    elif framework == "torchtitan":
        # Logarithms, a gradient of zeros, exponentials, and the sum of the last two.
        loss = 4 + 4 + 4 + 4 - 2 if is_split else 10
    if case.training.loss_bytes is not None:
        loss = case.training.loss_bytes
    if case.plan.tp > 1 and not case.is_loss_parallel:
        # What is gathered of each logit, and its gradient.
        loss += 2 + 2
    logits = _logits_at_once(case) * (case.stream + loss)
    return logits + _read_by_the_head(case)


def _saved_further(case: Case) -> float:
    """What a prediction of one token more keeps of a micro-batch beside logits."""
    of_stream = case.own_tokens * case.model.d_model
    if case.plan.recompute in ("full", "full-cpu"):
        whole = case.hidden_bytes if case.training.partition_activations else 0.0
        one = whole / case.plan.tp if whole else of_stream * case.stream
        return one + one
    saved = layer_bytes(case, case.is_dense(False)).kept
    is_wide = "norm" not in case.fused and case.model.norm == "rmsnorm"
    for _ in ("stream", "embedding"):
        saved += of_stream * (4 + 4 if is_wide else case.stream)
        saved += of_stream * Layer(case).linear_input("down_proj")
    return saved


def _logits_at_once(case: Case) -> float:
    ranks = case.plan.tp if case.is_loss_parallel else 1
    return case.tokens / case.loss_chunks * case.model.vocab / ranks


def _read_by_the_head(case: Case) -> float:
    """What the final norm and the head have read: the stream, and the same normed."""
    normed = case.own_tokens * case.model.d_model
    # In fp32: the input, and what is left of it.
    is_wide = "norm" not in case.fused and case.model.norm == "rmsnorm"
    read = 4 if is_wide else case.stream
    if case.training.lora is not None:
        # A frozen norm has no gradient that needs more, nor has a frozen head.
        return normed * (read + (case.stream if case.trains_ends else 0))
    return normed * (read + (4 if is_wide else 0) + case.stream)


def _at_the_end(case: Case) -> tuple[float, float]:
    """What the last stage holds at its loss, and in the backward of its head."""
    stream = case.hidden_bytes
    is_gathered = case.plan.sequence_parallel and case.plan.tp > 1
    whole_input = stream if is_gathered else 0.0
    if case.loss_chunks > 1:
        # Chunks write the gradients of their inputs into one tensor, in fp32.
        whole_input += 4 * case.tokens * case.model.d_model
    own_gradient = stream / case.plan.tp if is_gathered else 0.0
    logits = _logits_at_once(case) * case.stream
    at_loss = _logits_of_one(case)
    if case.training.has_reference:
        # Both models have run, and neither loss nor gradients are there.
        at_loss = max(at_loss, _read_by_the_head(case) + logits + logits)
    at_loss += whole_input
    at_head = _read_by_the_head(case) + whole_input + logits + stream + own_gradient
    return at_loss, at_head


def _buffers(case: Case, stage: int) -> float:
    """One 16-bit gradient for every shape of weight, which layers share."""
    if case.spec.framework != "megatron":
        return 0.0
    model, tp, total = case.model, case.plan.tp, 0.0
    if case.plan.zero < 2 and not leaves(case, "gradients"):
        # Attention, norms and the MLP that all tokens pass; then one of the experts.
        for layer_share in traffic.layer_shares(case, False):
            if layer_share.state.is_trained and layer_share.shard_group == "dp_shard":
                total += layer_share.numbers
            elif layer_share.state.is_trained:
                moe = model.moe
                assert moe is not None
                if tp > 1 or moe.shared_d_ff != moe.d_ff:
                    total += layer_share.numbers / (moe.n_experts / case.plan.ep)
    is_whole = case.training.lora is None
    if is_whole and model.first_dense_layers and any(case.layers(stage)):
        total += mlp_numbers(model, model.d_ff, tp)
    if stage == head_stage(case.plan) and case.trains_ends:
        total += model.vocab * model.d_model / tp
        total += 2 * model.d_model**2 / tp if model.mtp_layers else 0
    return total * case.element


def _working_layer(case: Case) -> float:
    """The layers that run again at once, and gradients on their way through them.

    They are as wide as what the residual stream and an MLP of `d_ff` hand on, also
    where there are experts. The MLP's result has a gradient, too, and lies in the place
    of its input if that is what the last matrix reads again.
    """
    usual = layer_bytes(case, case.is_dense(False))
    inputs = 2 if case.model.gated_mlp else 1
    inputs += Layer(case).linear_input("down_proj") == 0
    inner = inputs * case.model.d_ff / case.plan.tp
    if case.model.moe is None:
        inner /= case.training.mlp_chunks
    width = case.model.d_model + inner
    again = case.plan.recompute_segment * usual.plain - usual.kept
    return again + case.tokens * max(width * case.stream, _weighted_results(case))


def _weighted_results(case: Case) -> float:
    """Three fp32 numbers for each that torchtitan's experts return, of one token.

    They are its gradient, that before the weight, and a product to sum.
    """
    if not case.weights_experts_apart:
        return 0.0
    arrived = case.copies_on_the_fullest * case.plan.etp * case.model.d_model
    return 3 * 4 * arrived / case.sequence_shards


def _larger_lead(case: Case) -> float:
    """What the MLP of a leading layer takes that runs again, beyond another layer."""
    usual = layer_bytes(case, case.is_dense(False))
    mlp = layer_bytes(case, True).plain
    mlp -= bytes_left(case, True, case.repeats & {"mlp"})
    return max(mlp - (usual.plain - usual.kept), 0.0)


def _in_transit(case: Case) -> float:
    """Gathered weights of a layer and of the next, and gradients that wait."""
    total = lora.in_16_bits(case)
    for is_adapter in (False, True):
        shares = traffic.layer_shares(case, False)
        total += _shares_in_transit(
            case, [o for o in shares if o.is_adapter == is_adapter]
        )
    return total


def _whole_ends(case: Case, stage: int) -> float:
    """Gathered embedding and head, which accelerate leaves to the root of FSDP."""
    if case.plan.zero < 3 or case.spec.framework != "fsdp":
        return 0.0
    shares = traffic.head_shares(case) if stage == head_stage(case.plan) else []
    shares += traffic.embedding_shares(case) if stage == 0 else []
    shares += fixed_copy(case, shares)
    return sum(share.numbers * share.state.gathered for share in shares)


def _shares_in_transit(case: Case, shares: list[Share]) -> float:
    """The same of weights that have one state."""
    framework, params, total = case.spec.framework, 0.0, 0.0
    for share in shares:
        params, state = params + share.numbers, share.state
    if not shares:
        return 0.0
    if (case.plan.zero == 3 or streams_weights(case)) and not case.keeps_weights:
        # DeepSpeed fetches a bucket ahead, the others the next layer, the best none.
        most = {"deepspeed": 5e7, "ideal": 0.0}.get(framework, params)
        ahead = min(params, most)
        total += (params + ahead) * state.gathered
    if case.plan.zero >= 2 or leaves(case, "gradients"):
        each = state.gradients
        if framework in ("torchtitan", "fsdp") and state.is_trained:
            # Those of one layer come beside those of another that are passed on.
            each = case.element + state.reduced
        total += params * each
    return total
