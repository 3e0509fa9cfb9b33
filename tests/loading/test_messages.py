"""Messages on fields anywhere in any file: none is taken for what it is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

import meshwright as mw
from meshwright.cost.profile import Profile
from meshwright.evidence.runs import Run
from meshwright.loading.price_list import priced_machines
from meshwright.reading.document import Document, Where, explain
from meshwright.spec.open_spec import PriceList
from meshwright.spec.plan_fields import Pins
from meshwright.sweeps.sweep import SweepFields

SCHEMAS = [mw.Spec, mw.ServingSpec, Pins, PriceList, Profile, Run, SweepFields]


def nests(annotation: Any, depth: int = 0) -> Iterator[Any]:
    """Yield data that have an unknown field in each model below an annotation."""
    if depth > 6:
        return
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield {"bogus": 1}
        for name, info in annotation.model_fields.items():
            for inner in nests(info.annotation, depth + 1):
                yield {info.alias or name: inner}
    elif get_origin(annotation) is dict:
        yield 7
        for inner in nests(get_args(annotation)[1], depth + 1):
            yield {"word": inner}
    else:
        is_list = get_origin(annotation) is tuple
        for part in get_args(annotation):
            for inner in nests(part, depth + 1):
                yield [inner] if is_list else inner


@pytest.mark.parametrize("schema", SCHEMAS)
def test_an_unknown_field_anywhere_is_named(schema: type[BaseModel]) -> None:
    cases = list(nests(schema))
    assert cases
    for data in cases:
        document = Document(data, {(): Where("own.yaml")})
        with pytest.raises(ValidationError) as caught:
            schema.model_validate(data)
        told = explain(document, caught.value, schema)
        assert all(
            line.startswith(("own.yaml: ", "... and ")) for line in told.splitlines()
        )


KIND = {"preset": "llama3-8b", "pattern": ["near"]}
REST = {"cluster": "dgx-h100", "training": {"seq_len": 4096, "global_batch": 64}}


@pytest.mark.parametrize(
    ("kinds", "told"),
    [
        (
            {"near": {"attention_windw": 9}},
            "did you mean attention_window or attention_chunk?",
        ),
        ({"near": {"moe": {"n_experts": 4}}}, "model.kinds.near.moe: unknown field"),
        ({"near": 9}, "model.kinds.near: 9: expected a mapping with the fields mixer"),
        (9, "model.kinds: 9: expected a mapping"),
        ({5: {}}, "model.kinds.5: 5: expected text"),
    ],
)
def test_names_of_kinds_are_no_fields(kinds: Any, told: str) -> None:
    with pytest.raises(mw.SpecError, match=told.replace("?", r"\?")):
        mw.load({"model": {**KIND, "kinds": kinds}, **REST})


PRICES = """\
prices:
  - source: a page
    date: 2026-01-01
    instances:
      p5.48xlarge: {PRICE}
"""


@pytest.mark.parametrize(
    ("price", "told"),
    [
        ("{usd_per_hr: 9}", "instances.p5.48xlarge.usd_per_hr: unknown field"),
        ("{}", "instances.p5.48xlarge"),
        ("[9]", "instances.p5.48xlarge"),
    ],
)
def test_names_of_instances_are_no_fields(
    price: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(PRICES.replace("{PRICE}", price))
    with pytest.raises(mw.SpecError, match=told):
        priced_machines(path)
