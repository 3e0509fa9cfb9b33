"""Random plans against an independent, slow re-computation of their bytes and seconds.

`tests/recomputed` shares nothing with `cost/`; both say the same to nine digits.
The gate draws half of the plans, but all with LoRA, of which few are alike.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import pytest

from meshwright.check.check import check
from meshwright.cost.job import Job
from meshwright.cost.whole_model import recomputed_flops
from meshwright.cost.whole_model import step_flops as model_flops
from meshwright.economics.ledger import ledger
from meshwright.plans.plan import Plan
from meshwright.results.priced_plan import PricedPlan
from tests.helpers.extent import gate
from tests.recomputed.case import Case
from tests.recomputed.flops import step_flops
from tests.recomputed.memory import GIB, host_bytes, stage_bytes
from tests.recomputed.passed import Key, Sum, key, link_seconds, summed, unlike_links
from tests.recomputed.plans import (
    FIRST_OFFLOADED,
    FIRST_PACKED,
    FIRST_PICKING,
    FIRST_SPLIT,
    FIRST_WITH_FRACTION,
    FIRST_WITH_LORA,
    FIRST_WITH_MODULES,
    FIRST_WITH_MUON,
    FIRST_WITH_SEGMENTS,
    FIRST_WITH_SPLIT_EXPERTS,
    FIRST_WITH_V,
    random_plan,
)
from tests.recomputed.step import Step


def draws(first: int, everything: int) -> range:
    """Return the seeds of plans of one kind: in the gate the first half."""
    return range(first, first + gate(everything // 2, everything=everything))


SEEDS = [
    *draws(0, 150), 618, 1401, 30077, 30485,
    *draws(FIRST_WITH_MODULES, 40),
    *draws(FIRST_WITH_SEGMENTS, 20),
    *range(FIRST_WITH_LORA, FIRST_WITH_LORA + 60),
    *draws(FIRST_WITH_MUON, 20),
    *draws(FIRST_OFFLOADED, 15),
    *draws(FIRST_SPLIT, 10),
    *draws(FIRST_WITH_FRACTION, 30),
    *draws(FIRST_WITH_SPLIT_EXPERTS, 30),
    *draws(FIRST_WITH_V, 40),
    *draws(FIRST_PACKED, 60),
    *draws(FIRST_PICKING, 60),
]  # fmt: skip
"""618 and 1401 fill bubbles with no more than what hides no traffic; 30077 and 30485
freeze an embedding and a head in fp32 under FSDP."""

ROOT = Path(__file__).parent

K = TypeVar("K")


class Drawn:
    """A random plan, priced both ways, each of them once."""

    def __init__(self, seed: int) -> None:
        self.job, self.plan = random_plan(seed)

    @cached_property
    def priced(self) -> PricedPlan:
        return check(self.job, self.plan)

    @cached_property
    def case(self) -> Case:
        job, plan = self.job, self.plan
        return Case(job.spec.at(plan.precision), plan, job.efficiency.model_dump())

    @cached_property
    def step(self) -> Step:
        return Step(self.case)


@pytest.fixture(scope="module", params=SEEDS)
def drawn(request: pytest.FixtureRequest) -> Drawn:
    """Return a plan, for one test after another."""
    return Drawn(request.param)


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-15)


def nonzero(parts: Mapping[K, float]) -> dict[K, object]:
    return {name: close(part) for name, part in parts.items() if part != close(0.0)}


def test_memory_of_every_stage(drawn: Drawn) -> None:
    case = drawn.case
    for number, stage in enumerate(drawn.priced.stages):
        found = stage_bytes(case, number)
        gib = {name: part / GIB for name, part in found.items()}
        assert {n: part for n, part in stage.parts.items() if part} == nonzero(gib)
        assert stage.total_gib == close(sum(gib.values()))
        assert stage.host_gib == close(host_bytes(case, number) / GIB)


def test_step_by_part(drawn: Drawn) -> None:
    priced, step = drawn.priced, drawn.step
    assert priced.step_s == close(step.step_s)
    assert priced.schedule_s == close(step.schedule_s)
    # Of stages that take as long, either may be the slowest.
    paces = [sum(stage.parts.values()) for stage in step.stages]
    ends = [sum(stage.end.values()) for stage in step.stages]
    assert any(
        has_parts(priced, step.parts_at(slowest, longest))
        for slowest in range(len(paces))
        for longest in range(len(ends))
        if paces[slowest] == close(max(paces)) and ends[longest] == close(max(ends))
    )


def has_parts(priced: PricedPlan, parts: Mapping[str, float]) -> bool:
    """Return whether each part of the step is as given, up to what sums round off."""
    least = 1e-12 * priced.step_s
    return all(
        priced.time_parts.get(name, 0.0) == pytest.approx(part, rel=1e-9, abs=least)
        for name, part in {**dict.fromkeys(priced.time_parts, 0.0), **parts}.items()
    )


def test_every_collective(drawn: Drawn) -> None:
    plan, step = drawn.plan, drawn.step
    result = ledger(drawn.job, plan)
    for stage in range(plan.pp):
        found: dict[Key, list[Sum]] = {}
        for entry in result.of_stage(stage):
            name = key(
                entry.phase,
                entry.part,
                entry.operation,
                entry.group,
                entry.ranks,
                entry.bytes,
            )
            one = Sum(entry.count_per_step, entry.seconds, entry.exposed_s)
            found.setdefault(name, []).append(one)
        added = {
            name: [sum(column) for column in zip(*sums, strict=True)]
            for name, sums in found.items()
        }
        expected = summed(step, stage)
        assert added.keys() == expected.keys()
        for name, sums in added.items():
            assert sums == pytest.approx(list(expected[name]), rel=1e-9, abs=1e-15)


def test_what_links_carry(drawn: Drawn) -> None:
    plan, priced, case, step = drawn.plan, drawn.priced, drawn.case, drawn.step
    assert not unlike_links(step)
    each = [link_seconds(step, stage) for stage in range(plan.pp)]
    levels = case.spec.cluster.levels
    children = ["gpu", *(level.name for level in levels)]
    names = [
        f"{child}0 -> {level.name}0"
        for child, level in zip(children, levels, strict=False)
    ]
    seconds = {
        (names[level], group): max(one.get((level, group), 0.0) for one in each)
        for level, group in {name for one in each for name in one}
    }
    found = {(link.link, link.phase): link.seconds for link in priced.all_links}
    assert found == nonzero(seconds)
    busy = [
        sum(seconds for (at, _), seconds in one.items() if at == level)
        for one in each
        for level in range(len(levels))
    ]
    assert priced.link_utilisation == close(max(busy) / step.step_s)


def test_rates(drawn: Drawn) -> None:
    plan, priced, case = drawn.plan, drawn.priced, drawn.case
    peak = getattr(case.spec.cluster.topology.gpu.peak_tflops, plan.precision) * 1e12
    step_s = drawn.step.step_s
    tokens = case.training.global_batch * case.training.seq_len
    gpus = case.spec.cluster.gpus
    assert priced.mfu == close(step_flops(case) / (peak * gpus) / step_s)
    assert priced.tokens_per_s_per_gpu == close(tokens / gpus / step_s)


def test_a_recomputed_layer_is_a_third_of_what_it_takes(drawn: Drawn) -> None:
    """Its forward: of the model's FLOPs all but the head's are layers' three passes."""
    model, training = drawn.job.spec.model, drawn.job.spec.training
    if model.first_dense_layers:
        return
    batch = training.seq_len, training.global_batch
    head = 6.0 * model.vocab * model.d_model * training.seq_len * training.global_batch
    if model.mtp_layers:
        return
    layers = 3 * model.n_layers * recomputed_flops(model, *batch)
    assert layers + head == close(model_flops(model, *batch))


