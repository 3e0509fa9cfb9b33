"""More hardware as a repair, by plain loops; whether there is a plan is told."""

from __future__ import annotations

from typing import Any

import pytest

import meshwright as mw
from meshwright.explanations.repairs import (
    SIZES_GIB,
    is_slower,
    larger_gpus,
    repairs,
)
from meshwright.loading.load import load_gpu
from meshwright.results.outcome_parts import Repair
from meshwright.spec.gpu import Gpu
from meshwright.spec.spec import Spec
from meshwright.spec.training import Lora
from tests.helpers.repairing import LONE, Has, solved
from tests.helpers.unlike import mixed, part

HOSTED = "llama3-8b-2x4090-pcie"
POD = "llama3-70b-128xa100"


def told(
    spec: Spec, has: Has, changes: str, needed_gib: float | None = None
) -> list[Repair]:
    found = repairs(spec, needed_gib, solved, has)
    return [one for one in found if one.changes == changes]


def pod_of(count: int) -> Spec:
    spec = mw.load(POD, Spec)
    cluster = spec.cluster.model_copy(update={"count": count})
    return spec.model_copy(update={"cluster": cluster})


@pytest.mark.parametrize("enough", range(2, 19))
def test_of_many_machines_the_least_power_of_two_times_as_many_is_told(
    enough: int,
) -> None:
    """Up to sixteen times."""
    spec, now = pod_of(20), 20
    found = told(spec, lambda given: given.cluster.count >= enough * now, "machines")
    times = next((n for n in (2, 4, 8, 16) if n >= enough), None)
    edits = [f"cluster.count: {now} -> {times * now}"] if times else []
    assert [edit for one in found for edit in one.edits] == edits


@pytest.mark.parametrize("now", [1, 2, 3])
@pytest.mark.parametrize("more", [1, 2, 5, 11, 30])
def test_of_few_machines_the_least_number_is_told(now: int, more: int) -> None:
    """Of 32 at most: from three on the last multiple is 48."""
    few = pod_of(now)
    least = now + more
    found = told(few, lambda given: given.cluster.count >= least, "machines")
    counts = [now * times for times in (2, 4, 8, 16) if now * times >= least]
    expected = [least if counts[0] <= 32 else counts[0]] if counts else []
    assert [one.edits for one in found] == [
        (f"cluster.count: {now} -> {count}",) for count in expected
    ]


def with_host(gib: float | None, offload_to: str = "cpu") -> Spec:
    spec = mw.load(HOSTED, Spec)
    host = spec.cluster.topology.host
    assert host is not None
    found = None if gib is None else host.model_copy(update={"memory_gib": gib})
    topology = spec.cluster.topology.model_copy(update={"host": found})
    cluster = spec.cluster.model_copy(update={"topology": topology})
    training = spec.training.model_copy(update={"offload_to": offload_to})
    return spec.model_copy(update={"cluster": cluster, "training": training})


@pytest.mark.parametrize("least", [0, 129, 192, 193, 4096, 4097])
@pytest.mark.parametrize("now", [100.0, 128.0, 4096.0])
def test_a_host_gets_the_least_memory_on_sale_above_what_it_has(
    now: float, least: int
) -> None:
    def has(spec: Spec) -> bool:
        host = spec.cluster.topology.host
        return host is not None and host.memory_gib >= least

    sizes = [size for size in SIZES_GIB if size > now and size >= least]
    found = [
        edit
        for one in told(with_host(now), has, "hardware")
        for edit in one.edits
        if ".host." in edit
    ]
    asked = f"cluster.topology.host.memory_gib: {now:g} -> "
    assert found == [f"{asked}{size}" for size in sizes[:1]]


def test_a_host_is_no_repair_where_state_goes_to_drives() -> None:
    """More of its memory frees nothing there."""

    def has(spec: Spec) -> bool:
        host = spec.cluster.topology.host
        return host is not None and host.memory_gib > 64

    def edits(spec: Spec) -> str:
        found = told(spec, has, "hardware")
        return " ".join(edit for one in found for edit in one.edits)

    assert "host" in edits(with_host(64.0))
    assert "host" not in edits(with_host(64.0, "nvme"))


def test_unlike_parts_get_no_other_hardware() -> None:
    """Which part would grow, and how the others are then used, nobody said."""
    spec = mixed(part(1, 100, 4.5), part(1, 50, 4.5), batch=2, tp=1, pp=2)
    found = repairs(spec, 5.0, solved, lambda _: True)
    assert {one.changes for one in found} <= {"flag", "training", "adapters"}


def test_who_trains_adapters_already_is_not_told_to() -> None:
    spec = mw.load(LONE, Spec).model_copy(update={"framework": "fsdp"})
    assert len(told(spec, lambda _: True, "adapters", 21.0)) == 1
    assert told(spec, lambda _: True, "adapters") == []
    training = spec.training.model_copy(update={"lora": Lora(rank=8)})
    changed = spec.model_copy(update={"training": training})
    assert told(changed, lambda _: True, "adapters", 21.0) == []


