"""The tools that an agent calls: their arguments as models, and what each is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from meshwright.api.load import read_question
from meshwright.errors import SpecError
from meshwright.exports import LauncherName, TargetName
from meshwright.imports.registry import kinds
from meshwright.loading.asked import Asked, OpenCount, count_of
from meshwright.loading.sources import Files
from meshwright.reading.document import Document, Where, validated
from meshwright.reading.yaml_and_csv import parse_yaml, table_beside
from meshwright.spec.base import SpecModel, in_every_part
from meshwright.spec.goals import to_share
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.plan_fields import Pins
from meshwright.spec.serving import ServingSpec
from meshwright.spec.spec import Spec

MOST_S = 100.0
"""Most seconds that a call may ask for."""

USUAL_S = 60.0
"""Seconds of a call that asks for no other number."""

Json = dict[str, Any]

NAME = "arguments"
"""Stands for the arguments of a call in messages, as a file does in others."""

Fields = Annotated[
    Json, WithJsonSchema({"type": "object", "additionalProperties": True})
]

PinFields = Annotated[
    Json,
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"enum": [*Pins.model_fields]},
            "description": "Plan fields to fix: a value, a list, or {min, max}.",
        }
    ),
]

Rules = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda said: (said,) if isinstance(said, str) else said),
]
"""Rules; one alone may stand without a list."""


def _as_share(said: object) -> object:
    share = to_share(said) if isinstance(said, str) else said
    return said if share is None else share


Share = Annotated[float, BeforeValidator(_as_share)]
"""A share as a number, or as in '2%'."""

TOLD = table_beside(__file__, "tools.yaml")
"""The words of the tools and of their arguments."""


def told(path: str, default: Any = None, **limits: Any) -> Any:
    """Return a field of arguments, with its words by class and name."""
    section, name = path.split(".")
    text = TOLD[section][name].format(plan=TOLD["plan"])
    return Field(default, description=text, **limits)


class Timed(SpecModel):
    """Arguments of a tool that computes."""

    time_limit_s: float = told("timed.time_limit_s", USUAL_S, gt=0, le=MOST_S)


class Question(Timed):
    """A spec, or a question without one; what is given beside a spec changes it."""

    spec: str | Fields | None = told("question.spec")
    model: str | Fields | None = told("question.model")
    cluster: str | Fields | None = told("question.cluster")
    gpu: str | None = told("question.gpu")
    gpus: int | None = told("question.gpus", ge=1)
    count: OpenCount | str | None = told("question.count")
    framework: str | None = told("question.framework")
    seq_len: int | str | None = told("question.seq_len")
    batch: int | None = told("question.batch", ge=1)
    precision: str | None = told("question.precision")
    lora: int | None = told("question.lora", ge=1)
    pins: PinFields | None = None
    rules: Rules = told("question.rules", ())

    @property
    def asked(self) -> Asked:
        """Return the values that ask for a spec, or change one.

        Raises:
            SpecError: names the argument, its value and what is accepted.
        """
        return Asked(**_asked(self))

    def load(self, files: Files, notes: list[str]) -> Spec | ServingSpec | OpenSpec:
        """Return the spec that is asked about.

        Raises:
            SpecError: names the argument or the field, its value and what is accepted.
        """
        return read_question(
            self.spec,
            self.asked,
            pins=self.pins,
            rules=self.rules,
            notes=notes,
            files=files,
        )


def _asked(arguments: Timed) -> Json:
    """Return the values among the arguments of a call that ask for a spec."""
    given = {name: value for name, value in arguments if name in vars(Asked())}
    sections = {n: _section(given[n], n) for n in ("model", "cluster") if n in given}
    return given | sections | {"count": count_of(given["count"], "count")}


def _section(value: str | Json | None, name: str) -> str | Json | None:
    """Return a section of a spec: its name, or the fields in a YAML text of it."""
    if not isinstance(value, str) or "\n" not in value.strip():
        return value
    data = parse_yaml(value, name).data
    if not isinstance(data, dict):
        raise SpecError(f"{name}: expected a name, or its fields as a mapping")
    inner = data.get(name)
    return inner if isinstance(inner, dict) else data


class Solve(Question):
    """Arguments of `solve`."""

    top: int = told("solve.top", 1, ge=1, le=5)
    fastest: bool = told("solve.fastest", False)
    near: Share = told("solve.near", 0.0, ge=0, le=0.25)
    framework_limits: bool = told("solve.framework_limits", False)


class Explain(Question):
    """Arguments of `explain`."""

    plan: str | PinFields | None = told("explain.plan")
    collectives: bool = told("explain.collectives", False)


class Compare(Question):
    """Arguments of `compare`."""

    plans: tuple[str | PinFields, ...] = told("compare.plans", (), max_length=8)
    vary: str | None = told("compare.vary")


class Rent(Timed):
    """Arguments of `rent`."""

    model: str | Fields | None = told("rent.model")
    tokens: float | str | None = told("rent.tokens")
    budget_usd: float | None = told("rent.budget_usd", gt=0)
    deadline_days: float | None = told("rent.deadline_days", gt=0)
    prices: str | None = told("rent.prices", max_length=100000)
    count: OpenCount | str | None = told("rent.count")
    framework: str | None = told("rent.framework")
    seq_len: int | str | None = told("rent.seq_len")
    batch: int | None = told("rent.batch", ge=1)

    @property
    def asked(self) -> Asked:
        """Return the values that every machine's spec has."""
        return Asked(**_asked(self))


