"""The size that could not be allocated is matched to a tensor of the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.diagnose import Published, published

from meshwright.check.check import check
from meshwright.cost.profile import Profile, load_profile
from meshwright.diagnosis.memory_event import (
    Cause,
    cause,
    is_fragmented,
    named_part,
    others_gib,
    tensors,
)
from meshwright.explanations.decisions import with_pins
from meshwright.imports.logs.training_log import OutOfMemory, Phase
from meshwright.loading.load import load_spec
from meshwright.loading.plan_text import read_plan
from meshwright.planner.options import Options
from meshwright.planner.solve import asked_plan
from meshwright.plans.plan import Plan
from meshwright.spec.spec import Spec
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


def asked(model: str, framework: str, words: str, **training: Any) -> tuple[Spec, Plan]:
    """Return a spec of 16 H100 and the plan of some words."""
    spec = load_spec(
        {
            "model": model,
            "cluster": {"topology": "dgx-h100", "count": 2},
            "framework": framework,
            "training": {"seq_len": 4096, "global_batch": 64} | training,
        }
    )
    pins = read_plan(words, spec)
    return spec, asked_plan(with_pins(spec, pins), Options(tolerance=0.0))


HELD_AS = ("weights", "gradients", "state of the optimizer")


def test_sizes_of_a_split_model_by_hand() -> None:
    """Llama 3 8B: 17 and 15 layers on 2 stages, half of each matrix on a rank."""
    words = "tp=2,pp=2,cp=2,zero=1,micro_batch=2,recompute=none,offload=none"
    spec, plan = asked("llama3-8b", "megatron", words)
    assert [stage.layers for stage in plan.stages] == [17, 15]
    tokens, wide, vocab = 4096, 14_336 // 2, 128_256
    passing = {
        "{} logits of one micro-batch": tokens * vocab,
        "{} logits of one micro-batch, split over 2": tokens * vocab // 2,
        # 2 sequences, 16 of 32 heads, 2048 of 4096 queries
        "{} attention scores of one layer: no fused kernel ran": 2 * 16 * 2048 * 4096,
        "{} attention mask of 4,096 x 4,096: no fused kernel ran": 2 * 2048 * 4096,
        "hidden states of a layer, {}": tokens * 4096,
        "inputs of the second matrix of an MLP of a layer, {}": tokens * wide,
        "inputs of a gated MLP of a layer, {}": tokens * 2 * wide,
        # 32 heads of queries, 8 each of keys and values, of width 128
        "queries, keys and values of a layer, {}": tokens * 48 * 128 // 2,
    }
    # Queries and outputs, keys and values, three matrices of the MLP; two norms.
    layer = (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14_336) // 2 + 2 * 4096
    ends = vocab * 4096 // 2
    blocks: list[tuple[str, float]] = [
        ("one layer", layer),
        ("one matrix of an MLP", 4096 * wide),
        ("two joined matrices of an MLP", 4096 * 2 * wide),
        ("one matrix of queries", 4096 * 4096 // 2),
        ("the embedding", ends),
    ]
    # The head has a norm beside.
    for stage in (17 * layer + ends, 15 * layer + ends + 4096):
        blocks += [("the whole stage", stage), ("one of 4 shards", stage / 4)]
    numbers: list[tuple[str, float]] = [*passing.items()]
    numbers += [(f"{{}} {part} of {x}", n) for part in HELD_AS for x, n in blocks]
    wanted = sorted(
        (name.format(width), count * each / GIB)
        for name, count in numbers
        for width, each in (("bf16", 2), ("fp32", 4))
    )
    told = sorted((one.name, one.gib) for one in tensors(spec, plan))
    assert [name for name, _ in told] == [name for name, _ in wanted]
    assert [gib for _, gib in told] == pytest.approx([gib for _, gib in wanted])


def test_sizes_of_a_sharded_model_with_experts_by_hand() -> None:
    """Qwen3 30B A3B: 4 GPUs share 128 experts, and the loss is taken in 4 chunks."""
    words = "tp=1,pp=1,cp=1,ep=4,zero=3,micro_batch=2,recompute=none,offload=none"
    spec, plan = asked("qwen3-30b-a3b", "torchtitan", words, loss_chunks=4)
    tokens, vocab, shards = 2 * 4096, 151_936, plan.dp_shard
    assert shards > 1
    # Queries and outputs, keys and values; norms of both and two of the layer; router.
    attention = 2048 * (2 * 4096 + 2 * 512) + 2 * 128 + 2 * 2048
    layer = attention + 2048 * 128 + 32 * 3 * 2048 * 768
    ends = vocab * 2048
    numbers = {
        "logits of one micro-batch": tokens * vocab,
        "logits of one chunk": tokens * vocab / 4,
        "tokens sent to experts of a layer": 8 * tokens * 2048,
        "inputs of the second matrix of experts of a layer": 8 * tokens * 768,
        "weights of one layer": layer,
        "weights of one matrix of an expert": 2048 * 768,
        "weights of two joined matrices of an expert": 2 * 2048 * 768,
        "weights of the whole stage": 48 * layer + 2 * ends + 2048,
        f"weights of one of {shards} shards": (48 * layer + 2 * ends + 2048) / shards,
        "gradients of the embedding": ends,
    }
    sizes = {one.name: one for one in tensors(spec, plan)}
    for name, count in numbers.items():
        told = f"{name}, bf16" if name.endswith("layer") and "of a" in name else ""
        assert sizes[told or f"bf16 {name}"].gib == pytest.approx(2 * count / GIB), name


def test_formats_that_a_framework_keeps_are_the_usual_ones() -> None:
    """FSDP2 keeps fp32 weights, gradients and moments, and gathers weights in bf16."""
    spec, plan = asked("llama3-8b", "torchtitan", "tp=1,pp=1,cp=1,zero=3,micro_batch=1")
    usual = {
        (one.name.removeprefix("gathered ").split()[0], one.part): one.usual
        for one in tensors(spec, plan)
        if one.name.endswith("one layer") and one.part != "attention scores"
    }
    assert usual == {
        ("bf16", "weights"): 0.3,
        ("fp32", "weights"): 1.0,
        ("bf16", "gathered weights"): 1.0,
        ("fp32", "gathered weights"): 0.3,
        ("bf16", "gradients"): 0.3,
        ("fp32", "gradients"): 1.0,
        ("bf16", "optimizer"): 0.3,
        ("fp32", "optimizer"): 1.0,
    }


def test_a_loss_is_in_as_many_chunks_as_the_framework_takes() -> None:
    """torchtitan's default is 8, and plain PyTorch has none."""
    chunks = {}
    for framework in ("torchtitan", "fsdp"):
        spec, plan = asked(
            "llama3-8b", framework, "tp=1,pp=1,cp=1,zero=3,micro_batch=1"
        )
        sizes = {one.name: one.gib for one in tensors(spec, plan)}
        whole = sizes["fp32 logits of one micro-batch"]
        part = sizes.get("fp32 logits of one chunk", whole)
        chunks[framework] = whole / part
    assert chunks == {"torchtitan": 8, "fsdp": 1}


