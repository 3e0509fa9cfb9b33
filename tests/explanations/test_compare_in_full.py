"""What GPUs hold and send under each plan, by arithmetic of its own."""

from __future__ import annotations

import functools

import pytest

import meshwright as mw
from meshwright.cost.profile import Profile
from meshwright.cost.whole_model import total_params
from meshwright.explanations.compare import compare, in_full, sent_gb
from meshwright.loading.plan_text import read_plan
from meshwright.planner.solve import solve
from meshwright.report.compare import compare_sections
from meshwright.report.tables import Table
from meshwright.results.comparison import ComparedPlan, PartSharding
from meshwright.results.priced_plan import LinkLoad

SPEC = mw.load("gpt-1.3b-2xa100-pcie", mw.Spec)
"""24 layers, width 2,048, 51,200 words in a tied table; Megatron-LM keeps 2 + 4 + 12
bytes a parameter."""

LAYERS, WIDTH, BATCH, SEQ_LEN, VOCAB = 24, 2048, 512, 2048, 51_200
PARAMS = total_params(SPEC.model)
GIB = 2**30


@functools.cache
def told(plan: str, framework: str = "megatron") -> ComparedPlan:
    spec = SPEC.model_copy(update={"framework": framework})
    found = compare(spec, [(plan, read_plan(plan))], solve)
    (result,) = in_full(spec, found, Profile()).plans
    assert result.plan is not None
    return result


def held(plan: str, part: str) -> PartSharding:
    return next(holding for holding in told(plan).holdings if holding.part == part)


ZERO_1 = "dp_shard=2,zero=1,offload=none"


@pytest.mark.parametrize(
    ("part", "width", "shards"),
    [("weights", 2, 1), ("gradients", 4, 1), ("optimizer", 12, 2)],
)
def test_zero_1_shards_the_optimizer_alone(part: str, width: int, shards: int) -> None:
    found = held(ZERO_1, part)
    assert found.gib == pytest.approx([PARAMS * width / shards / GIB])
    assert found.copies == pytest.approx(2 / shards)
    assert found.divided_by == ({"dp_shard": pytest.approx(2)} if shards == 2 else {})


def test_a_pipeline_holds_a_tied_table_twice() -> None:
    found = held("pp=2,layers=[12,12],offload=none", "weights")
    assert found.copies == pytest.approx(1 + VOCAB * WIDTH / PARAMS)
    assert sum(found.gib) == pytest.approx((PARAMS + VOCAB * WIDTH) * 2 / GIB)


def test_the_first_of_two_stages_has_two_micro_batches_in_flight() -> None:
    """12 layers x 2 and 12 x 1: 18 on average, of 24 on one GPU."""
    found = held(
        "pp=2,vpp=1,layers=[12,12],recompute=none,schedule=1f1b", "activations"
    )
    assert found.gib[0] == pytest.approx(2 * found.gib[1])
    assert found.divided_by["pp"] == pytest.approx(24 / 18)
    assert found.copies == pytest.approx(1)


def test_tensors_are_cut_in_two_but_for_what_each_gpu_repeats() -> None:
    found = held("tp=2,offload=none", "weights")
    assert found.copies is not None
    assert 1 < found.copies < 1.01
    assert found.divided_by == {"tp": pytest.approx(2 / found.copies)}
    assert 2 * found.gib[0] / found.copies == pytest.approx(2 * PARAMS / GIB)


def test_sequence_parallelism_ends_the_copies_of_activations() -> None:
    both = [
        held(
            f"tp=2,recompute=none,micro_batch=1,sequence_parallel={one}", "activations"
        )
        for one in ("true", "false")
    ]
    assert both[0].copies == pytest.approx(1)
    assert both[0].divided_by == {"tp": pytest.approx(2)}
    assert both[1].copies is not None
    assert 1 < both[1].copies < 2
    assert both[1].gib[0] == pytest.approx(both[1].copies * both[0].gib[0])


def test_offloaded_state_has_its_home_on_the_host() -> None:
    found = held("dp_shard=2,zero=1,offload=optimizer", "optimizer")
    assert found.is_offloaded
    assert found.gib == (0.0,)
    assert found.divided_by == {"dp_shard": pytest.approx(2)}
    assert not held("dp_shard=2,zero=1,offload=optimizer", "weights").is_offloaded


@pytest.mark.parametrize(
    ("plan", "parts"),
    [
        ("zero=1,offload=optimizer", {"optimizer"}),
        ("zero=2,offload=gradients", {"optimizer", "gradients"}),
        ("zero=3,offload=parameters", {"optimizer", "gradients", "weights"}),
    ],
)
def test_each_way_to_offload_names_what_moves(plan: str, parts: set[str]) -> None:
    holdings = told(f"dp_shard=2,{plan}", "deepspeed").holdings
    assert {one.part for one in holdings if one.is_offloaded} == parts


