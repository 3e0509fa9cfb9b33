"""Which collectives a rank takes part in: pass by pass, in the order of the layers."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.spec.model import Model
from tests.recomputed import parameters
from tests.recomputed.case import Case
from tests.recomputed.collectives import Call
from tests.recomputed.parameters import Share, Tensor
from tests.recomputed.state import State, frozen_state, state_of

PASSES = ("forward", "backward")


def layer_shares(case: Case, is_leading: bool) -> list[Share]:
    is_dense = case.is_dense(is_leading)
    tensors = parameters.layer(case.model, is_dense)
    if case.training.lora is None:
        return _trained(case, tensors)
    frozen = parameters.on_one_rank(case, tensors, frozen_state(case, True))
    small = parameters.adapters(case, is_dense)
    trained = parameters.on_one_rank(case, small, state_of(case))
    return frozen + [one._replace(is_adapter=True) for one in trained]


def further_shares(case: Case) -> list[Share]:
    return _trained(case, parameters.further(case.model))


def _trained(case: Case, tensors: Iterator[Tensor]) -> list[Share]:
    if case.training.optimizer != "muon":
        return parameters.on_one_rank(case, tensors, state_of(case))
    # Experts are matrices, with whatever biases they have.
    every = list(tensors)
    vectors = [one for one in every if one.is_vector and one.split != "ep"]
    matrices = [one for one in every if one not in vectors]
    state = state_of(case, of_matrix=True)
    return [
        *parameters.on_one_rank(case, iter(matrices), state),
        *parameters.on_one_rank(case, iter(vectors), state_of(case)),
    ]


def embedding_shares(case: Case) -> list[Share]:
    tensors = parameters.embedding(case.model)
    found = parameters.on_one_rank(case, tensors, _state_at_ends(case))
    return found + _copied_table(case)


def head_shares(case: Case) -> list[Share]:
    tensors = parameters.head(case.model, case.plan.pp)
    found = parameters.on_one_rank(case, tensors, _state_at_ends(case))
    return found + _copied_table(case)


def _copied_table(case: Case) -> list[Share]:
    """What PEFT trains beside the table that it keeps (its `modules_to_save`)."""
    lora = case.training.lora
    if lora is None or lora.ends == "frozen":
        return []
    state = state_of(case.without_master() if lora.ends == "bf16" else case)
    table = Tensor(case.model.vocab * case.model.d_model, "tp")
    return parameters.on_one_rank(case, iter([table]), state)


def _state_at_ends(case: Case) -> State:
    return frozen_state(case, False) if case.training.lora else state_of(case)


def layer(case: Case, is_leading: bool, passed: str) -> Iterator[Call]:
    """One pass of one micro-batch through one layer, but for ZeRO."""
    yield from _in_and_out_of_tensor_groups(case)  # attention
    if case.plan.cp > 1:
        yield from _over_sequence(case, passed)
    is_dense = case.is_dense(is_leading)
    if is_dense or _has_shared_experts(case.model):
        yield from _in_and_out_of_tensor_groups(case)  # the MLP
    if not is_dense and case.experts_exchange:
        # Tokens go to their experts and come back (Lepikhin et al. 2020, section 3.2);
        # of split experts all ranks get them, and sum the results (Megatron Core,
        # moe/token_dispatcher.py).
        tokens = case.own_tokens * case.copies_on_the_fullest
        whole = tokens * case.model.d_model * case.element
        for operation in ("all_gather", "reduce_scatter"):
            if case.plan.ep > 1:
                yield Call("ep", "all_to_all", "ep", whole)
            if case.plan.etp > 1:
                yield Call("ep", operation, "tp", case.plan.etp * whole)


def again(case: Case) -> Iterator[Call]:
    """What selective recomputation passes on in one repeated layer, forward alone."""
    repeats, model, plan = case.repeats, case.model, case.plan
    if (
        "mla_up_proj" in repeats
        and model.mla
        and plan.tp > 1
        and plan.sequence_parallel
    ):
        width = (model.mla.q_rank or model.d_model) + model.mla.kv_rank
        yield Call("tp", "all_gather", "tp", case.tokens * width * case.element)
    if model.moe is None and "mlp" in repeats:
        yield from _in_and_out_of_tensor_groups(case)
    if _has_shared_experts(model) and repeats & {"moe", "shared_experts"}:
        yield from _in_and_out_of_tensor_groups(case)
    for call in layer(case, False, "forward"):
        is_moved = call.part == "ep" and "moe" in repeats
        is_gathered = call.operation == "all_gather" and "by operations" in repeats
        if is_moved or is_gathered:
            yield call


def gathered_again(case: Case) -> Iterator[Call]:
    """A layer's input, of which a rank has kept its part; one for every segment."""
    if case.training.partition_activations and case.plan.recompute == "full":
        whole = case.hidden_bytes / case.plan.recompute_segment
        yield Call("tp", "all_gather", "tp", whole)