SEEN = {
    "tp", "cp", "ep", "vpp", "gpipe", "zb-h1", "zero 0", "zero 1", "zero 2", "zero 3",
    "optimizer", "gradients", "parameters", "nvme", "none", "selective", "full",
    "megatron", "deepspeed", "internevo", "torchtitan", "fsdp", "generic", "ideal",
    "experts", "latent", "further tokens", "an embedding beside the head",
    "leading", "shared", "capacity", "tied", "without sequence parallelism", "fp8",
    "replicas of shards", "shared uplinks", "hosts", "plain attention",
    "core_attn", "layernorm", "mla_up_proj", "moe_act", "moe", "shared_experts", "mlp",
    "segments", "dispatched over nodes",
    "lora", "nf4", "int8", "muon", "queries and keys normed", "a cut MLP",
    "offloaded activations", "split activations",
    "a part of the optimizer", "a part of the optimizer and gradients",
    "texts", "loops over positions", "loops over positions of latent attention",
    "loops of an exchange", "loops that are repeated",
}  # fmt: skip
"""What plans of these tests must have, each several times."""


def traits(job: Job, plan: Plan) -> set[str]:
    spec, model = job.spec, job.spec.model
    moe = model.moe
    found = {
        plan.schedule: True,
        f"zero {plan.zero}": True,
        plan.offload: plan.offload != "none",
        plan.recompute: True,
        spec.framework: True,
        plan.precision: True,
        "nvme": plan.offload != "none" and spec.training.offload_to == "nvme",
        "experts": moe is not None,
        "latent": model.mla is not None,
        "leading": model.first_dense_layers > 0,
        "further tokens": model.mtp_layers > 0,
        "an embedding beside the head": (
            model.mtp_layers > 0 and plan.pp > 1 and not model.tied_embeddings
        ),
        "shared": moe is not None and moe.shared_d_ff > 0 and plan.tp > 1,
        "capacity": moe is not None and bool(moe.capacity_factor) and plan.ep > 1,
        "tied": model.tied_embeddings and plan.pp > 1,
        "without sequence parallelism": plan.tp > 1 and not plan.sequence_parallel,
        "replicas of shards": plan.dp_shard > 1 and plan.dp_replicate > 1,
        "shared uplinks": "shared"
        in {level.uplink for level in spec.cluster.levels[1:]},
        "hosts": plan.world_size > spec.cluster.levels[0].size,
        "plain attention": spec.training.attention == "plain",
        "queries and keys normed": model.qk_norm and model.mla is None,
        "a cut MLP": spec.training.mlp_chunks > 1 and moe is None,
    }
    found |= {name: getattr(plan, name) > 1 for name in ("tp", "cp", "ep", "vpp")}
    found["dispatched over nodes"] = (
        moe is not None
        and spec.training.expert_dispatch == "deepep"
        and plan.ep > spec.cluster.levels[0].size
    )
    found["segments"] = plan.recompute_segment > 1
    found["offloaded activations"] = spec.training.offload_activations > 0
    has_part = spec.training.offload_fraction < 1
    found["a part of the optimizer"] = has_part and plan.offload == "optimizer"
    found["a part of the optimizer and gradients"] = (
        has_part and plan.offload == "gradients"
    )
    found["split activations"] = spec.training.partition_activations
    found["muon"] = spec.training.optimizer == "muon"
    if spec.training.lora is not None:
        found |= {"lora": True, spec.training.lora.weights: True}
    found |= text_traits(job, plan)
    modules = filter(None, plan.recompute_modules.split("+"))
    return {name for name, has in found.items() if has} | {*modules}


