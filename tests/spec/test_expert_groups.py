"""Groups of experts, and frameworks that send a token once to each node."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from meshwright.loading.load import load_spec
from meshwright.planner.solve import solve
from meshwright.spec.model_parts import Experts
from meshwright.spec.spec import Spec

MOE: dict[str, Any] = {"n_experts": 8, "top_k": 4, "d_ff": 512}


@pytest.mark.parametrize(
    ("groups", "chosen", "told"),
    [
        (3, 1, "does not divide model.moe.n_experts 8"),
        (4, 5, "is above model.moe.route_groups; accepted: up to 4"),
        (4, 1, "is above the experts of its groups; accepted: up to 2"),
    ],
)
def test_groups_that_hold_no_choice_are_refused(
    groups: int, chosen: int, told: str
) -> None:
    with pytest.raises(ValidationError, match=told):
        Experts(**MOE, route_groups=groups, groups_per_token=chosen)


@pytest.mark.parametrize(("framework", "is_legal"), [("megatron", 1), ("fsdp", 0)])
def test_dispatch_to_nodes_is_legal_where_it_is_launched(
    framework: str, is_legal: int
) -> None:
    data = load_spec("mixtral-8x7b-64xh100").model_dump() | {"framework": framework}
    data["training"] = data["training"] | {"expert_dispatch": "deepep"}
    outcome = solve(Spec.model_validate(data))
    assert (outcome.best is not None) == bool(is_legal)