def test_buffers_are_nobodys_copy() -> None:
    found = held(ZERO_1, "overhead")
    assert found.copies is None
    assert found.divided_by == {}


def test_what_tensor_parallelism_sends() -> None:
    """A ring of two passes on each byte of an all-reduce once.

    Four all-reduces a layer, and one each of embedding and head, of 8.4 MB a sequence.
    """
    plan = told("tp=2").plan
    assert plan is not None
    hidden_gb = SEQ_LEN * WIDTH * 2 / 1e9
    assert sent_gb(plan) == pytest.approx(
        BATCH * (4 * LAYERS + 2) * hidden_gb, rel=1e-6
    )


def test_phases_add_up_on_the_link_that_carries_most() -> None:
    plan = told("tp=2").plan
    assert plan is not None
    carried = [("a", "tp", 5.0), ("a", "pp", 2.0), ("b", "tp", 6.0), ("a", "dp", 1.0)]
    loads = tuple(
        LinkLoad(link=link, phase=phase, gb=gb, seconds=1.0, utilisation=0.1)
        for link, phase, gb in carried
    )
    assert sent_gb(plan.model_copy(update={"all_links": loads})) == 8
    assert sent_gb(plan.model_copy(update={"all_links": ()})) == 0


def table(plan: str, title: str) -> Table:
    comparison = compare(SPEC, [(plan, read_plan(plan))], solve)
    sections = compare_sections(in_full(SPEC, comparison, Profile()))
    return next(
        section
        for section in sections
        if isinstance(section, Table) and section.title.startswith(title)
    )


def test_the_table_counts_collectives_per_layer_and_step() -> None:
    plan = "tp=2,sequence_parallel=false,micro_batch=4,recompute=none"
    rows = {row[:2]: row for row in table(plan, "Collectives").rows}
    forward = rows["layer: attention output, mlp output", "forward"]
    assert forward[2:4] == ("all-reduce", "tp x 2")
    assert forward[4] == f"{4 * SEQ_LEN * WIDTH * 2 / 1e6:,.3g}"
    assert forward[5:7] == ("2", f"{2 * LAYERS * BATCH // 4:,}")
    assert rows["layer: attention input, mlp input", "backward"][5] == "2"
    assert rows["embedding: output", "forward"][6] == f"{BATCH // 4}"


def cells(plan: str) -> dict[str, str]:
    return {row[0]: row[1] for row in table(plan, "What a GPU holds").rows}


def test_the_table_says_how_memory_is_split() -> None:
    stages = cells("pp=2,layers=[13,11]")
    assert stages["layers"] == "13 / 11"
    assert stages["sequences of a replica"] == f"{BATCH}"
    assert "pp ÷1.85, 1.08 copies" in stages["weights"]
    replicas = cells(ZERO_1)
    assert replicas["optimizer"] == f"{PARAMS * 6 / GIB:.2f}, dp_shard ÷2"
    assert replicas["weights"] == f"{PARAMS * 2 / GIB:.2f}, 2 copies"
    assert replicas["sequences of a replica"] == f"{BATCH // 2}"


def test_logits_are_cut_by_tensors_and_lie_on_the_last_stage_alone() -> None:
    assert held("tp=2,offload=none", "logits").divided_by["tp"] == pytest.approx(2)
    assert "pp" not in held("pp=2,layers=[12,12],offload=none", "logits").divided_by
    assert held("pp=2,layers=[12,12],offload=none", "logits").gib[0] == 0


def test_experts_that_tensor_ranks_split_go_whole_with_them() -> None:
    """Two ranks hold half of every expert: all of the state but what is replicated."""
    fields = {
        "model": {"preset": "mixtral-8x7b", "n_layers": 4},
        "cluster": {"gpu": "h100-sxm-80gb", "count": 8},
        "framework": "megatron",
        "training": {"seq_len": 1024, "global_batch": 16},
    }
    spec = mw.load(fields, mw.Spec)
    plan = "tp=2,ep=4,etp=2,dp_shard=4,zero=1,pp=1,offload=none,micro_batch=1"
    found = compare(spec, [(plan, read_plan(plan))], solve)
    (result,) = in_full(spec, found, Profile()).plans
    parts = {holding.part: holding for holding in result.holdings}
    assert parts["weights"].divided_by["tp"] == pytest.approx(2, rel=0.01)
    optimizer = parts["optimizer"]
    assert optimizer.divided_by["tp"] == pytest.approx(2, rel=0.01)
    assert optimizer.copies == pytest.approx(1, rel=0.01)