def test_what_is_frozen_has_neither_gradients_nor_state() -> None:
    words = "tp=1,pp=1,cp=1,zero=3,micro_batch=1"
    spec, plan = asked("llama3-8b", "fsdp", words, lora={"rank": 8, "weights": "nf4"})
    found = {
        (one.name.removeprefix("gathered ").split()[0], one.part, one.usual)
        for one in tensors(spec, plan)
        if one.name.endswith("one layer") and one.part != "attention scores"
    }
    assert {part for _, part, _ in found} == {"weights", "gathered weights"}
    assert ("4-bit", "weights", 1.0) in found
    assert ("4-bit", "gathered weights", 1.0) in found
    four_bit = next(
        one for one in tensors(spec, plan) if one.name == "4-bit weights of one layer"
    )
    bf16 = next(
        one for one in tensors(spec, plan) if one.name == "bf16 weights of one layer"
    )
    assert four_bit.gib == bf16.gib / 4


def test_probabilities_of_tensors_follow_from_size_phase_and_format(
    alpaca: Alpaca,
) -> None:
    """Tensors are as likely as their sizes are near the printed one, by 0.6 %."""
    tried = 512 * 32_000 * 4 / GIB

    def odds(**known: Any) -> dict[str, float]:
        told = alpaca(OutOfMemory(line=1, **({"tried_gib": tried} | known)))
        shares = {one.tensor.name: one.probability for one in told.suspects}
        assert sum(shares.values()) == pytest.approx(1)
        return {
            name: x / shares["one that is not listed"] for name, x in shares.items()
        }

    logits = "fp32 logits of one micro-batch"
    # An exact match has odds 1 against 0.02 of what is not listed. A batch that is
    # shorter than the longest one is one in seven, and its size is any.
    exact, shorter = 1 / 0.02, 0.15
    assert odds()[logits] == pytest.approx(exact)
    assert odds()["bf16 logits of one micro-batch"] == 0
    for off in (-0.006, 0.006):
        near = math.exp(-1 / 2) * exact + (shorter if off < 0 else 0)
        assert odds(tried_gib=tried * math.exp(off))[logits] == pytest.approx(near)
    assert odds(tried_gib=tried / 2)[logits] == pytest.approx(shorter)
    assert odds(tried_gib=tried * math.exp(-1.99))[logits] == pytest.approx(shorter)
    assert odds(tried_gib=tried * math.exp(-2.01))[logits] == 0
    assert odds(phase="loss")[logits] == pytest.approx(exact)
    assert odds(phase="optimizer step")[logits] == pytest.approx(exact * 0.01)
    frames = ("x.py:1 f: state['exp_avg'] = 0",)
    assert odds(frames=frames)[logits] == pytest.approx(exact * 0.01)
    assert odds(frames=("x.py:1 f: lm_head(x)",))[logits] == pytest.approx(exact)
    assert odds(tried_gib=0.0)[logits] == 0


