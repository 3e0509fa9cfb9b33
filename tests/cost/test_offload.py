"""State on the host: rules, bytes and seconds by hand; precision left open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.check.check import broken_rules, check
from meshwright.cost.job import make_job
from meshwright.cost.offload import is_never_faster
from meshwright.cost.price import price
from meshwright.errors import SpecError
from meshwright.loading.load import load_spec
from meshwright.planner.rows import build_lattice, in_best_case
from meshwright.planner.solve import solve
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import to_row
from meshwright.spec.gpu import PRECISIONS
from meshwright.spec.spec import Spec
from tests.recomputed.case import Case
from tests.recomputed.memory import stage_bytes

HOST = {"memory_gib": 64, "pcie_gb_s": 20, "memory_gb_s": 400}
DRIVES = {"nvme_gb_s": 8, "nvme_gib": 1_000}


def spec(framework: str, host: dict[str, Any] | None = None, **given: Any) -> Spec:
    """Return four GPUs on one host, and a model of 4 layers."""
    gpu = {
        "memory_gib": 40,
        "memory_gb_s": 2_000,
        "peak_tflops": {"bf16": 300, "fp16": 150, "fp32": 20},
    }
    levels = [{"name": "l", "size": 4, "gb_s": 300, "latency_us": 1}]
    model = {
        "n_layers": 4,
        "d_model": 1_024,
        "n_heads": 8,
        "d_ff": 4_096,
        "vocab": 32_000,
        "tied_embeddings": False,
        "bias": "none",
    }
    training = {"seq_len": 1_024, "global_batch": 16, **given.pop("training", {})}
    topology: dict[str, Any] = {"gpu": gpu, "levels": levels}
    if host is not None:
        topology["host"] = host
    return Spec.model_validate(
        {
            "model": model,
            "cluster": {"topology": topology},
            "framework": framework,
            "training": training,
            "limits": {"memory_margin": 0, "host_memory_margin": 0},
            **given,
        }
    )


def plan(offload: str, zero: int, precision: str = "bf16", **given: Any) -> Plan:
    """Return a plan of four shards and two micro-batches."""
    one = dict.fromkeys(("tp", "cp", "dp_replicate", "pp"), (1,))
    fields = {
        "tp": 1,
        "pp": 1,
        "dp_replicate": 1,
        "dp_shard": 4,
        "micro_batch": 2,
        "microbatches": 2,
        "zero": zero,
        "sequence_parallel": False,
        "recompute": "none",
        "schedule": "1f1b",
        "offload": offload,
        "precision": precision,
        "stages": ({"layers": 4, "recompute_layers": 0},),
        "mesh": {**one, "dp_shard": (4,)},
    }
    return Plan.model_validate({**fields, **given})


def broken(given: Spec, offload: str, zero: int) -> set[str]:
    """Return the names of the rules that a plan breaks."""
    return {rule.rule for rule in broken_rules(make_job(given), plan(offload, zero))}


LEGAL = {
    # ZeRO-1 shards the optimizer and no more; Megatron-LM offloads nothing else.
    "megatron": {("optimizer", 1), ("optimizer", 2), ("optimizer", 3)},
    "deepspeed": {
        ("optimizer", 1), ("optimizer", 2), ("optimizer", 3),
        ("gradients", 2), ("gradients", 3), ("parameters", 3),
    },
    "torchtitan": {("parameters", 2), ("parameters", 3)},
    "fsdp": {("parameters", 2), ("parameters", 3)},
    "internevo": set(),
}  # fmt: skip


@pytest.mark.parametrize("framework", LEGAL)
def test_what_a_framework_offloads(framework: str) -> None:
    found = spec(framework, HOST)
    legal = {
        (offload, zero)
        for offload in ("optimizer", "gradients", "parameters")
        for zero in (1, 2, 3)
        if "offload_supported" not in broken(found, offload, zero)
    }
    assert legal == LEGAL[framework]


@pytest.mark.parametrize("framework", LEGAL)
def test_nothing_is_offloaded_without_a_host(framework: str) -> None:
    offload, zero = max(LEGAL[framework], default=("optimizer", 1))
    assert "offload_supported" in broken(spec(framework), offload, zero)
    assert not build_lattice(make_job(spec(framework))).rows.offload.any()


def test_the_first_fsdp_holds_gradients_that_it_has_copied() -> None:
    """Shards of a quarter of 4 bytes, here and on the host."""
    one, other = (
        check(
            make_job(spec("fsdp", HOST, training={"holds_gradients": holds})),
            plan("parameters", 3),
        ).stages[0]
        for holds in (False, True)
    )
    assert one.parts["gradients"] == 0
    assert other.parts["gradients"] * GIB == pytest.approx(TOTAL * 4 / 4, rel=1e-3)
    assert other.host_gib == one.host_gib


@pytest.mark.parametrize("framework", ["deepspeed", "fsdp"])
def test_one_gpu_has_nothing_to_shard_and_may_offload_all(framework: str) -> None:
    pins = {"tp": 1, "dp": 1, "pp": 1, "cp": 1}
    data = spec(framework, HOST).model_dump(exclude_none=True) | {"pins": pins}
    data["cluster"]["topology"]["levels"][0]["size"] = 1
    job = make_job(Spec.model_validate(data))
    rows = build_lattice(job).rows
    assert rows.offload.max() == 3
    # Weights that lie on the host come up layer by layer, as gathered ones do.
    mesh = dict.fromkeys(("tp", "cp", "dp_replicate", "dp_shard", "pp"), (1,))
    alone = plan("parameters", 0, dp_shard=1, mesh=mesh)
    (stage,) = check(job, alone).stages
    case = Case(job.spec, alone, job.efficiency.model_dump())
    held = stage_bytes(case, 0)["workspace"]
    assert stage.parts["workspace"] * GIB == pytest.approx(held)


@pytest.mark.parametrize(
    ("framework", "zero", "is_legal"),
    [("deepspeed", 3, True), ("deepspeed", 2, False), ("megatron", 3, False)],
)
def test_drives_need_zero_3(framework: str, zero: int, is_legal: bool) -> None:
    found = spec(framework, HOST | DRIVES, training={"offload_to": "nvme"})
    assert ("drives_supported" not in broken(found, "optimizer", zero)) == is_legal


# One layer: 4 x 1024^2 of attention, 2 x 1024 x 4096 of MLP, two norms of 2 x 1024.
LAYER = 12 * 1_024**2 + 4 * 1_024
TABLE = 32_000 * 1_024
TOTAL = 4 * LAYER + 2 * TABLE + 2 * 1_024
GIB = 2**30


@pytest.mark.parametrize(
    ("framework", "offload", "zero", "bytes_per_param"),
    [
        # fp32 weights and two moments, of a quarter of the parameters
        ("megatron", "optimizer", 1, 12 / 4),
        # The update makes copies of gradients, 2 + 4 bytes, but up to ZeRO-1, where
        # bf16 has fp32 sums, which stay on the GPU.
        ("deepspeed", "optimizer", 1, 12 / 4),
        ("deepspeed", "optimizer", 2, (12 + 6) / 4),
        # and 2 bytes of gradient, sharded from ZeRO-2 on
        ("deepspeed", "gradients", 2, (12 + 6 + 2) / 4),
        # and 2 bytes of weights
        ("deepspeed", "parameters", 3, (12 + 6 + 2 + 2) / 4),
        # fp32 parameters and gradients, two moments; ZeRO-2 has shards there too
        ("fsdp", "parameters", 3, (4 + 4 + 8) / 4),
        ("fsdp", "parameters", 2, (4 + 4 + 8) / 4),
    ],
)
def test_host_holds_what_leaves(
    framework: str, offload: str, zero: int, bytes_per_param: float
) -> None:
    job = make_job(spec(framework, HOST))
    (stage,) = check(job, plan(offload, zero)).stages
    assert stage.host_gib == pytest.approx(TOTAL * bytes_per_param / GIB)
    (whole,) = check(job, plan("none", zero)).stages
    state = ("weights", "gradients", "optimizer")
    left = sum(whole.parts[name] - stage.parts[name] for name in state)
    # On the GPU the copies of gradients take the place of activations first.
    copies = 6 / 4 if framework == "deepspeed" and zero >= 2 else 0
    assert stage.host_gib - TOTAL * copies / GIB <= left + 1e-9
    assert left <= stage.host_gib + 1e-9


def test_host_memory_is_shared_by_its_gpus() -> None:
    """Four GPUs with 3 bytes per parameter each: exactly full, and a byte short."""
    full_gib = 4 * 3 * TOTAL / GIB
    for room_gib, is_broken in ((full_gib + 1e-6, False), (full_gib - 1e-6, True)):
        found = spec("megatron", HOST | {"memory_gib": room_gib})
        assert ("host_memory" in broken(found, "optimizer", 1)) == is_broken


def test_update_takes_the_time_of_host_memory() -> None:
    """A quarter of the parameters, each 2 x (12 + 2) + 4 = 32 bytes, at 32.5 GB/s.

    Of 400 GB/s a host updates at 130, for four GPUs. The new weights, 2 bytes at 20
    GB/s, come up beside it. A layer's gradients, 4 bytes at 20 GB/s, hide up to 70 %
    behind its backward, the traffic of data parallelism first; those of the ends do
    not hide.
    """
    job = make_job(spec("megatron", HOST))
    rows, _ = to_row(job.fabric, plan("optimizer", 1))
    time = price(job, rows).time
    down_s = 4 * LAYER / 4 / 20e9
    assert time.sync_layer["offload"][0] == pytest.approx(
        LAYER / 4 * 32 / 32.5e9 + down_s * 0.3
    )
    # The embedding: nothing hides its gradients.
    embedding = TABLE / 4 * (32 / 32.5e9 + 4 / 20e9)
    assert time.sync_first["offload"][0] == pytest.approx(embedding)
    assert time.sync_layer["optimizer"][0] == 0
    assert time.forward["offload"][0] == time.backward["offload"][0] == 0


def test_a_slow_way_up_is_longer_than_the_update() -> None:
    """New weights, 2 bytes, and gradients, 4 bytes, at 0.5 GB/s."""
    job = make_job(spec("megatron", HOST | {"pcie_gb_s": 0.5}))
    rows, _ = to_row(job.fabric, plan("optimizer", 1))
    embedding = TABLE / 4 * (2 + 4) / 0.5e9
    assert price(job, rows).time.sync_first["offload"][0] == pytest.approx(embedding)


def test_parameters_come_up_for_every_pass() -> None:
    """DeepSpeed: 2 bytes up of a quarter of the table, per forward and backward.

    Gradients, 2 bytes, go down beside the latter.
    """
    job = make_job(spec("deepspeed", HOST))
    rows, _ = to_row(job.fabric, plan("parameters", 3))
    first = price(job, rows).time.first
    assert first["offload"][0] == pytest.approx(2 * TABLE / 4 * 2 / 20e9)


def test_drives_set_the_pace_where_they_are_slower() -> None:
    """8 GB/s among four GPUs: 2 GB/s, and 24 bytes of state read and written."""
    found = spec("deepspeed", HOST | DRIVES, training={"offload_to": "nvme"})
    job = make_job(found)
    rows, _ = to_row(job.fabric, plan("parameters", 3))
    time = price(job, rows).time
    assert time.sync_last["offload"][0] == pytest.approx(
        (TABLE + 2 * 1_024) / 4 * 24 / 2e9
    )
    assert time.first["offload"][0] == pytest.approx(2 * TABLE / 4 * 2 / 2e9)


def test_a_model_that_fits_no_gpu_fits_with_its_host() -> None:
    data = spec("deepspeed", HOST).model_dump(exclude_none=True)
    data["limits"] = {"memory_gib": 3.4}
    found = solve(Spec.model_validate(data))
    assert found.best is not None
    assert found.best.plan.offload != "none"
    data["pins"] = {"offload": "none"}
    assert solve(Spec.model_validate(data)).status == "infeasible"
    del data["pins"]
    data["cluster"]["topology"]["host"]["memory_gib"] = 0.01
    missed = solve(Spec.model_validate(data))
    assert missed.status == "infeasible"
    assert missed.near_miss is not None
    assert missed.near_miss.broken_rules


@pytest.mark.parametrize(
    ("host", "training", "named"),
    [
        (HOST | {"gpus": 3}, {}, "3 does not divide the 4 GPUs"),
        (HOST | {"nvme_gib": 9}, {}, "without nvme_gb_s"),
        (HOST, {"offload_to": "nvme"}, "needs cluster.topology.host"),
        (None, {"offload_to": "nvme"}, "needs cluster.topology.host"),
        (HOST, {"precision": ["bf16", "tf32"]}, "'tf32' has no peak"),
        (HOST, {"precision": []}, "at least one"),
    ],
)
def test_bad_hosts_and_precisions_are_refused(
    host: dict[str, Any] | None, training: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        spec("megatron", host, training=training)


def test_a_bad_precision_of_a_list_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "model: llama3-8b\ncluster: dgx-h100\n"
        "training: {seq_len: 8192, global_batch: 8, precision: [bf16, fp17]}\n"
    )
    with pytest.raises(SpecError, match=r"3: training\.precision\.1: 'fp17'.*bf16"):
        load_spec(str(path))


def test_each_row_costs_what_its_own_precision_costs() -> None:
    names = ["fp32", "bf16", "fp16"]
    mixed = make_job(spec("megatron", training={"precision": names}))
    rows = in_best_case(mixed, build_lattice(mixed).rows)
    prices = price(mixed, rows)
    for name in names:
        index = np.flatnonzero(rows.precision == PRECISIONS.index(name))
        alone = price(mixed.at(PRECISIONS[rows.precision[index[0]]]), rows.take(index))
        assert len(index) == len(rows) // 3
        for part, one in alone.time.forward.items():
            assert (prices.time.forward[part][index] == one).all()
        assert (prices.memory.activations[index] == alone.memory.activations).all()


@pytest.mark.parametrize("slow", ["bf16", "fp16"])
def test_the_faster_precision_wins(slow: str) -> None:
    data = spec("megatron", training={"precision": ["bf16", "fp16"]}).model_dump()
    data["cluster"]["topology"]["gpu"]["peak_tflops"][slow] = 10
    best = solve(Spec.model_validate(data)).best
    assert best is not None
    assert best.plan.precision != slow
    alone = data | {"training": data["training"] | {"precision": best.plan.precision}}
    assert solve(Spec.model_validate(alone)).best == best


def test_a_precision_that_was_not_asked_for_breaks_a_rule() -> None:
    job = make_job(spec("megatron"))
    broken_names = {r.rule for r in broken_rules(job, plan("none", 1, "fp16"))}
    assert broken_names == {"precision_chosen"}


def activations_spec(layers: int, framework: str = "megatron", **given: Any) -> Spec:
    training = {"offload_activations": layers, **given.pop("training", {})}
    return spec(framework, HOST, training=training, **given)


def test_activations_of_layers_leave_for_the_host() -> None:
    """Those of three of four layers leave; one layer's are on their way."""
    usual = check(make_job(activations_spec(0)), plan("none", 1)).stages[0]
    moved = check(make_job(activations_spec(3)), plan("none", 1)).stages[0]
    of_layer = usual.parts["activations"] / 4
    assert moved.parts["activations"] == pytest.approx(of_layer)
    on_the_way = moved.parts["workspace"] - usual.parts["workspace"]
    assert on_the_way == pytest.approx(of_layer)
    assert moved.host_gib == pytest.approx(3 * of_layer)
    assert usual.host_gib == 0


