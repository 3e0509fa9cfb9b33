"""Plans as text, and the chunks of their stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.loading.load import load_spec
from meshwright.loading.plan_text import read_plan
from meshwright.plans.plan import Plan, Stage, chunk_layers, most_chunks
from meshwright.plans.skeletons import (
    plain_columns,
    to_plan,
    to_row,
    to_split,
)
from meshwright.spec.plan_fields import (
    BY_PREFERENCE,
    FIELD,
    FIELDS,
    FieldColumns,
    Pins,
    PlanFields,
    Range,
)
from meshwright.topology.routed_fabric import build_fabric

SPEC = load_spec("llama2-13b-8xa100")
FABRIC = build_fabric(SPEC.cluster)
DEGREES = ("tp", "cp", "dp_shard", "dp_replicate", "pp")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a plan on eight GPUs; what presupposes a degree above 1 is plain without."""
    primes = draw(st.lists(st.sampled_from(DEGREES), min_size=3, max_size=3))
    values: dict[str, Any] = {name: 2 ** primes.count(name) for name in DEGREES}
    for field in FIELDS:
        if field.name in DEGREES:
            continue
        if field.beside in values and not field.is_open(values[field.beside]):
            values[field.name] = field.plain
        elif field.words:
            values[field.name] = draw(st.sampled_from(field.words))
        elif field.dtype is bool:
            values[field.name] = draw(st.booleans())
        else:
            values[field.name] = draw(st.integers(field.plain == 1 or 0, 3)) or 1
    stages = []
    for _ in range(values["pp"]):
        layers = draw(st.integers(1, 9))
        again = draw(st.integers(0, layers)) if values["recompute"] != "none" else 0
        stages.append(Stage(layers=layers, recompute_layers=again))
    mesh = {name: (values[name],) for name in DEGREES}
    return Plan(**values, stages=tuple(stages), mesh=mesh)


def pinned(pins: Pins) -> dict[str, Any]:
    """Return the single values that pins ask for."""
    values = {name: pin for name, pin in pins if pin is not None and name in FIELD}
    for name, pin in values.items():
        if isinstance(pin, Range):
            values[name] = pin.single
        elif isinstance(pin, tuple):
            (values[name],) = pin
    return values


@given(plans())
def test_the_text_of_a_plan_pins_all_that_it_decides(plan: Plan) -> None:
    """What is left out can be nothing else: the GPUs are so many, and not staged."""
    asked = pinned(read_plan(str(plan)))
    given = {field.name: getattr(plan, field.name) for field in FIELDS}
    assert asked.items() <= given.items()
    left_out = [FIELD[name] for name in given.keys() - asked.keys()]
    assert all(
        one.is_open(given[one.beside]) <= bool(one.beside_word) for one in left_out
    )
    assert all(given[one.name] == one.plain for one in left_out)


@given(plans())
def test_the_text_of_a_plan_asks_for_no_other_recomputed_layers(plan: Plan) -> None:
    for text in (str(plan), plan.brief):
        if read_plan(text).recomputes_all_layers:
            assert plan.recompute == "none" or plan.recomputes_all_layers


@given(plans())
def test_the_brief_text_of_a_plan_pins_all_that_is_not_plain(plan: Plan) -> None:
    asked = pinned(read_plan(plan.brief))
    plain = {field.name: field.plain for field in FIELDS}
    assert plain | asked == {field.name: getattr(plan, field.name) for field in FIELDS}


@given(plans())
def test_a_plan_is_the_same_after_columns(plan: Plan) -> None:
    plan = plan.model_copy(update={"ep": 1})
    rows, place = to_row(FABRIC, plan)
    assert to_plan(rows, 0, to_split(plan), place) == plan


def test_an_answer_pins_its_mesh_and_its_precision(tmp_path: Path) -> None:
    plan = {"tp": 2, "dp_replicate": 1, "dp_shard": 4, "zero": 1, "precision": "fp16"}
    text = ",".join(f"{name}={value}" for name, value in plan.items())
    mesh = {"tp": [2], "cp": [1], "dp_shard": [4], "dp_replicate": [1], "pp": [1]}
    path = tmp_path / "answer.json"
    path.write_text(json.dumps({"plan": plan | {"mesh": mesh}}))
    pins = read_plan(str(path))
    assert pins.mesh is not None
    assert pins.mesh.tp == (2,)
    assert pins.precision == ("fp16",)
    assert pinned(pins) == pinned(read_plan(text))


def test_every_field_is_declared_wherever_fields_are() -> None:
    names = FIELD.keys()
    assert names == PlanFields.model_fields.keys()
    assert names == FieldColumns.__dataclass_fields__.keys()
    assert names <= Pins.model_fields.keys()
    assert names == plain_columns(1).keys()


def test_preference_looks_at_every_field_that_is_not_decided_by_others() -> None:
    assert [one.rank for one in BY_PREFERENCE] == list(range(len(BY_PREFERENCE)))
    others = {field.name for field in FIELDS} - {one.name for one in BY_PREFERENCE}
    assert others == {"dp_shard", "microbatches"}


@pytest.mark.parametrize(
    ("layers", "vpp", "chunks"),
    [
        ([4], 1, (4,)),
        ([4, 4], 2, (2, 2, 2, 2)),
        ([3, 4], 2, (1, 2, 2, 2)),
        # The middle of the model may start after, and end before, an empty chunk.
        ([1, 2, 1], 2, (0, 1, 1, 1, 1, 0)),
    ],
)
def test_chunks_hold_all_layers(
    layers: list[int], vpp: int, chunks: tuple[int, ...]
) -> None:
    assert chunk_layers(layers, vpp) == chunks
    for stage, count in enumerate(layers):
        assert sum(chunks[stage :: len(layers)]) == count


def test_the_405b_recipe_of_megatron_bridge_has_a_layer_in_each_chunk() -> None:
    """126 layers in 16 x 8 chunks: one is the embedding's, one the loss's."""
    chunks = chunk_layers([7, *[8] * 14, 7], 8)
    assert chunks == (0, *[1] * 126, 0)
    assert most_chunks([7, *[8] * 14, 7]) == 8


def test_a_stage_in_the_middle_has_a_layer_for_every_chunk() -> None:
    stages = ([2, 1, 2], [1, 2, 1], [1, 1])
    assert [most_chunks(layers) for layers in stages] == [1, 2, 2]