@pytest.mark.parametrize(
    ("held_gib", "likely"),
    [
        (0.5, {"weights"}),
        (5.0, {"weights"}),
        (30.0, {"weights"}),
        (30.2, {"weights", "gradients", "optimizer"}),
        (47.0, {"weights", "gradients", "optimizer"}),
        (47.2, {"gradients", "optimizer"}),
        (78.3, {"gradients", "optimizer"}),
        (78.5, {"optimizer"}),
    ],
)
def test_what_is_held_already_tells_how_far_a_rank_has_come(
    held_gib: float, likely: set[str], alpaca: Alpaca
) -> None:
    """Weights of 37.65 GiB in two formats, gradients of 25.1; a quarter more or less.

    All three have an fp32 number of each parameter.
    """

    def parts(**known: Any) -> dict[str, float]:
        event = OutOfMemory(line=1, tried_gib=25.1, allocated_gib=held_gib, **known)
        return {
            one.tensor.part: one.probability
            for one in alpaca(event).suspects
            if one.tensor.name.startswith("fp32")
            and one.tensor.name.endswith("of the whole stage")
        }

    shares = parts()
    most = max(shares.values())
    for part, share in shares.items():
        wanted = 1.0 if part in likely else 0.01
        assert share / most == pytest.approx(wanted)
    # The traceback tells more than what is held.
    told = parts(phase="backward")
    assert told["optimizer"] / told["gradients"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("model", "tp", "parts"),
    [
        # Widths of hidden states, of an MLP and of one expert, alone or joined.
        ("qwen3-30b-a3b", 1, dict.fromkeys(("2048", "6144", "12288"), "activations")),
        ("qwen3-30b-a3b", 1, dict.fromkeys(("768", "1536"), "activations")),
        ("qwen3-30b-a3b", 1, {"151936": "logits", "151935": None, "s1": None}),
        ("llama3-8b", 2, dict.fromkeys(("4096", "7168", "14336"), "activations")),
        ("llama3-8b", 2, {"64128": "logits", "28672": None, "768": None, "": None}),
    ],
)
def test_the_last_number_of_a_shape_names_the_part(
    model: str, tp: int, parts: dict[str, str | None]
) -> None:
    words = f"tp={tp},pp=1,cp=1,zero=1,micro_batch=1,recompute=full,offload=none"
    spec, plan = asked(model, "megatron", words)
    for width, part in parts.items():
        line = f"x.py:5 call: buf = empty_strided_cuda((54, {width}), (1, 1))"
        assert named_part(spec, plan, [line]) == part, width


def test_the_head_of_a_v_schedule_is_on_the_first_stage() -> None:
    words = "tp=1,pp=2,cp=1,zero=1,micro_batch=1,recompute=none,offload=none"
    spec, plan = asked("llama3-8b", "megatron", words)
    both = {}
    for schedule in ("1f1b", "zb-v"):
        other = plan.model_copy(update={"schedule": schedule})
        both[schedule] = {
            one.gib
            for one in tensors(spec, other)
            if one.name == "bf16 weights of the whole stage"
        }
    layers = [stage.layers for stage in plan.stages]
    layer = next(
        one.gib
        for one in tensors(spec, plan)
        if one.name == "bf16 weights of one layer"
    )
    ends = 2 * 128_256 * 4096 / GIB
    norm = 2 * 4096 / GIB
    plain = {layers[0] * layer + ends, layers[1] * layer + ends + norm}
    bent = {layers[0] * layer + 2 * ends + norm, layers[1] * layer}
    assert sorted(both["1f1b"]) == pytest.approx(sorted(plain))
    assert sorted(both["zb-v"]) == pytest.approx(sorted(bent))


@pytest.mark.parametrize(
    ("known", "others"),
    [
        # 4 GiB for what a process holds beside the allocator
        ({"capacity_gib": 80.0, "free_gib": 10.0, "allocated_gib": 40.0}, 26.0),
        (
            {
                "capacity_gib": 80.0,
                "free_gib": 10.0,
                "allocated_gib": 40.0,
                "unallocated_gib": 5.0,
            },
            21.0,
        ),
        ({"capacity_gib": 80.0, "free_gib": 10.0}, 0.0),
        ({"capacity_gib": 80.0, "allocated_gib": 40.0}, 0.0),
        ({"free_gib": 10.0, "allocated_gib": 40.0}, 0.0),
    ],
)
def test_what_others_hold_is_what_is_left_of_the_gpu(
    known: dict[str, Any], others: float
) -> None:
    assert others_gib(OutOfMemory(1, 4.0, **known)) == others
