"""Repairs and margins, where whether there is a plan is told, not solved for.

So each looks at what it should, and says what it did: a solve would hide which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import meshwright as mw
from meshwright.explanations.decisions import (
    HOST_MEMORY,
    LINK_SHARE,
    MEMORY,
    TP_LINK,
    decisions_in,
    without_decisions,
)
from meshwright.explanations.marginal_values import marginal_values
from meshwright.explanations.repairs import (
    SIZES_GIB,
    larger_gpus,
    repairs,
    unpriced_repair,
    with_prices,
)
from meshwright.loading.load import load_gpu
from meshwright.planner.families import Prepared
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import Repair
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.cluster import Cluster
from meshwright.spec.plan_fields import Range
from meshwright.spec.spec import Spec
from tests.helpers.margin import with_margin
from tests.helpers.repairing import LONE, Has, outcome, solved

MANY = "llama3-70b-128xa100"
HOSTED = "llama2-13b-8xa100"


def best() -> PricedPlan:
    found = outcome().best
    assert found is not None
    return found


def changed(spec: Spec, section: str, **fields: Any) -> Spec:
    found = getattr(spec, section).model_copy(update=fields)
    return spec.model_copy(update={section: found})


def edits(repairs: list[Repair]) -> list[tuple[str, ...]]:
    return [repair.edits for repair in repairs]


GRADIENTS = "training.gradients: default -> bf16"
REMAINDERS = "training.master_weights: fp32 -> remainders"
MOMENTS = "training.moments: fp32 -> bf16"

TRAINING = ("flag", "training")


def lighter(spec: Spec, has: Has) -> list[Repair]:
    return [
        repair
        for repair in repairs(spec, None, solved, has)
        if repair.changes in TRAINING
    ]


@pytest.mark.parametrize(
    ("has", "expected"),
    [
        (lambda given: given.gradients == "bf16", [("training", (GRADIENTS,))]),
        (lambda given: given.master_weights == "remainders", [("flag", (REMAINDERS,))]),
        (lambda given: False, []),
        (
            lambda given: (
                given.master_weights == "remainders" and given.gradients == "bf16"
            ),
            [("training", (GRADIENTS, REMAINDERS))],
        ),
        (lambda given: given.moments == "bf16", [("training", (REMAINDERS, MOMENTS))]),
    ],
)
def test_the_smallest_sets_of_switches(
    has: Callable[[Any], bool], expected: Any
) -> None:
    """What is enough alone is not told with more; two are told where both it takes."""
    found = lighter(mw.load(LONE, mw.Spec), lambda given: has(given.training))
    assert [(one.changes, one.edits) for one in found] == expected


def test_switches_together_leave_the_numbers_of_training_alone_where_they_can() -> None:
    """The same memory is freed by one that computes other numbers."""
    found = lighter(
        mw.load(HOSTED, mw.Spec),
        lambda given: bool(
            given.training.loss_chunks
            and (given.training.partition_activations or given.training.compile)
        ),
    )
    ((_, also),) = edits(found)
    assert also == "training.partition_activations: false -> true"
    assert [one.changes for one in found] == ["flag"]


def test_a_switch_that_is_on_already_is_no_repair() -> None:
    spec = mw.load(LONE, mw.Spec)
    told = {edit for one in lighter(spec, lambda _: True) for edit in one.edits}
    assert {GRADIENTS, REMAINDERS} <= told
    on = changed(spec, "training", gradients="bf16", master_weights="remainders")
    told = {edit for one in lighter(on, lambda _: True) for edit in one.edits}
    assert not {GRADIENTS, REMAINDERS} & told
    assert MOMENTS in told


def test_the_mildest_position_that_is_enough_is_told() -> None:
    spec = changed(mw.load(LONE, mw.Spec), "limits", memory_gib=None)
    # 512 parts of 32 sequences of 2,048 tokens have the rows of a matmul's tile.
    spec = changed(spec, "pins", micro_batch=Range(values=(32,)))
    chunked = spec.model_copy(update={"framework": "torchtitan"})
    found = lighter(chunked, lambda given: (given.training.loss_chunks or 0) >= 100)
    assert edits(found) == [("training.loss_chunks: 8 -> 512",)]
    assert found[0].note == (
        "ChunkedLossWrapper.Config(num_chunks=512); the same numbers"
    )


def hardware(spec: Spec, has: Has, needed_gib: float | None = None) -> list[Repair]:
    """Return the repairs by machines, GPUs, hosts and risk."""
    found = repairs(spec, needed_gib, solved, has)
    return [one for one in found if one.changes not in TRAINING]


def gpu_is(name: str) -> Has:
    return lambda given: given.cluster.topology.gpu.name == name


def gpu_has_over(gib: float) -> Has:
    return lambda given: given.cluster.topology.gpu.memory_gib > gib


def never(_spec: Spec) -> bool:
    return False


def test_larger_gpus_are_of_the_family_first_and_the_smallest() -> None:
    spec = mw.load(LONE, mw.Spec)
    (found,) = hardware(spec, gpu_has_over(24.5))
    assert found.edits == ("cluster.topology.gpu: rtx-3090 -> rtx-5090-32gb",)
    assert (found.changes, found.note) == (
        "hardware",
        "32 GiB of memory, on the same links",
    )
    (far,) = hardware(spec, gpu_is("h100-nvl-94gb"))
    assert far.edits == ("cluster.topology.gpu: rtx-3090 -> h100-nvl-94gb",)
    # One with no more memory is no repair, whatever it may do.
    assert hardware(spec, gpu_is("rtx-4090")) == []


@pytest.mark.parametrize(
    ("present", "larger", "other"),
    [
        ("rtx-3090", "a6000-48gb", "h200-sxm-141gb"),
        ("a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-80gb"),
        ("h100-pcie-80gb", "h100-nvl-94gb", "h200-sxm-141gb"),
        ("mi300x-192gb", "mi325x-256gb", "b300-sxm-288gb"),
        ("gb200-186gb", "gb300-288gb", "b300-sxm-288gb"),
        ("h100-pcie-80gb", "h100-nvl-94gb", "gaudi3-128gb"),
        ("mi250x", "mi300x-192gb", "gaudi3-128gb"),
    ],
)
def test_larger_gpus_sit_in_the_same_socket(
    present: str, larger: str, other: str
) -> None:
    """A board of NVLink takes no cards, and a slot no boards."""
    names = [gpu.name for gpu in larger_gpus(load_gpu("topologies/gpus", present))]
    assert larger in names
    assert other not in names


def test_a_gpu_of_its_own_name_is_not_swapped_for_another_vendors() -> None:
    """A framework that runs on CUDA runs on neither AMD's nor Intel's GPUs."""
    card = load_gpu("topologies/gpus", "h100-sxm-80gb")
    inline = card.model_copy(update={"name": "inline"})
    names = {gpu.name for gpu in larger_gpus(inline)}
    assert "h200-sxm-141gb" in names
    assert not {"gaudi3-128gb", "mi300x-192gb"} & names


def test_a_slower_gpu_comes_last() -> None:
    """An H20 has more memory than an A100, and half of its peak."""
    names = [
        gpu.name for gpu in larger_gpus(load_gpu("topologies/gpus", "a100-sxm-80gb"))
    ]
    assert names.index("h200-sxm-141gb") < names.index("h20-sxm-96gb")


def test_no_gpu_is_swapped_for_itself() -> None:
    """A spec may give a GPU less memory than the product of that name has."""
    small = load_gpu("topologies/gpus", "h100-sxm-80gb").model_copy(
        update={"memory_gib": 24.0}
    )
    names = [gpu.name for gpu in larger_gpus(small)]
    assert "h200-sxm-141gb" in names
    assert "h100-sxm-80gb" not in names


def test_no_gpu_is_larger_where_the_spec_says_what_may_be_used() -> None:
    """The limit would hold on that GPU too."""
    spec = changed(mw.load(LONE, mw.Spec), "limits", memory_gib=20.0)
    assert hardware(spec, gpu_is("rtx-5090-32gb")) == []


def test_gpus_without_the_precision_are_left_out() -> None:
    spec = changed(mw.load(LONE, mw.Spec), "training", precisions=("fp8",))
    assert hardware(spec, gpu_is("a6000-48gb")) == []
    assert len(hardware(spec, gpu_is("rtx-5090-32gb"))) == 1


@pytest.mark.parametrize(("enough", "told"), [(6, 3), (9, 5), (31, 16), (32, 16)])
def test_every_number_of_machines_is_tried_where_they_are_few(
    enough: int, told: int
) -> None:
    """A host of two GPUs gets no more of them; there are more hosts, and a network."""
    spec = mw.load(LONE, mw.Spec)
    (found,) = hardware(spec, lambda given: given.cluster.gpus >= enough)
    assert found.edits == (
        "cluster.topology.scale_out: null -> "
        "{name: nic, gb_s: 12.5, latency_us: 2.5, uplink: shared}",
        f"cluster.count: 1 -> {told}",
    )
    assert found.note == (
        f"needs at least {2 * told} GPUs of this kind, 2 in each machine; a 100 Gbit/s "
        "adapter on each host is assumed"
    )


def test_hosts_inside_levels_are_counted_there() -> None:
    """Where a level joins hosts, its size is what grows."""
    spec = mw.load(MANY, mw.Spec)
    topology = spec.cluster.topology
    leaf = {**topology.above[-1].model_dump(), "size": 2}
    levels = [*topology.model_dump()["levels"], leaf, {**leaf, "name": "spine"}]
    data = topology.model_dump() | {"levels": levels, "scale_out": None}
    cluster = Cluster.model_validate({"topology": data})
    found = spec.model_copy(update={"cluster": cluster})
    (told,) = hardware(found, lambda given: given.cluster.gpus >= 48)
    assert told.edits == ("cluster.topology.levels[2].size: 2 -> 3",)
    # 32 are few enough to look for fewer.
    (told,) = hardware(found, lambda given: given.cluster.gpus >= 16 * 17)
    assert told.edits == ("cluster.topology.levels[2].size: 2 -> 17",)


def test_many_machines_are_doubled() -> None:
    spec = mw.load(MANY, mw.Spec)
    now = spec.cluster.count
    (found,) = hardware(spec, lambda given: given.cluster.count >= 3 * now)
    assert found.edits == (f"cluster.count: {now} -> {4 * now}",)
    assert found.note == "512 GPUs of this kind, 8 in each machine"
    assert hardware(spec, lambda given: given.cluster.count > 16 * now) == []
    assert len(hardware(spec, lambda given: given.cluster.count == 16 * now)) == 1


def test_memory_that_is_needed_is_rounded_up_to_hundredths() -> None:
    spec = with_margin(mw.load(LONE, mw.Spec))
    (found,) = hardware(spec, never, 23.534)
    usable = f"{spec.usable_gib:.2f}"
    assert found.edits == (f"limits.memory_gib: {usable} -> 23.54",)
    assert found.changes == "safety"
    assert len(hardware(spec, never, 24.0)) == 1
    assert hardware(spec, never, spec.usable_gib) == []
    assert hardware(spec, never, None) == []


def test_more_risk_is_offered_as_far_as_a_plan_is_no_worse_than_even() -> None:
    """ln(0.99 x 24 / 21) / 0.13 = 0.950 standard deviations: 82.9 of 100 runs fit."""
    spec = mw.load(LONE, mw.Spec)
    (found,) = hardware(spec, never, 21.0)
    assert found.edits == ("limits.oom_risk: 0.05 -> 0.18",)
    assert found.changes == "safety"
    assert found.note == "the plan that comes closest fits with probability 0.83"
    # ln(0.99 x 24 / 22.186) / 0.13 = 0.527: 70.1 of 100 runs fit, and 29.9 do not.
    (close,) = hardware(spec, never, 22.186)
    assert close.edits == ("limits.oom_risk: 0.05 -> 0.3",)
    assert hardware(spec, never, spec.usable_gib) == []
    assert hardware(spec, never, 0.99 * 24 + 0.01) == []


def test_adapters_alone_are_offered_in_the_widest_format_that_fits() -> None:
    spec = mw.load(LONE, mw.Spec).model_copy(update={"framework": "fsdp"})

    def in_formats(*formats: str) -> list[Repair]:
        def has(changed: mw.Spec) -> bool:
            lora = changed.training.lora
            return lora is not None and lora.weights in formats

        return [one for one in hardware(spec, has, 21.0) if one.changes == "adapters"]

    (wide,) = in_formats("bf16", "nf4")
    assert wide.edits == ("training.lora: null -> {rank: 16}",)
    (narrow,) = in_formats("nf4")
    assert narrow.edits == ("training.lora: null -> {rank: 16, weights: nf4}",)
    assert in_formats() == []
    assert in_formats("gptq") == []


@pytest.mark.parametrize(
    ("framework", "formats"), [("torchtitan", 0), ("megatron", 1), ("fsdp", 2)]
)
def test_adapters_are_offered_as_the_framework_has_them(
    framework: str, formats: int
) -> None:
    spec = mw.load(LONE, mw.Spec).model_copy(update={"framework": framework})
    asked = []

    def has(changed: mw.Spec) -> bool:
        asked.append(changed.training.lora)
        return False

    hardware(spec, has, 21.0)
    assert len([lora for lora in asked if lora is not None]) == formats


def test_the_price_of_a_repair_is_not_against_training_adapters_alone() -> None:
    def repair(step_s: float, changes: Any) -> Repair:
        plan = best().model_copy(update={"step_s": step_s})
        return unpriced_repair(("edit",), plan, changes)

    found = with_prices([repair(1.0, "adapters"), repair(4.0, "machines")], None)
    assert [one.changes for one in found] == ["machines", "adapters"]
    assert [one.price for one in found] == pytest.approx([0, -0.75])
    (alone,) = with_prices([repair(1.0, "adapters")], None)
    assert alone.price == 0


def test_less_safety_is_never_offered_first() -> None:
    spec = mw.load(LONE, mw.Spec)
    (found,) = hardware(spec, lambda given: False, 21.0)
    larger = found.model_copy(
        update={"changes": "hardware", "step_s": 9 * found.step_s}
    )
    assert [one.changes for one in with_prices([found, larger], None)] == [
        "hardware",
        "safety",
    ]


def test_memory_that_no_card_has_is_not_offered() -> None:
    spec = mw.load(LONE, mw.Spec)
    assert hardware(spec, lambda given: False, 24.01) == []


def test_a_host_is_as_large_as_what_is_offloaded_to_it() -> None:
    spec = mw.load("llama3-8b-2x4090-pcie", mw.Spec)
    topology = spec.cluster.topology.model_copy(update={"host": None})
    gpu = topology.gpu.model_copy(update={"pcie_gb_s": 20.0})
    bare = topology.model_copy(update={"gpu": gpu})
    cluster = spec.cluster.model_copy(update={"topology": bare})
    found = spec.model_copy(update={"cluster": cluster})
    seen: list[float] = []

    def has(changed: Spec) -> bool:
        host = changed.cluster.topology.host
        return host is not None and host.memory_gib >= 86

    def answered(changed: Spec) -> Outcome:
        host = changed.cluster.topology.host
        assert host is not None
        assert (host.pcie_gb_s, host.memory_gb_s) == (20.0, 200.0)
        seen.append(host.memory_gib)
        return outcome()

    (told,) = repairs(found, None, answered, has)
    # The least of what hosts are sold with.
    assert seen == [96]
    assert told.edits == (
        "cluster.topology.host: null -> "
        "{memory_gib: 96, pcie_gb_s: 20, memory_gb_s: 200}",
    )
    assert told.note == "offloads optimizer; the bandwidths are assumed"
    megatron = found.model_copy(update={"framework": "internevo"})
    assert list(repairs(megatron, None, answered, has)) == []
    assert list(repairs(spec, None, answered, lambda _: False)) == []


def test_hosts_have_sizes_that_equal_modules_make() -> None:
    modules = {count * gib for count in range(2, 33) for gib in (16, 32, 64, 96, 128)}
    assert modules.issuperset(SIZES_GIB)
    assert [*SIZES_GIB] == sorted({*SIZES_GIB})


def test_a_host_that_is_there_gets_more_memory() -> None:
    spec = mw.load("llama3-8b-2x4090-pcie", mw.Spec)

    before = spec.cluster.topology.host
    assert before is not None

    def has(changed: Spec) -> bool:
        host = changed.cluster.topology.host
        return host is not None and host.memory_gib >= 300

    def answered(changed: Spec) -> Outcome:
        size = {"memory_gib": 384.0}
        assert changed.cluster.topology.host == before.model_copy(update=size)
        return outcome()

    (told,) = repairs(spec, None, answered, has)
    assert told.edits == ("cluster.topology.host.memory_gib: 128 -> 384",)
    assert told.note == "offloads optimizer"
    assert list(repairs(spec, None, solved, never)) == []


def change_names(spec: Spec) -> list[str]:
    return [
        marginal_value.change
        for marginal_value in marginal_values(spec, None, solved, ())
    ]


@pytest.mark.parametrize(("more", "is_told"), [(-1, False), (0, True), (1, True)])
def test_sequences_are_doubled_as_far_as_positions_are_learned(
    more: int, is_told: bool
) -> None:
    spec = mw.load(LONE, mw.Spec)
    known = 2 * spec.training.seq_len + more
    found = changed(spec, "model", learned_positions=known)
    assert ("sequence x 2" in change_names(found)) is is_told
    free = changed(spec, "model", learned_positions=0)
    assert "sequence x 2" in change_names(free)


def test_margins_change_one_thing_each() -> None:
    spec = mw.load(MANY, mw.Spec)
    asked: list[Spec] = []

    def seen(spec: Spec, _prepared: Prepared | None) -> Outcome:
        asked.append(spec)
        return outcome()

    names = [
        marginal_value.change
        for marginal_value in marginal_values(spec, None, seen, ())
    ]
    topology = spec.cluster.topology
    inside = [level.name for level in topology.levels]
    assert topology.scale_out is not None
    assert names == [
        "memory +10 %",
        *(f"{name} +10 %" for name in (*inside, topology.scale_out.name)),
        "one machine more",
        "sequence x 2",
        "batch x 2",
    ]
    memory, *links, more, longer, larger = asked
    assert memory.usable_gib == pytest.approx(1.1 * spec.usable_gib)
    for index, link in enumerate(links):
        rates = [level.gb_s for level in link.cluster.topology.above]
        usual = [level.gb_s for level in topology.above]
        usual[index] *= 1.1
        assert rates == pytest.approx(usual)
    assert more.cluster.count == spec.cluster.count + 1
    assert longer.training.seq_len == 2 * spec.training.seq_len
    assert larger.training.global_batch == 2 * spec.training.global_batch


def test_lone_machines_have_no_network_to_widen() -> None:
    spec = mw.load("llama3-8b-2xa100-pcie", mw.Spec)
    assert "one machine more" not in change_names(spec)


def test_what_is_left_open_is_open() -> None:
    """Counts of recomputed layers stay open beside a mode: left out they mean all."""
    spec = mw.load(HOSTED, mw.Spec, pins=["recompute=full", "tp=2", "zero=1"])
    limits = {"tp_min_link_gb_s": 10.0, "max_link_utilisation": 0.5}
    spec = changed(spec, "limits", **limits)
    names = [one.rule for one in decisions_in(spec)]
    assert set(names) == {
        "pins.tp", "pins.zero", "pins.recompute", TP_LINK, LINK_SHARE, MEMORY,
        HOST_MEMORY,
    }  # fmt: skip
    counted = without_decisions(spec, ["pins.recompute_layers"])
    assert counted.pins.recompute_layers == "any"
    assert not counted.pins.recomputes_all_layers
    assert spec.pins.recomputes_all_layers
    freed = without_decisions(spec, ["pins.tp", "pins.recompute"])
    assert (freed.pins.tp, freed.pins.recompute) == (None, None)
    assert freed.pins.zero == spec.pins.zero
    assert freed.limits == spec.limits
    limited = without_decisions(spec, [TP_LINK])
    assert limited.limits.tp_min_link_gb_s is None
    assert limited.limits.max_link_utilisation == 0.5
    assert without_decisions(spec, [MEMORY]).usable_gib > 1e4
    host = without_decisions(spec, [HOST_MEMORY]).cluster.topology.host
    assert host is not None
    assert host.memory_gib > 1e4
    assert without_decisions(spec, []) == spec


@pytest.mark.parametrize(("nvme_gib", "is_endless"), [(100.0, True), (None, False)])
def test_drives_have_no_end_either_where_there_are_some(
    nvme_gib: float | None, is_endless: bool
) -> None:
    spec = mw.load(HOSTED, mw.Spec)
    topology = spec.cluster.topology
    assert topology.host is not None
    drives = topology.host.model_copy(update={"nvme_gib": nvme_gib})
    topology = topology.model_copy(update={"host": drives})
    cluster = spec.cluster.model_copy(update={"topology": topology})
    freed = without_decisions(
        spec.model_copy(update={"cluster": cluster}), [HOST_MEMORY]
    )
    found = freed.cluster.topology.host
    assert found is not None
    assert (found.nvme_gib is not None and found.nvme_gib > 1e4) is is_endless


def test_repairs_are_told_the_cheapest_first() -> None:
    def repair(step_s: float, changes: Any, *edits: str) -> Repair:
        plan = best().model_copy(update={"step_s": step_s})
        return unpriced_repair(edits, plan, changes)

    bought_one = repair(1.0, "hardware", "a")
    trained = repair(2.0, "training", "b")
    two, one, slower = (
        repair(3.0, "plan", "c", "d"),
        repair(5.0, "plan", "e"),
        repair(6.0, "plan", "f"),
    )
    found = with_prices([bought_one, two, slower, trained, one], None)
    assert edits(found) == [("e",), ("f",), ("c", "d"), ("b",), ("a",)]
    assert [each.price for each in found] == pytest.approx([4, 5, 2, 1, 0])
    assert {each.against for each in found} == {"the fastest repair"}
    against = with_prices([one], 4.0)
    assert against[0].price == pytest.approx(0.25)
    assert against[0].against == "the fastest plan"
    assert with_prices([], None) == []


def has_large_host(spec: Spec) -> bool:
    host = spec.cluster.topology.host
    return host is not None and host.memory_gib >= 300


def test_a_host_that_is_there_needs_no_rate_of_its_gpus() -> None:
    spec = mw.load("llama3-8b-2x4090-pcie", mw.Spec)
    topology = spec.cluster.topology
    for gpu_rate, host, is_told in (
        (None, topology.host, True),
        (20.0, topology.host, True),
        (None, None, False),
    ):
        gpu = topology.gpu.model_copy(update={"pcie_gb_s": gpu_rate})
        found = topology.model_copy(update={"gpu": gpu, "host": host})
        cluster = spec.cluster.model_copy(update={"topology": found})
        told = hardware(spec.model_copy(update={"cluster": cluster}), has_large_host)
        assert bool(told) is is_told


def test_a_spec_repaired_as_told_is_answered_with_the_plan_of_the_repair() -> None:
    """That is the plan to run; the fastest of the repaired spec is another one."""
    pinned = {"tp": 1, "pp": 1, "zero": 1}
    told = mw.explain(mw.load("llama3-70b-16xa100", pins=pinned))
    assert isinstance(told, mw.Explanation)
    repair = next(one for one in told.repairs if one.edits[0] == "tp: 1 -> 8")
    assert repair.edits[1:] == ("offload: none -> optimizer",)
    mended = {**pinned, "tp": 8, "offload": "optimizer"}
    answer = mw.solve(mw.load("llama3-70b-16xa100", pins=mended))
    assert isinstance(answer, mw.Outcome)
    assert answer.best is not None
    assert answer.fastest is not None
    assert answer.fastest.plan != answer.best.plan
    assert (repair.plan, repair.step_s) == (answer.best.plan, answer.best.step_s)
    assert [
        one.sentence.endswith("s a step, the fastest repair") for one in told.repairs
    ] == [True, False, False]


def test_a_split_that_a_repair_keeps_is_no_edit() -> None:
    """Only a solve checks pinned stages, so that sets to give up have them."""
    fields = {
        "model": "qwen3-32b",
        "cluster": {"gpu": "rtx-3090", "count": 2},
        "framework": "fsdp",
        "training": {
            "seq_len": 8192,
            "global_batch": 16,
            "lora": {"rank": 32, "weights": "nf4"},
        },
    }
    plan = (
        "tp=1,pp=1,cp=1,dp_replicate=2,dp_shard=1,zero=0,micro_batch=2,microbatches=4,"
        "recompute=full-cpu,recompute_layers=all,offload=none,layers=[64]"
    )
    told = mw.explain(mw.load(fields, mw.Spec), plan)
    assert told.nearest_plan is not None
    assert "layers" in told.nearest_plan.kept
    edits = [edit for repair in told.repairs for edit in repair.edits]
    assert edits
    assert not [edit for edit in edits if edit.startswith("layers: ")]


def test_numbers_that_divide_nothing_are_mended_by_the_batch_or_fewer_machines() -> (
    None
):
    """20 GPUs share neither 64 sequences nor 8 heads of keys: 60, or 16 GPUs, do."""
    fields = {
        "model": "qwen3-14b",
        "cluster": {"gpu": "a100-sxm-40gb", "count": 20, "per_host": 4},
        "framework": "fsdp",
        "training": {"seq_len": 4096, "global_batch": 64},
    }
    told = mw.explain(mw.load(fields, mw.Spec))
    assert not told.fits
    assert edits(list(told.repairs)) == [
        ("training.global_batch: 64 -> 60",),
        ("cluster.count: 5 -> 4",),
    ]
    assert [one.plan.world_size for one in told.repairs] == [20, 16]