class Export(Question):
    """Arguments of `export`."""

    plan: str | PinFields | None = told("export.plan")
    to: TargetName | None = told("export.to")
    launcher: LauncherName = told("export.launcher", "torchrun")
    folder: str | None = told("export.folder")


class Read(SpecModel):
    """Arguments of tools that read a text, or a file below the root."""

    text: str | None = told("read.text", max_length=1000000)
    file: str | None = told("read.file")


class Diagnose(Question, Read):
    """Arguments of `diagnose`: the log of a run, and what it does not say."""

    launch: str | None = told("diagnose.launch", max_length=1000000)
    plan: str | None = told("diagnose.plan")


class Import(Timed, Read):
    """Arguments of imports."""

    kind: str | None = told("import.kind")


class ImportCluster(Import):
    """Arguments of `import_cluster`."""

    gpu: str | None = told("importcluster.gpu")
    machine: str | None = told("importcluster.machine")
    onto: str | None = told("importcluster.onto")
    op: str | None = told("importcluster.op")
    ranks: int | None = told("importcluster.ranks", ge=2)


class ImportLaunch(Import):
    """Arguments of `import_launch`."""


Bundled = Literal["specs", "models", "machines", "gpus", "frameworks"]


class SearchSpecs(Timed):
    """Arguments of `search_specs`."""

    query: str = told("searchspecs.query", "", max_length=200)
    kind: Bundled | None = told("searchspecs.kind")


@dataclass(frozen=True)
class Tool:
    """A tool: its arguments, and when to call it."""

    arguments: type[Timed]
    told: str
    writes: bool = False


def _tool(name: str, arguments: type[Timed], *, writes: bool = False) -> Tool:
    text = TOLD["tools"][name].format(
        cluster_kinds=", ".join(kinds("machines", "fabrics", "facts", "logs")),
        launch_kinds=", ".join(kinds("launches")),
    )
    return Tool(arguments, text, writes)


TOOLS: dict[str, Tool] = {
    "solve": _tool("solve", Solve),
    "explain": _tool("explain", Explain),
    "compare": _tool("compare", Compare),
    "diagnose": _tool("diagnose", Diagnose),
    "rent": _tool("rent", Rent),
    "export": _tool("export", Export, writes=True),
    "import_cluster": _tool("import_cluster", ImportCluster),
    "import_launch": _tool("import_launch", ImportLaunch),
    "search_specs": _tool("search_specs", SearchSpecs),
}
"""The tools by name."""


def read_arguments(tool: str, given: Json) -> Timed:
    """Return the arguments of a call.

    Raises:
        SpecError: names the argument, its value and what is accepted.
    """
    model = TOOLS[tool].arguments
    return validated(Document(given, {(): Where(NAME)}), model)


def schema_of(tool: str) -> Json:
    """Return the JSON Schema of the arguments of a tool, as short as it can be."""
    schema = in_every_part(TOOLS[tool].arguments.model_json_schema(), _short)
    assert isinstance(schema, dict)
    schema.pop("description", None)
    return schema


def _short(part: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without titles, and without nulls that say what is optional."""
    if isinstance(part.get("title"), str):
        del part["title"]
    if part.get("default", 0) is None:
        del part["default"]
    choices = part.get("anyOf")
    if isinstance(choices, list) and {"type": "null"} in choices:
        left = [choice for choice in choices if choice != {"type": "null"}]
        del part["anyOf"]
        alone = left[0] if len(left) == 1 else {"anyOf": left}
        return {**alone, **part}
    return part


BUNDLED_KINDS: tuple[str, ...] = get_args(Bundled)