def text_traits(job: Job, plan: Plan) -> dict[str, bool]:
    training, latent = job.spec.training, job.spec.model.mla is not None
    has_loops = job.spec.framework == "megatron" and training.text_loops
    turns = has_loops and training.fused is not None and "rope" not in training.fused
    exchanges = has_loops and training.context_exchange == "ulysses" and plan.cp > 1
    again = {"mla_up_proj": turns and latent, "core_attn": exchanges}
    modules = plan.recompute_modules.split("+")
    return {
        "texts": training.texts > 1,
        "loops over positions": turns and not latent,
        "loops over positions of latent attention": turns and latent,
        "loops of an exchange": exchanges,
        "loops that are repeated": any(again.get(name, False) for name in modules),
    }


def test_plans_have_everything() -> None:
    """What no plan has is held against nothing."""
    counts = Counter(trait for seed in SEEDS for trait in traits(*random_plan(seed)))
    assert {name: counts[name] for name in SEEN if counts[name] < 2} == {}


ALLOWED = ("meshwright.spec", "meshwright.plans.plan", "tests.recomputed")


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.py")), ids=lambda path: path.name)
def test_it_shares_nothing_with_what_it_checks(path: Path) -> None:
    """But for drawing plans, it reads specs and plans alone."""
    if path.name in ("plans.py", "specs.py", Path(__file__).name):
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = [node.module or "" for node in froms]
    found = [name for name in names if name.startswith(("meshwright", "tests"))]
    assert not {name for name in found if not name.startswith(ALLOWED)}
    assert not any(
        alias.name.startswith("meshwright")
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    )