def test_copies_that_nothing_hides_take_their_time_over_pcie() -> None:
    """Down in a forward, and up in a backward, where nothing hides copies."""
    slow = HOST | {"pcie_gb_s": 0.5}
    fields = {"training": {"offload_activations": 2}}
    found = price_of(spec("megatron", slow, **fields))
    # Half of a layer's activations stay, and as much leaves.
    of_layer = float(found.memory.activations[0])
    shown = found.time.forward["offload"][0] + found.time.backward["offload"][0]
    hidden = found.time.forward["compute"][0] + found.time.backward["compute"][0]
    all_s = 2 * of_layer / 0.5e9
    assert all_s - hidden <= shown <= all_s


def price_of(given: Spec) -> Any:
    job = make_job(given)
    rows, _ = to_row(job.fabric, plan("none", 1))
    return price(job, rows)


@pytest.mark.parametrize(
    "framework", ["megatron", "generic", "ideal", "fsdp", "deepspeed"]
)
def test_who_offloads_activations(framework: str) -> None:
    found = activations_spec(1, framework)
    is_kept = "activations_offloaded" not in broken(found, "none", 1)
    assert is_kept == (framework != "deepspeed")
    recomputed = plan(
        "none", 1, recompute="full", stages=({"layers": 4, "recompute_layers": 4},)
    )
    names = {rule.rule for rule in broken_rules(make_job(found), recomputed)}
    assert "activations_offloaded" in names