def lead_again(case: Case) -> Iterator[Call]:
    """The same in the MLP of a leading layer."""
    if "mlp" in case.repeats:
        yield from _in_and_out_of_tensor_groups(case)


def _has_shared_experts(model: Model) -> bool:
    """Experts that all tokens visit are split over the tensor group like an MLP."""
    return model.moe is not None and model.moe.shared_d_ff > 0


def _in_and_out_of_tensor_groups(case: Case) -> Iterator[Call]:
    """One sum over the tensor group (Shoeybi et al. 2019, section 3).

    Under sequence parallelism it is cut in two, on either side of the matmuls
    (Korthikanti et al. 2022, section 4.2.2). The backward has the same, mirrored.
    """
    if case.plan.tp == 1:
        return
    if not case.plan.sequence_parallel:
        yield Call("tp", "all_reduce", "tp", case.hidden_bytes)
        return
    yield Call("tp", "all_gather", "tp", case.hidden_bytes)
    yield Call("tp", "reduce_scatter", "tp", case.hidden_bytes)


def _over_sequence(case: Case, passed: str) -> Iterator[Call]:
    """Keys and values of all go round the ring of attention (Liu et al. 2023).

    The backward sees them again and adds up their gradients on the way. Where they were
    gathered instead, it still has them (Dubey et al. 2024, section 3.3.2).
    """
    model, sequences = case.model, case.plan.micro_batch
    value_dim = model.mla.v_dim if model.mla is not None else model.head_dim
    if case.exchange == "ulysses":
        yield from _heads_for_tokens(case, value_dim)
        return
    heads = model.n_kv_heads / case.kv_shards
    width = heads * (model.head_dim + value_dim)
    if model.mla is not None and (found := model.mla.indexer) is not None:
        # One key for all heads, which is the value, and the indexer's.
        width = model.mla.kv_rank + model.mla.rope_dim + found.head_dim
    whole = sequences * case.training.seq_len * width * case.element
    if passed == "forward" or case.exchange != "gather":
        yield Call("cp", "all_gather", "cp", whole)
    if passed == "backward":
        yield Call("cp", "reduce_scatter", "cp", whole)


def _heads_for_tokens(case: Case, value_dim: int) -> Iterator[Call]:
    """Jacobs et al. 2023, section 3.2: q, k and v before attention, its result after.

    Each rank needs a KV head of its own, so that few are sent several times.
    """
    model = case.model
    kv_heads = max(model.n_kv_heads, case.plan.cp)
    widths = {
        "queries": model.n_heads * model.head_dim,
        "keys": kv_heads * model.head_dim,
        "values": kv_heads * value_dim,
        "results": model.n_heads * value_dim,
    }
    for width in widths.values():
        whole = case.tokens * width * case.element / case.plan.tp
        yield Call("cp", "all_to_all", "cp", whole)


def embedding(case: Case, passed: str) -> Iterator[Call]:
    """Each rank looks up its part of the vocabulary; the parts are summed forward."""
    if case.plan.tp == 1:
        return
    if passed == "backward" and not case.trains_ends:
        return  # nothing before it has gradients
    if not case.plan.sequence_parallel:
        if passed == "forward":
            yield Call("tp", "all_reduce", "tp", case.hidden_bytes)
    else:
        operation = "reduce_scatter" if passed == "forward" else "all_gather"
        yield Call("tp", operation, "tp", case.hidden_bytes)


