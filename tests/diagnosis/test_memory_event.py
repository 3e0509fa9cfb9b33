"""The size that could not be allocated is matched to a tensor of the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benchmarks.diagnose import Published, published

from meshwright.check.check import check
from meshwright.cost.profile import Profile, load_profile
from meshwright.diagnosis.memory_event import (
    Cause,
    cause,
    is_fragmented,
    others_gib,
    tensors,
)
from meshwright.imports.logs.training_log import OutOfMemory, Phase
from meshwright.spec.training import Lora
from meshwright.spec.units import GIB

Alpaca = Callable[[OutOfMemory], Cause]


@pytest.fixture(scope="module")
def profile() -> Profile:
    return load_profile("measured")


@pytest.fixture(scope="module")
def messages(profile: Profile) -> tuple[Published, ...]:
    return tuple(published(profile))


def found(one: Published, profile: Profile) -> Cause:
    run = one.run
    event = run.log.out_of_memory
    assert event is not None
    priced = check(profile.job(run.spec), run.plan)
    return cause(run.spec, run.plan, priced, event)


def test_published_messages_are_read_as_people_read_them(
    messages: tuple[Published, ...], profile: Profile
) -> None:
    right = [one.thread for one in messages if found(one, profile).part == one.part]
    assert len(messages) == 43
    assert len(right) == 41


@pytest.fixture(scope="module")
def alpaca(messages: tuple[Published, ...], profile: Profile) -> Alpaca:
    """Return LLaMA-7B on one GPU: 512 tokens, 32,000 words, nothing sharded."""
    thread = "tatsu-lab/stanford_alpaca#220"
    run = next(one.run for one in messages if one.thread == thread)
    priced = check(profile.job(run.spec), run.plan)
    return lambda event: cause(run.spec, run.plan, priced, event)


def test_tensors_grow_as_the_batch_and_the_length_do(
    messages: tuple[Published, ...],
) -> None:
    run = next(one.run for one in messages if one.run.spec.training.lora is None)
    spec, plan = run.spec, run.plan
    longer = spec.having("training", seq_len=2 * spec.training.seq_len)
    more = plan.model_copy(update={"micro_batch": 2 * plan.micro_batch})
    usual, larger, long = map(tensors, (spec, spec, longer), (plan, more, plan))
    kinds = set()
    for one, two, far in zip(usual, larger, long, strict=True):
        kinds.add(one.part)
        times = {"logits": 2, "activations": 2, "attention scores": 4}.get(one.part, 1)
        assert one.varies == (times > 1)
        assert two.gib == pytest.approx(one.gib * min(times, 2)), one
        assert far.gib == pytest.approx(one.gib * times), one
    assert kinds >= {"logits", "attention scores", "activations", "weights"}


def test_a_mask_has_a_number_for_each_two_tokens(
    messages: tuple[Published, ...],
) -> None:
    run = next(one.run for one in messages if one.run.plan.cp == 1)
    length = run.spec.training.seq_len
    sizes = {one.name: one.gib for one in tensors(run.spec, run.plan)}
    name = f"fp32 attention mask of {length:,} x {length:,}: no fused kernel ran"
    assert sizes[name] == run.plan.micro_batch * length**2 * 4 / GIB


@pytest.mark.parametrize(("held", "packed"), [("nf4", "4-bit"), ("int8", "8-bit")])
def test_packed_weights_have_the_width_they_are_held_in(
    held: str, packed: str, messages: tuple[Published, ...]
) -> None:
    run = messages[0].run
    lora = Lora.model_validate({"rank": 8, "weights": held})
    spec = run.spec.having("training", lora=lora)
    names = {one.name for one in tensors(spec, run.plan) if one.part == "weights"}
    widths = {name.split()[0] for name in names if "weights of" in name}
    assert packed in widths
    assert not widths & ({"4-bit", "8-bit"} - {packed})


def test_fp32_logits_are_named(alpaca: Alpaca) -> None:
    told = alpaca(OutOfMemory(line=1, tried_gib=512 * 32_000 * 4 / 2**30))
    assert told.part == "logits"
    assert told.suspects[0].tensor.name == "fp32 logits of one micro-batch"
    assert told.suspects[0].probability > 0.9


@pytest.mark.parametrize(
    ("phase", "part"),
    [
        ("loading", "weights"),
        ("backward", "gradients"),
        ("optimizer step", "optimizer"),
    ],
)
def test_of_one_size_the_phase_decides(phase: Phase, part: str, alpaca: Alpaca) -> None:
    matrix_gib = 4096 * 11_008 * 4 / 2**30
    assert alpaca(OutOfMemory(line=1, tried_gib=matrix_gib, phase=phase)).part == part


def test_a_size_of_nothing_leaves_what_fills_the_gpu(alpaca: Alpaca) -> None:
    told = alpaca(OutOfMemory(line=1, tried_gib=11.11))
    assert told.suspects[0].tensor.gib == 0.0
    assert told.part == told.filled_by == "optimizer"


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("fused_adam.py:129 step: state['exp_avg'] = torch.zeros_like(p)", "optimizer"),
        ("distributed.py:1100 _ddp_init_helper: dist.Reducer(", "gradients"),
        ("x.py:5 call: empty_strided_cuda((54, 4096), (4096, 1))", "activations"),
        ("x.py:5 call: empty_strided_cuda((s1, 32000), (32000, 1))", "logits"),
        ("operations.py:808 __call__: return convert_to_fp32(x)", "logits"),
        ("stage3.py:1 fetch_sub_module: x", "gathered weights"),
        ("module.py:1 _call_impl: return forward_call(*args)", "optimizer"),
    ],
)
def test_the_line_that_allocates_names_the_part(
    line: str, part: str, alpaca: Alpaca
) -> None:
    """The last line names none: what fills the GPU is left."""
    told = alpaca(OutOfMemory(line=1, tried_gib=11.11, frames=(line,)))
    assert told.suspects[0].tensor.gib == 0.0
    assert told.part == part


def test_a_line_far_above_the_allocation_names_no_part(alpaca: Alpaca) -> None:
    frames = ("run.py:1 main: model = load_model(name)", *("x.py:1 f: y()",) * 4)
    told = alpaca(OutOfMemory(line=1, tried_gib=11.11, frames=frames))
    assert told.part == told.filled_by


@pytest.mark.parametrize(
    ("tried", "unused", "free", "is_it"),
    [
        (4.0, 5.0, 0.0, True),
        (4.0, 3.0, 1.5, True),
        (4.0, 3.0, 1.0, True),  # just enough
        (4.0, 3.0, 0.9, False),
        (4.0, 1.0, 1.0, False),
        (4.0, 0.5, 3.8, False),  # the GPU is full
    ],
)
def test_fragments_are_to_blame_where_unused_memory_is_enough(
    tried: float, unused: float, free: float, is_it: bool
) -> None:
    event = OutOfMemory(1, tried, free_gib=free, unallocated_gib=unused)
    assert is_fragmented(event) is is_it


def test_ends_of_segments_are_no_fragments() -> None:
    """Of a full GPU of 80 GiB, 0.15 GiB are unused: that is no cause."""
    event = OutOfMemory(1, 0.05, capacity_gib=80.0, unallocated_gib=0.15)
    assert not is_fragmented(event)


def test_without_numbers_nothing_is_said_of_fragments() -> None:
    assert not is_fragmented(OutOfMemory(line=1, tried_gib=4.0))


@pytest.mark.parametrize(("free", "others"), [(6.0, 0.0), (5.0, 5.0), (1.0, 9.0)])
def test_others_hold_more_than_a_twentieth_of_the_gpu(
    free: float, others: float
) -> None:
    event = OutOfMemory(1, 4.0, capacity_gib=80.0, free_gib=free, in_use_gib=70.0)
    assert others_gib(event) == others


def test_memory_of_other_processes_is_told(messages: tuple[Published, ...]) -> None:
    """Eight ranks that load onto one GPU hold seven shares of it beside ours."""
    held = {
        one.thread: others_gib(one.run.log.out_of_memory)
        for one in messages
        if one.run.log.out_of_memory is not None
    }
    assert held.pop("huggingface/trl#3172") == pytest.approx(79.1 - 0.013 - 14.56)
    assert not any(held.values())
