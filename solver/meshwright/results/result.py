"""The base of every answer, and the JSON form of answers with a plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol, Self, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.spec.base import SpecModel

M = TypeVar("M", bound=BaseModel)

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
"""How much is proven about the best plan."""


class Result(SpecModel):
    """An answer, as frozen data."""

    def to_dict(self) -> dict[str, Any]:
        """Return the data that `--format json` prints."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        """Return the text that `--format json` prints."""
        return json_text(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the answer that was printed as a JSON text.

        `to_dict` of it is the same data again. Fields that are not printed have their
        defaults: clusters (`cluster`), plans that do not fit (`nearest`) and how far
        step times may be off (`band`).

        Raises:
            SpecError: the text is no JSON, or is another kind of answer.
        """
        return read_json(cls, text, cls.__name__)

    def __str__(self) -> str:
        """Return what the command line prints, on one screen of 80 columns."""
        # By its name: results know nothing of how they are told.
        told = import_module("meshwright.report.screen").screen_text(self)
        assert isinstance(told, str)
        return told

    def _repr_html_(self) -> str:
        """Return what notebooks show: the page of the answer, or its text."""
        shown = import_module("meshwright.report.pages.answer").notebook_html(self)
        assert isinstance(shown, str)
        return shown


def json_text(data: Any) -> str:
    """Return data as the command line prints it."""
    return json.dumps(data, indent=2) + "\n"


def read_json(model: type[M], text: str | bytes, kind: str) -> M:
    """Return a model from the JSON text of a `kind` of answer.

    Raises:
        SpecError: the text is no JSON, or not of the model; tells the first problem.
    """
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise refused(kind, error) from None


Json = dict[str, Any]

BESIDE_CERTIFICATE = ("bound_s", "gap")
"""Fields of the certificate that stand beside `solver`."""

MEMORY: Mapping[str, str] = {
    "peak_gib": "Memory of the fullest GPU.",
    "capacity_gib": "Memory of a GPU that a plan may use.",
    "fit_probability": "Probability that the plan fits.",
}
"""The numbers about memory that follow from the stages, and what they are."""


@dataclass(frozen=True)
class Layout:
    """Where JSON has the fields of a plan: before `time` and `memory`, in, or after."""

    before: tuple[str, ...]
    time: Mapping[str, str]
    """By name in `time`, the field of the plan."""
    after: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    """Fields after these that not every plan has; JSON has null in place of them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names in JSON, in their order."""
        return (*self.required, *self.optional)

    @property
    def required(self) -> tuple[str, ...]:
        """Return the names that every plan has."""
        return (*self.before, "time", "memory", *self.after)


TRAINING = Layout(
    ("step_s", "plan"),
    {"step_s": "step_s", "parts": "time_parts", "schedule_s": "schedule_s"},
    ("links", "all_links", "link_utilisation", "mfu", "tokens_per_s_per_gpu"),
    ("familiarity",),
)

SERVING = Layout(
    ("plan", "objective_s", "tokens_per_s", "requests_per_s", "bubble"),
    {
        name: name
        for name in (
            *("ttft_s", "tpot_s", "request_s", "busy_request_s"),
            *("ttft_parts", "tpot_parts"),
        )
    },
)


class AnyPlan(Protocol):
    """A priced plan, of training or serving."""

    @property
    def peak_gib(self) -> float:
        """Return the memory of the fullest GPU."""

    @property
    def fit_probability(self) -> float:
        """Return how likely the plan fits."""

    def model_dump(self, *, mode: str) -> Json:
        """Return the fields of the plan."""


def plan_json(plan: AnyPlan, layout: Layout, capacity_gib: float) -> Json:
    """Return the JSON data of a plan; a GPU has so much memory for it."""
    fields = plan.model_dump(mode="json")
    return {
        **{name: fields[name] for name in layout.before},
        "time": {name: fields[field] for name, field in layout.time.items()},
        "memory": {
            "peak_gib": plan.peak_gib,
            "capacity_gib": capacity_gib,
            "fit_probability": plan.fit_probability,
            "stages": fields["stages"],
        },
        **{name: fields[name] for name in (*layout.after, *layout.optional)},
    }


def solved_json(
    plan: AnyPlan, certificate: BaseModel, layout: Layout, capacity_gib: float
) -> Json:
    """Return the JSON data of a plan with its certificate."""
    proof = certificate.model_dump(mode="json")
    beside = {name: proof.pop(name) for name in BESIDE_CERTIFICATE}
    return {**plan_json(plan, layout, capacity_gib), **beside, "solver": proof}


