"""Who decided each field of a plan: the spec, the other fields, or the search."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.explanations.decisions import with_pins
from meshwright.explanations.judged_plan import judged_plan
from meshwright.loading.plan_text import read_plan
from meshwright.planner.options import Options
from meshwright.planner.solve import asked_plan
from meshwright.spec.spec import Spec
from tests.helpers.tiny import tiny_spec

TWO, DENSE = "gpt-1.3b-2xa100-pcie", "llama2-13b-8xa100"

EXPERTS = "mixtral-8x7b-64xh100"

TINY = "four GPUs without a host"

OPEN = "pp=[1,2]"

DEGREES = {"tp", "pp", "cp"}

ALONE = {"vpp", "schedule", "layers"}
"""What one stage leaves no choice of."""


def spec_of(name: str) -> Spec:
    if name == TINY:
        return tiny_spec("fsdp", 80, 4, {"n_layers": 4})
    return mw.load(name, Spec)


@pytest.mark.parametrize(
    ("name", "plan", "follows"),
    [
        # All GPUs are tensors', so that nothing is left to shard state over.
        (TWO, "tp=2,recompute=none", {"pp", "cp", "dp_replicate", "zero", *ALONE}),
        # One rank has no sequence to share with others.
        (
            TWO,
            "pp=2,layers=[12,12],recompute=none",
            {"tp", "cp", "dp_replicate", "zero", "sequence_parallel"},
        ),
        # Copies may be shards: degrees other than those of shards stay open.
        (
            TWO,
            "dp_shard=2,zero=3,recompute=none",
            {*ALONE, "sequence_parallel"},
        ),
        # Two copies take both GPUs, whether or not they are shards.
        (
            TWO,
            "dp=2,microbatches=16,recompute=full",
            {"tp", "pp", "cp", *ALONE, "sequence_parallel"},
        ),
        # What tensors, stages and contexts leave are copies.
        (
            TWO,
            "tp=1,pp=1,cp=1,recompute=none",
            {"dp_replicate", *ALONE, "sequence_parallel"},
        ),
        # With two of eight GPUs left, a context or copies may have them.
        (DENSE, "tp=2,pp=2,recompute=full", set()),
        # A range of degrees decides none.
        (DENSE, f"tp=2,{OPEN},recompute=none", {*ALONE}),
        (
            DENSE,
            "tp=8,micro_batch=2,microbatches=32,recompute=none",
            {"pp", "cp", "dp_replicate", "zero", *ALONE},
        ),
        (
            TINY,
            "dp_shard=2,dp_replicate=2,recompute=full",
            {*DEGREES, *ALONE, "sequence_parallel"},
        ),
        (
            TINY,
            "cp=2,zero=3,micro_batch=2,recompute=none",
            {*ALONE, "sequence_parallel"},
        ),
        (EXPERTS, "tp=2,pp=2,ep=8,etp=2,recompute=none", set()),
        (EXPERTS, "tp=2,pp=2,ep=8,recompute=none", {"etp"}),
    ],
)
def test_what_is_given_leaves_some_fields_one_value(
    name: str, plan: str, follows: set[str]
) -> None:
    """Shards follow from all other degrees, and the batch leaves its last factor.

    A mode of recomputation that is given is for all layers. A dense model has no
    experts to spread, without a host nothing is offloaded, and one level has one mesh.
    """
    spec = with_pins(spec_of(name), read_plan(plan))
    judged = judged_plan(spec, asked_plan(spec, Options(is_brief=True)))
    names = {
        origin: {one.name for one in judged if one.origin == origin}
        for origin in ("given", "follows", "chosen")
    }
    assert sum(map(len, names.values())) == len(judged)
    given = {part.partition("=")[0] for part in plan.split(",") if "=" in part}
    assert names["given"] == given - ({"pp"} if OPEN in plan else set()) | {"precision"}
    expected = follows | {"dp_shard", "recompute_layers"}
    expected.add("micro_batch" if "microbatches" in given else "microbatches")
    if name != EXPERTS:
        expected |= {"ep", "etp", "mesh"}
    if name == TINY:
        expected.add("offload")
    assert names["follows"] == expected - given