def head(case: Case, passed: str) -> Iterator[Call]:
    """Each rank has logits of its part; gradients of their input are summed."""
    if case.plan.tp == 1:
        return
    if not case.plan.sequence_parallel:
        if passed == "backward":
            yield Call("tp", "all_reduce", "tp", case.hidden_bytes)
    else:
        operation = "all_gather" if passed == "forward" else "reduce_scatter"
        yield Call("tp", operation, "tp", case.hidden_bytes)


def further(case: Case, passed: str) -> Iterator[Call]:
    """One pass through a layer that predicts one token more, and its logits.

    Two halves are joined by a matrix whose input and output all ranks need whole.
    """
    yield from layer(case, False, passed)
    for _ in ("input", "output"):
        yield from _in_and_out_of_tensor_groups(case)
    yield from embedding(case, passed)
    yield from head(case, passed)


def zero(case: Case, shares: list[Share], passed: str) -> Iterator[Call]:
    """What ZeRO does in every pass of every micro-batch.

    Stage 3 gathers weights for either pass, stages 2 and 3 reduce gradients after the
    backward (Rajbhandari et al. 2019, section 7.2).
    """
    stage = case.plan.zero
    for share in shares:
        state = share.state
        if stage == 3:
            whole = share.numbers * state.gathered
            yield Call("zero", "all_gather", share.shard_group, whole)
        waits = stage < 2 or case.reduces_once
        if not waits and passed == "backward" and state.reduced:
            whole = share.numbers * state.reduced
            yield Call("zero", "reduce_scatter", share.shard_group, whole)


BUCKETS = {"megatron": 4e7, "deepspeed": 5e8, "ideal": 5e8}
"""Parameters that are sent at once; elsewhere layers go one by one."""


def step_end(case: Case, shares: list[Share]) -> Iterator[Call]:
    """What data parallelism does once a step with some parameters."""
    bucket = BUCKETS.get(case.spec.framework, 1.0)
    for share in shares:
        part = min(1.0, share.numbers / bucket)
        if share.state.reduced:
            for call in _at_end(case, share):
                yield call._replace(bucket_share=part)


def _at_end(case: Case, share: Share) -> Iterator[Call]:
    stage, state = case.plan.zero, share.state
    deals = stage == 1 and case.spec.framework == "internevo"
    if stage <= 1 or case.reduces_once:
        whole = share.numbers * state.reduced
        operation = "all_reduce" if deals else "reduce_scatter"
        yield Call("dp", operation, share.shard_group, whole)
    if stage == 0:
        # The other half of an all-reduce, over the ranks of one sequence.
        whole = share.numbers * state.reduced
        yield Call("dp", "all_gather", share.shard_group, whole)
    elif not state.is_trained:
        pass  # nothing renews it
    elif deals:
        # Tensors go to all from the rank that has them.
        whole = share.numbers * state.gathered
        yield Call("dp", "broadcast", share.shard_group, whole)
    elif stage < 3:
        whole = share.numbers * state.gathered
        yield Call("dp", "all_gather", share.shard_group, whole)
    if share.replicas > 1:
        whole = share.numbers * state.reduced / share.shards
        yield Call("dp", "all_reduce", share.replica_group, whole)


def tied_tables(case: Case) -> Iterator[Call]:
    """The two copies of a tied table add up their gradients: two ranks, one ring."""
    model, plan = case.model, case.plan
    has_two = model.tied_embeddings or model.mtp_layers > 0
    if has_two and plan.pp > 1 and case.training.lora is None:
        table = model.vocab * model.d_model / plan.tp
        yield Call("dp", "all_reduce", "pp", table * state_of(case).reduced, members=2)


def onward(case: Case) -> Iterator[Call]:
    """What one stage sends to a neighbour, either way."""
    if case.plan.pp > 1:
        yield Call("pp", "send", "pp", case.hidden_bytes / case.plan.tp)


def received(case: Case) -> Iterator[Call]:
    """Each rank was sent its part; without sequence parallelism all need the whole."""
    plan = case.plan
    if plan.pp > 1 and plan.tp > 1 and not plan.sequence_parallel:
        yield Call("pp", "all_gather", "tp", case.hidden_bytes)
