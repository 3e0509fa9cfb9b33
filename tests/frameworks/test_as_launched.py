"""A plan that is judged has what its framework does where the text is silent."""

from __future__ import annotations

import pytest

import meshwright as mw
from meshwright.frameworks.base.registry import as_launched
from meshwright.spec.plan_fields import Pins

SPEC = mw.load("gpt-1.3b-2xh100-nvlink", mw.Spec)


def modules(spec: mw.Spec = SPEC, **fields: object) -> tuple[str, ...] | None:
    return as_launched(Pins.model_validate(fields), spec).recompute_modules


def test_selective_recomputation_has_the_modules_of_the_framework() -> None:
    assert SPEC.framework == "megatron"
    assert modules(recompute="selective") == ("core_attn",)
    assert modules(recompute="selective", recompute_modules="mlp") == ("mlp",)


@pytest.mark.parametrize("recompute", [None, "none", "full", ["selective", "full"]])
def test_other_recomputation_stays_as_it_is(recompute: object) -> None:
    assert modules(recompute=recompute) is None


def test_the_spec_may_name_modules() -> None:
    pins = Pins.model_validate({"recompute_modules": "mlp"})
    assert (
        modules(SPEC.model_copy(update={"pins": pins}), recompute="selective") is None
    )


def test_the_user_is_told() -> None:
    notes: list[str] = []
    as_launched(Pins.model_validate({"recompute": "selective"}), SPEC, notes)
    assert notes == [
        "--plan: recompute_modules: core_attn, what megatron recomputes unless told"
    ]