def test_a_plan_may_be_as_likely_to_fail_as_to_fit_but_no_likelier() -> None:
    """Just what a card of 24 GiB has beyond its reserve: one run of two fits."""
    spec = mw.load(LONE, Spec)
    (found,) = told(spec, lambda _: False, "safety", 0.99 * 24)
    assert found.edits == ("limits.oom_risk: 0.05 -> 0.5",)
    assert found.note.endswith("probability 0.50")


def gpu_of(**tflops: float) -> Gpu:
    gpu = load_gpu("topologies/gpus", "h100-sxm-80gb")
    peaks = {name: tflops.get(name) for name, _ in gpu.peak_tflops}
    return gpu.model_copy(
        update={"peak_tflops": gpu.peak_tflops.model_copy(update=peaks)}
    )


@pytest.mark.parametrize(
    ("own", "than", "slower"),
    [
        ({"bf16": 100.0}, {"bf16": 100.0}, False),
        ({"bf16": 99.0}, {"bf16": 100.0}, True),
        ({"bf16": 101.0}, {"bf16": 100.0}, False),
        ({"bf16": 101.0, "fp16": 9.0}, {"bf16": 100.0, "fp16": 10.0}, True),
        ({"bf16": 100.0}, {"bf16": 100.0, "fp8": 900.0}, False),
        ({"bf16": 100.0, "fp8": 1.0}, {"bf16": 100.0}, False),
        ({"fp8": 1.0}, {"bf16": 100.0}, False),
    ],
)
def test_a_gpu_is_slower_by_a_peak_that_both_have(
    own: dict[str, float], than: dict[str, float], slower: bool
) -> None:
    assert is_slower(gpu_of(**own), gpu_of(**than)) is slower


@pytest.mark.parametrize(
    ("name", "made_by"),
    [
        ("mi300x-192gb", "mi"),
        ("mi300x-ours", "mi"),
        ("gaudi2-ours", "gaudi"),
        ("mini-card", ""),
        ("h100-sxm-80gb", ""),
        ("inline", ""),
    ],
)
def test_no_gpu_is_swapped_for_one_that_other_software_runs_on(
    name: str, made_by: str
) -> None:
    """AMD's and Intel's go by their names, bundled or not; all else runs on CUDA."""
    small = load_gpu("topologies/gpus", "a100-sxm-40gb")
    present = small.model_copy(update={"name": name, "memory_gib": 16.0})
    found = {gpu.name for gpu in larger_gpus(present)}
    assert found
    for vendor in ("mi", "gaudi"):
        of_vendor = {one for one in found if one.startswith(vendor)}
        assert of_vendor == (found if vendor == made_by else set())


def test_larger_gpus_come_by_family_then_speed_then_memory() -> None:
    present = load_gpu("topologies/gpus", "a100-sxm-40gb")
    found = [*larger_gpus(present)]
    assert len(found) > 3
    assert all(gpu.memory_gib > present.memory_gib for gpu in found)
    keys: list[Any] = [
        (not gpu.name.startswith("a100-"), is_slower(gpu, present), gpu.memory_gib)
        for gpu in found
    ]
    assert keys == sorted(keys)
    assert keys[0][0] is False


def test_a_gpu_that_shares_its_memory_gets_no_host_and_no_other_gpu() -> None:
    """A DGX Spark has one memory, on its one board; an MI300A is a board of its own."""
    fields = {
        "model": "gpt2-xl",
        "cluster": {"machine": "dgx-spark", "count": 2},
        "training": {"seq_len": 1024, "global_batch": 16},
    }
    spec = mw.load(fields, Spec)
    assert spec.cluster.topology.gpu.shares_memory
    assert told(spec, lambda _: True, "hardware", 500.0) == []
    boards = load_gpu("topologies/gpus", "mi210-64gb")
    assert "mi300a-128gb" not in {gpu.name for gpu in larger_gpus(boards)}


def test_each_of_several_switches_has_its_option() -> None:
    """Two DGX Sparks hold no GPT-OSS-20B unless all three states are smaller."""
    fields = {
        "model": "gpt-oss-20b",
        "cluster": {"machine": "dgx-spark", "count": 2},
        "framework": "megatron",
        "training": {"seq_len": 4096, "global_batch": 16},
    }
    found = mw.explain(mw.load(fields, Spec)).repairs[0]
    assert len(found.edits) == 3
    assert found.note.split("; ") == [
        "gradients by --grad-reduce-in-bf16, other rounding",
        "master_weights by --use-precision-aware-optimizer, the same numbers",
        "moments by --use-precision-aware-optimizer --exp-avg-dtype bf16 "
        "--exp-avg-sq-dtype bf16, another optimizer",
    ]
