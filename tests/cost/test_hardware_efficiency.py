"""Efficiencies: their defaults and limits, and what profiles do to them."""

from __future__ import annotations

import pytest

from meshwright.cost.job import Efficiency

TABLE = {
    "gemm": (0.90, 0.2, 1.1),
    "gemm_half_size": (96.0, 1.0, 2_000.0),
    "attention": (0.55, 0.05, 1.0),
    "older_attention": (0.55, 0.05, 1.0),
    "memory": (0.85, 0.05, 1.0),
    "launch_s": (4e-6, 1e-7, 1e-3),
    "dispatch_s": (2e-4, 1e-6, 1e-2),
    "microbatch_s": (5e-4, 1e-5, 3e-2),
    "link": (0.80, 0.1, 1.0),
    "latency": (1.0, 0.1, 20.0),
    "grad_overlap": (0.70, 0.01, 1.0),
    "gather_overlap": (0.80, 0.01, 1.0),
    "tp_overlap": (0.5, 0.01, 1.0),
}
"""Default, least and most of each, as published: profiles are factors on these."""

COSTS = {"gemm_half_size", "launch_s", "dispatch_s", "microbatch_s", "latency"}
"""The smaller, the faster."""


def test_defaults_and_limits() -> None:
    fields = Efficiency.model_json_schema()["properties"]
    names = ("default", "minimum", "maximum")
    found = {key: tuple(field[name] for name in names) for key, field in fields.items()}
    assert found == TABLE


@pytest.mark.parametrize("name", TABLE)
def test_factors_stay_within_limits(name: str) -> None:
    default, least, most = TABLE[name]
    efficiency = Efficiency()
    assert getattr(efficiency.times({}), name) == default
    factor = 0.9
    assert getattr(efficiency.times({name: factor}), name) == pytest.approx(
        factor * default
    )
    assert getattr(efficiency.times({name: 1e9}), name) == most
    assert getattr(efficiency.times({name: 1e-9}), name) == least
    others = efficiency.times({name: factor}).model_dump()
    others.pop(name)
    assert others == {key: row[0] for key, row in TABLE.items() if key != name}


@pytest.mark.parametrize("name", TABLE)
def test_the_worse_of_two_is_the_slower(name: str) -> None:
    less, more = Efficiency(), Efficiency()
    less = less.model_copy(update={name: TABLE[name][1]})
    more = more.model_copy(update={name: TABLE[name][2]})
    slower = more if name in COSTS else less
    assert less.worse(more) == more.worse(less) == slower