def plan_fields(data: Json, layout: Layout) -> Json:
    """Return the fields of a plan from its JSON data.

    Raises:
        ValueError: names what is missing, or does not belong there.
    """
    _require(data, layout.required)
    time = _members(data, "time", layout.time)
    stages = _members(data, "memory", (*MEMORY, "stages"))["stages"]
    fields = {name: data[name] for name in (*layout.before, *layout.after)}
    fields |= {name: data[name] for name in layout.optional if name in data}
    times = {field: time[name] for name, field in layout.time.items()}
    return {**fields, **times, "stages": stages}


def answer_fields(data: Json, layout: Layout) -> Json:
    """Return the fields of an answer from its JSON data; `claim` follows from them.

    Raises:
        ValueError: names what is missing, or does not belong there.
    """
    names = (*layout.names, *BESIDE_CERTIFICATE, "solver")
    rest = {name: value for name, value in data.items() if name not in names}
    rest["title"] = rest.pop("spec")
    rest.pop("claim", None)
    if not any(name in data for name in names):
        return {**rest, "capacity_gib": 0.0}
    _require(data, (*layout.required, *BESIDE_CERTIFICATE, "solver"))
    plan = {name: data[name] for name in layout.names if name in data}
    beside = {name: data[name] for name in BESIDE_CERTIFICATE}
    return {
        **rest,
        "best": plan_fields(plan, layout),
        "certificate": {**_object(data, "solver"), **beside},
        "capacity_gib": data["memory"]["capacity_gib"],
    }


def read_answer(text: str | bytes, kind: str, names: tuple[str, ...]) -> Json:
    """Return the JSON data of an answer, which may have these names, from text.

    Raises:
        SpecError: the text is no JSON, lacks `spec` or `status`, or has other names.
    """
    try:
        data = from_json(text)
        _require(data, ("spec", "status"))
        for name in data:
            if name not in names:
                raise ValueError(f"{printable(name)} is not a field")
    except ValueError as error:
        raise refused(kind, error) from None
    return dict(data)


def refused(kind: str, error: Exception) -> SpecError:
    """Return the error of a text that is not the JSON of a `kind` of answer."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "text"
        told = f"{where}: {first['msg'].removeprefix('Value error, ')}"
    else:
        told = f"text: {error}"
    return SpecError(f"not the JSON of {kind}: {told}")


def _require(data: Any, names: tuple[str, ...]) -> None:
    if not isinstance(data, dict):
        raise ValueError("expected an object")
    there = [name for name in names if data.get(name) is not None]
    for name in names:
        if data.get(name) is None:
            beside = f" beside {there[0]}" if there else ""
            raise ValueError(f"{name} is missing{beside}")


def _object(data: Json, name: str) -> Json:
    if not isinstance(data[name], dict):
        raise ValueError(f"{name}: expected an object")
    return dict(data[name])


def _members(data: Json, name: str, names: Mapping[str, str] | tuple[str, ...]) -> Json:
    """Return an object within data that has just these names."""
    members = _object(data, name)
    if set(members) != set(names):
        raise ValueError(f"{name}: expected {', '.join(names)}")
    return members


def plan_schema(plan: Json, layout: Layout) -> Json:
    """Return the schema of a plan in JSON, from that of its fields."""
    fields = plan["properties"]
    numbers = {
        name: {"type": "number", "description": told} for name, told in MEMORY.items()
    }
    return _closed(
        {
            **{name: fields[name] for name in layout.before},
            "time": _closed({name: fields[f] for name, f in layout.time.items()}),
            "memory": _closed({**numbers, "stages": fields["stages"]}),
            **{name: fields[name] for name in (*layout.after, *layout.optional)},
        },
        required=list(layout.required),
        description=plan["description"],
    )


def answer_schema(
    answer: Json, plan: Json, certificate: Json, layout: Layout, **others: Json
) -> Json:
    """Return the schema of an answer in JSON, from those of its fields.

    The fields of the plan and the certificate are all there, or none is. `others`
    replaces or adds fields; `spec` is one.
    """
    fields = dict(certificate["properties"])
    beside = {name: fields.pop(name) for name in BESIDE_CERTIFICATE}
    needed = [name for name in certificate["required"] if name in fields]
    solved = {
        **plan_schema(plan, layout)["properties"],
        **beside,
        "solver": _closed(fields, required=needed),
    }
    left = ("best", "certificate", "capacity_gib")
    rest = {n: s for n, s in answer["properties"].items() if n not in left}
    text = {"type": "string"}
    return _closed(
        {"spec": {**text, "description": "The question in one line."}}
        | rest
        | solved
        | others,
        description=answer["description"],
        required=["spec", "status", "gpus", "by_kind", "near_miss", "versions"],
        dependentRequired={
            "plan": [name for name in solved if name not in layout.optional],
            **{name: ["plan"] for name in solved if name != "plan"},
        },
    )


def _closed(properties: Json, **more: Any) -> Json:
    """Return the schema of an object with these fields alone, all of them required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **more,
    }