def test_a_layer_must_stay() -> None:
    with pytest.raises((SpecError, ValueError), match="offload_activations"):
        activations_spec(4)
    with pytest.raises((SpecError, ValueError), match=r"needs cluster\.topology"):
        spec("megatron", None, training={"offload_activations": 1})


def part_of(share: float, framework: str = "generic", **host: Any) -> Spec:
    training = {"offload_fraction": share}
    return spec(framework, HOST | host, training=training)


@pytest.mark.parametrize("offload", ["optimizer", "gradients"])
def test_memory_of_a_part_lies_between_none_and_all(offload: str) -> None:
    """Three quarters leave, a quarter stays; so do the gradients that it needs."""
    none, part, whole = (
        check(make_job(part_of(share)), plan(named, 3)).stages[0]
        for named, share in (("none", 1), (offload, 0.75), (offload, 1))
    )
    assert part.parts["optimizer"] == pytest.approx(none.parts["optimizer"] / 4)
    stays = 1 / 4 if offload == "gradients" else 1
    gradients = none.parts["gradients"] * stays
    assert part.parts["gradients"] == pytest.approx(gradients)
    on_host = whole.host_gib - 0.25 * none.parts["optimizer"]
    assert part.host_gib == pytest.approx(on_host)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_host_and_gpu_update_side_by_side(share: float) -> None:
    """The slower of the two ends the step: a part of each one's time for all."""
    slow: dict[str, Any] = {"memory_gb_s": 100, "pcie_gb_s": 1_000_000}
    times = {
        (named, of_host): check(
            make_job(part_of(of_host, **slow)), plan(named, 1)
        ).time_parts
        for named, of_host in (("none", 1.0), ("optimizer", share), ("optimizer", 1.0))
    }
    on_gpu_s = times["none", 1.0]["optimizer"]
    on_host_s = times["optimizer", 1.0]["offload"]
    found = times["optimizer", share]
    assert found["optimizer"] == pytest.approx((1 - share) * on_gpu_s)
    longest_s = max(share * on_host_s, (1 - share) * on_gpu_s)
    assert found["optimizer"] + found["offload"] == pytest.approx(longest_s, rel=1e-3)


