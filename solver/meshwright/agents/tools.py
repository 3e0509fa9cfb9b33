"""The tools that an agent calls: their arguments as models, and what each is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, WithJsonSchema

from meshwright.api.load import read_question
from meshwright.errors import SpecError
from meshwright.exports import LauncherName, TargetName
from meshwright.imports.registry import kinds
from meshwright.loading.asked import Asked, OpenCount, count_of
from meshwright.loading.sources import Files
from meshwright.reading.document import Document, Where, explain
from meshwright.reading.yaml_and_csv import parse_yaml
from meshwright.spec.base import SpecModel
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

PLAN = (
    "A plan to judge: 'tp=8,pp=2,zero=1', the same as fields, or an answer's resource."
)


class Timed(SpecModel):
    """Arguments of a tool that computes."""

    time_limit_s: float = Field(
        USUAL_S, gt=0, le=MOST_S, description="Seconds; then the best so far."
    )


class Question(Timed):
    """A spec, or a question without one; what is given beside a spec changes it."""

    spec: str | Fields | None = Field(
        None,
        description="A bundled spec's name, YAML text, or the fields of a spec (schema:"
        " meshwright://schema/spec). Not needed with model and cluster.",
    )
    model: str | Fields | None = Field(
        None,
        description="A bundled model or its hub name, fields, or what import_launch "
        "made of a config.json.",
    )
    cluster: str | Fields | None = Field(
        None,
        description="A bundled machine (dgx-h100, p5.48xlarge), fields, or the "
        "topology that import_cluster made.",
    )
    gpu: str | None = Field(
        None, description="The GPU (h100, rtx-4090) in its usual host, with count."
    )
    gpus: int | None = Field(None, ge=1, description="GPUs in all.")
    count: OpenCount | str | None = Field(
        None, description="Machines: 8; or open, to be chosen: '1,2,4' or '1..64'."
    )
    framework: str | None = Field(None, description="megatron, torchtitan, fsdp, ...")
    seq_len: int | str | None = Field(
        None, description="Tokens of a sequence: 8192, '128k'."
    )
    batch: int | None = Field(None, ge=1, description="Sequences of a step.")
    precision: str | None = Field(None, description="bf16, fp8, ...")
    lora: int | None = Field(None, ge=1, description="Rank of LoRA adapters.")
    pins: PinFields | None = None
    rules: tuple[str, ...] = Field(
        (), description="Rules that plans must keep: 'tp <= 8', 'pp * vpp < 16'."
    )

    @property
    def asked(self) -> Asked:
        """Return what is asked beside a spec.

        Raises:
            SpecError: names the argument, its value and what is accepted.
        """
        return Asked(
            model=_section(self.model, "model"),
            cluster=_section(self.cluster, "cluster"),
            gpu=self.gpu,
            count=count_of(self.count, "count"),
            framework=self.framework,
            seq_len=self.seq_len,
            batch=self.batch,
            precision=self.precision,
            lora=self.lora,
            gpus=self.gpus,
        )

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

    def load_training(self, files: Files, notes: list[str]) -> Spec:
        """Return the spec, which must be of training and leave nothing open.

        Raises:
            SpecError: it is another kind of spec; or see `load`.
        """
        spec = self.load(files, notes)
        if not isinstance(spec, Spec):
            kind = "inference" if isinstance(spec, ServingSpec) else "open numbers"
            raise SpecError(f"spec: has {kind}; expected training on one cluster")
        return spec


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

    top: int = Field(1, ge=1, le=5, description="How many plans, the best first.")
    fastest: bool = Field(False, description="The fastest plan, however unusual.")
    near: float = Field(
        0.0, ge=0, le=0.25, description="List plans within this share: 0.02."
    )
    framework_limits: bool = Field(
        False, description="Say what each limit of the framework costs."
    )


class Explain(Question):
    """Arguments of `explain`."""

    plan: str | PinFields | None = Field(
        None, description=f"{PLAN} Without, the spec itself is explained."
    )
    collectives: bool = Field(False, description="Add each collective of the plan.")


class Compare(Question):
    """Arguments of `compare`."""

    plans: tuple[str | PinFields, ...] = Field(
        (), max_length=8, description=f"{PLAN} None: the best plan of each kind."
    )
    vary: str | None = Field(
        None,
        description="A number and a range, in which the order of the plans may turn: "
        "topology.levels[0].gb_s=8:900, training.seq_len=2048:32768.",
    )


class Rent(Timed):
    """Arguments of `rent`."""

    model: str | Fields | None = Field(
        None, description="A bundled model or its hub name, or its fields."
    )
    tokens: float | str | None = Field(None, description="Of the run: 2e12, '100B'.")
    budget_usd: float | None = Field(None, gt=0, description="For the whole run.")
    deadline_days: float | None = Field(None, gt=0, description="For the whole run.")
    prices: str | None = Field(
        None,
        max_length=100_000,
        description="A list of prices as YAML (schema: meshwright schema prices); "
        "without, list prices of clouds.",
    )
    count: OpenCount | str | None = Field(None, description="Machines: '1..16'.")
    framework: str | None = Field(None, description="megatron, torchtitan, fsdp, ...")
    seq_len: int | str | None = Field(None, description="Tokens: 8192, '128k'.")
    batch: int | None = Field(None, ge=1, description="Sequences of a step.")

    @property
    def asked(self) -> Asked:
        """Return what is asked of every machine."""
        return Asked(
            model=_section(self.model, "model"),
            count=count_of(self.count, "count"),
            framework=self.framework,
            seq_len=self.seq_len,
            batch=self.batch,
        )


class Export(Question):
    """Arguments of `export`."""

    plan: str | PinFields | None = Field(
        None, description=f"{PLAN} Without, the recommended plan is written."
    )
    to: TargetName | None = Field(None, description="Default: by the framework.")
    launcher: LauncherName = Field("torchrun", description="What starts each host.")
    folder: str | None = Field(
        None, description="A new folder below the root; without, resources have files."
    )


class Read(SpecModel):
    """Arguments of tools that read a text, or a file below the root."""

    text: str | None = Field(
        None, max_length=1_000_000, description="What the tool or the file says."
    )
    file: str | None = Field(None, description="A file below the root instead.")


class Diagnose(Question, Read):
    """Arguments of `diagnose`: the log of a run, and what it does not say."""

    launch: str | None = Field(
        None, max_length=1_000_000, description="The script or configuration, as text."
    )
    plan: str | None = Field(
        None, description="Fields of the plan that nothing else says: 'zero=3'."
    )


class Import(Timed, Read):
    """Arguments of imports."""

    kind: str | None = Field(None, description="Its kind, if it is not recognised.")


class ImportCluster(Import):
    """Arguments of `import_cluster`."""

    gpu: str | None = Field(None, description="The GPU, if the text does not say it.")
    machine: str | None = Field(
        None, description="The machine that the switches of a text join."
    )
    onto: str | None = Field(
        None, description="The topology whose links a log of nccl-tests measured."
    )
    op: str | None = Field(None, description="The collective, if a log is silent.")
    ranks: int | None = Field(
        None, ge=2, description="How many GPUs ran, if a log does not say it."
    )


class ImportLaunch(Import):
    """Arguments of `import_launch`."""


Bundled = Literal["specs", "models", "machines", "gpus", "frameworks"]


class SearchSpecs(Timed):
    """Arguments of `search_specs`."""

    query: str = Field("", max_length=200, description="Words; empty lists all.")
    kind: Bundled | None = Field(None, description="Look among these alone.")


@dataclass(frozen=True)
class Tool:
    """A tool: its arguments, and when to call it."""

    arguments: type[Timed]
    told: str
    writes: bool = False


TOOLS: dict[str, Tool] = {
    "solve": Tool(
        Solve,
        "Find the parallelism plan (tp, pp, dp, cp, ep, ZeRO, recompute, micro-batch) "
        "for training a model on a cluster, or a deployment for serving it, with the "
        "step time and its error band, memory, what limits it, and a proof.",
    ),
    "explain": Tool(
        Explain,
        "Say why a plan fits or not, loses or wins; a smallest conflict, and repairs, "
        "each solved again and priced. Without a plan: why nothing fits, or what the "
        "best plan depends on. Ask it of any out-of-memory and of every 'is it legal'.",
    ),
    "compare": Tool(
        Compare,
        "Put plans of one spec side by side, part by part; with vary, find where "
        "their order turns. For training.",
    ),
    "diagnose": Tool(
        Diagnose,
        "Say why a run is slow or died, by its log: what is at fault, with "
        "probabilities, the tensor that did not fit, and what to change, priced on "
        "that run. Give model and cluster if the log does not say them.",
    ),
    "rent": Tool(
        Rent,
        "Say which machines of clouds to rent for a training run of so many tokens, "
        "within a budget and a deadline: the front of price against time, proven.",
    ),
    "export": Tool(
        Export,
        "Write a plan as files that start Megatron-LM, Megatron Bridge, DeepSpeed, "
        "torchtitan, Accelerate, Axolotl, LLaMA-Factory or TRL.",
        writes=True,
    ),
    "import_cluster": Tool(
        ImportCluster,
        "Make a topology from what tools print: "
        f"{', '.join(kinds('machines', 'fabrics', 'facts', 'logs'))}.",
    ),
    "import_launch": Tool(
        ImportLaunch,
        "Read a script or configuration that starts training "
        f"({', '.join(kinds('launches'))}), or a config.json of a model (hf), as the "
        "beginning of a spec with the plan that it sets. Finds contradictions. Reads "
        "the log of a run alike.",
    ),
    "search_specs": Tool(
        SearchSpecs,
        "Look up the names of bundled specs, models, machines (also of clouds), GPUs "
        "and frameworks.",
    ),
}
"""The tools by name."""


def read_arguments(tool: str, given: Json) -> Timed:
    """Return the arguments of a call.

    Raises:
        SpecError: names the argument, its value and what is accepted.
    """
    model = TOOLS[tool].arguments
    try:
        return model.model_validate(given)
    except ValidationError as error:
        document = Document(given, {(): Where(NAME)})
        raise SpecError(explain(document, error, model)) from None


def schema_of(tool: str) -> Json:
    """Return the JSON Schema of the arguments of a tool, as short as it can be."""
    schema = _short(TOOLS[tool].arguments.model_json_schema())
    assert isinstance(schema, dict)
    schema.pop("description", None)
    return schema


def _short(schema: Any) -> Any:
    """Return a schema without titles, and without nulls that say what is optional."""
    if isinstance(schema, list):
        return [_short(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    part = {name: _short(value) for name, value in schema.items()}
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