def test_a_part_may_be_faster_than_either() -> None:
    """A host as fast as the GPU halves the update, so that nothing is dominated."""
    specs = [with_slow_memory(part_of(share, pcie_gb_s=10**6)) for share in (1, 0.5)]
    whole_s, half_s = (
        check(make_job(one), plan(named, 1)).step_s
        for one, named in zip(specs, ("none", "optimizer"), strict=True)
    )
    assert not is_never_faster(make_job(specs[1]))
    assert half_s < whole_s


def with_slow_memory(given: Spec) -> Spec:
    """Return a spec whose GPUs have the rate of a quarter of their host."""
    data = given.model_dump()
    data["cluster"]["topology"]["gpu"]["memory_gb_s"] = 130 / 4 / 0.85
    return Spec.model_validate(data)


def test_without_a_fused_kernel_the_host_takes_six_times_as_long() -> None:
    """PyTorch's AdamW beside DeepSpeed's (Ren et al. 2021, table 4)."""
    shown = {}
    for framework in ("fsdp", "torchtitan"):
        job = make_job(spec(framework, HOST | {"pcie_gb_s": 10**6}))
        rows, _ = to_row(job.fabric, plan("parameters", 3))
        shown[framework] = price(job, rows).time.sync_layer["offload"][0]
    assert shown["fsdp"] == pytest.approx(6 * shown["torchtitan"], rel=1e-3)


FRACTIONS = {
    "megatron": {("optimizer", 1), ("optimizer", 2), ("optimizer", 3)},
    "deepspeed": {("optimizer", 3), ("gradients", 3)},
    "torchtitan": set(),
    "fsdp": set(),
}  # fmt: skip


@pytest.mark.parametrize("framework", FRACTIONS)
def test_who_offloads_a_part(framework: str) -> None:
    found = part_of(0.5, framework)
    legal = {
        (offload, zero)
        for offload in ("optimizer", "gradients", "parameters")
        for zero in (1, 2, 3)
        if not any(name.startswith("offload_") for name in broken(found, offload, zero))
    }
    assert legal == FRACTIONS[framework]


@pytest.mark.parametrize(
    ("host", "training", "told"),
    [
        (None, {"offload_fraction": 0.5}, r"needs cluster\.topology\.host"),
        (HOST, {"offload_fraction": 0}, "expected a number above 0, up to 1"),
        (HOST | DRIVES, {"offload_fraction": 0.5, "offload_to": "nvme"}, "nvme"),
    ],
)
def test_parts_need_a_host(host: Any, training: dict[str, Any], told: str) -> None:
    with pytest.raises((SpecError, ValueError), match=told):
        spec("deepspeed", host, training=training)
