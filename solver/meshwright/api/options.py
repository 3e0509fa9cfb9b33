"""Options that the public functions share, and plans in all forms that they accept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from meshwright.cost.profile import Profile, load_profile
from meshwright.deadline import Interrupt
from meshwright.errors import SpecError, refuse_given
from meshwright.frameworks.base.registry import GENERIC, framework
from meshwright.loading.sources import USER_FILES, Files
from meshwright.plans.plan import Plan
from meshwright.reading.document import Document, Where, shown, validated
from meshwright.results.outcome_parts import OpenAnswer
from meshwright.results.serving import ServingPlan
from meshwright.spec.open_spec import OpenSpec
from meshwright.spec.plan_fields import Pins
from meshwright.spec.serving import FixedSpec, ServingSpec
from meshwright.spec.spec import Spec
from meshwright.surface import option

if TYPE_CHECKING:  # Only imports of launches need them.
    from meshwright.imports.launches.launch import Launch
    from meshwright.imports.launches.plan import Decided
    from meshwright.loading.asked import Asked

OnProgress = Callable[[str], None]

StrPath = str | PathLike[str]


class Effort(TypedDict, total=False):
    """Keywords of `meshwright.solve`."""

    time_limit_s: float | None
    seed: int
    workers: int
    top: int
    fastest: bool
    near: float
    by_kind: bool | None
    framework_limits: bool
    show_model: bool
    safety: bool
    repair: bool | None
    profile: str | Profile
    on_progress: OnProgress
    interrupt: Interrupt | None


def quiet(_: str) -> None:
    """Ignore a line of progress."""


def read_profile(profile: str | Profile) -> Profile:
    """Return a profile, from its file or its bundled name where that is given."""
    return profile if isinstance(profile, Profile) else load_profile(profile)


def or_endless(limit: float | None) -> float:
    """Return a limit, infinite for None."""
    return math.inf if limit is None else limit


def refuse_beside_inference(
    spec: Spec | ServingSpec | OpenSpec, given: Mapping[str, bool]
) -> None:
    """Refuse options of training, by whether each was given, beside inference.

    Raises:
        SpecError: the spec is about inference, and one of them was given.
    """
    if isinstance(spec, ServingSpec):
        refuse_given(given, "for specs with training; this has inference")


def refuse_beside_open(
    spec: Spec | ServingSpec | OpenSpec, given: Mapping[str, bool]
) -> None:
    """Refuse options of fixed numbers, by whether each was given, beside open ones.

    Raises:
        SpecError: the spec leaves numbers open, and one of them was given.
    """
    if isinstance(spec, OpenSpec):
        left = " and ".join(spec.open_fields) or "nothing that fits"
        refuse_given(given, f"for fixed numbers; the spec leaves {left} open")


def fixed_spec(
    spec: Spec | ServingSpec | OpenSpec, answer: object
) -> Spec | ServingSpec:
    """Return a spec with the numbers that an answer chose for what it leaves open.

    Raises:
        SpecError: the answer chose none.
    """
    if not isinstance(spec, OpenSpec):
        return spec
    told = getattr(answer, "open", None)
    if not isinstance(told, OpenAnswer) or told.chosen is None:
        raise SpecError("spec: leaves numbers open, and the answer chose none of them")
    return spec.choices[told.chosen.number]


PlanLike = Plan | ServingPlan | Pins | Mapping[str, Any] | str
"""A plan, fields of one, or text: 'tp=8,pp=2', or the name of a file that has one."""

PlansLike = Mapping[str, PlanLike] | Iterable[PlanLike | tuple[str, PlanLike]]
"""Plans by name, or plans alone, each named by its text."""


def pins_of(
    plan: PlanLike,
    spec: FixedSpec,
    notes: list[str] | None = None,
    files: Files = USER_FILES,
) -> Pins:
    """Return the fields that a plan decides on a spec.

    The configuration of a framework adds notes on its options to `notes`.

    Raises:
        SpecError: names the field or option, its value and what is accepted.
    """
    if isinstance(plan, Pins):
        return plan
    if isinstance(plan, str):
        return read_asked(plan, spec, notes, files)
    if not isinstance(plan, Plan | ServingPlan | Mapping):
        raise SpecError(f"plan: {shown(plan)}: expected text, a mapping or a Plan")
    refuse_of_other_work(plan, spec)
    fields = _fields(plan)
    pins = validated(Document(fields, {(): Where("plan")}), Pins)
    return launched(pins, spec, notes)


def refuse_of_other_work(plan: object, spec: FixedSpec) -> None:
    """Refuse a plan of serving for a spec of training, and the other way round.

    Raises:
        SpecError: says which of both has which.
    """
    if isinstance(plan, ServingPlan) and not isinstance(spec, ServingSpec):
        raise SpecError("plan: is of serving; this spec has training")
    if isinstance(plan, Plan) and isinstance(spec, ServingSpec):
        raise SpecError("plan: is of training; this spec has inference")


def named_pins(plans: PlansLike, spec: FixedSpec) -> Iterator[tuple[str, Pins]]:
    """Yield the name of each plan and the fields that it decides on a spec.

    Raises:
        SpecError: see `pins_of`.
    """
    for entry in plans.items() if isinstance(plans, Mapping) else plans:
        name, plan = entry if isinstance(entry, tuple) else (str(entry), entry)
        yield name, pins_of(plan, spec)


def _fields(plan: Plan | ServingPlan | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(plan, Plan):
        from meshwright.loading.plan_text import pins_of_answer

        return pins_of_answer(plan.model_dump(mode="json"))
    if isinstance(plan, ServingPlan):
        return plan.model_dump(mode="json", exclude={"mesh"})
    return dict(plan)


def read_asked(
    text: str,
    spec: FixedSpec,
    notes: list[str] | None = None,
    files: Files = USER_FILES,
) -> Pins:
    """Return the fields of a plan from text or a file, as `read_plan` takes it.

    `notes` gets a line on each option of a configuration that matters, and on each
    field that was added.

    Raises:
        SpecError: names the field or the option, its value and what is accepted.
    """
    # Who solves reads no plan: what reads launches is not imported before.
    from meshwright.loading.plan_text import read_plan

    return launched(read_plan(text, spec, notes, files), spec, notes)


def launched(pins: Pins, spec: FixedSpec, notes: list[str] | None = None) -> Pins:
    """Return a plan with the framework's defaults for fields that are left out."""
    if not isinstance(spec, Spec):
        return pins
    # Not before: errors in the text come without the frameworks, which take a while.
    from meshwright.frameworks.base.registry import as_launched

    return as_launched(pins, spec, notes)


def asked_of_launch(
    plan: str, asked: Asked, notes: list[str]
) -> tuple[Asked, Document | None]:
    """Return a question without a spec, and what the file that starts training says.

    The file's GPUs count where the question says no number of them. There is no
    document where the plan names no such file. `notes` gets the model that is meant.

    Raises:
        SpecError: the file contradicts itself.
    """
    from meshwright.loading.plan_text import launch_of, refuse_other_plan

    launch = launch_of(plan)
    if launch is not None:
        return question_of(launch, asked, notes)
    if (path := USER_FILES.file(plan, Path())) is not None:
        refuse_other_plan(plan, path)
    return asked, None


def question_of(
    launch: Launch, asked: Asked, notes: list[str], files: Files = USER_FILES
) -> tuple[Asked, Document]:
    """Return a question, and what a launch that was read says, as `asked_of_launch`."""
    from meshwright.loading.asked import gpus_of

    if asked.model is None and (named := launch.model_note()):
        notes.append(named)
    if not asked.gpus and not asked.count:
        asked = replace(asked, gpus=launch.value("gpus"))
    gpus = gpus_of(asked, files)
    fields = launch_fields(launch, gpus)
    is_silent = asked.model is None and launch.preset is None
    if is_silent and "model" not in fields and (unknown := launch.model_note()):
        raise SpecError(f"{unknown} ({option('model', 'config.json')})")
    if launch.usual and asked.framework is None and "framework" not in fields:
        fields["framework"] = launch.usual
        notes.append(f"assumed the framework {launch.usual}; say {option('framework')}")
    is_open = asked.batch is None and "global_batch" not in fields.get("training", {})
    if is_open and gpus and (batch := batch_of(launch, gpus)):
        notes.append(told_batch(launch, batch))
        asked = replace(asked, batch=batch)
    return asked, Document(fields, {(): Where(launch.name)})


def batch_of(launch: Launch, gpus: int) -> int:
    """Return the sequences of a step that a launch gives by the rank; 0 without.

    Ranks that share a model share them. Without a number of micro-batches it is one.
    """
    per_rank = (launch.value("micro_batch") or 0) * (launch.value("microbatches") or 1)
    sharing = math.prod(launch.value(name) or 1 for name in ("tp", "pp", "cp"))
    return int(per_rank * max(gpus // sharing, 1))


def told_batch(launch: Launch, batch: int) -> str:
    """Return the note on a batch that a launch gives by the rank."""
    per_rank = batch_of(launch, 1)
    return f"batches of {batch:,} sequences: {per_rank:,} a rank; say {option('batch')}"


def launch_fields(launch: Launch, gpus: int = 0) -> dict[str, Any]:
    """Return the sections of a spec that a launch gives on GPUs, without its plan."""
    from meshwright.imports.launches.plan import decide
    from meshwright.loading.plan_text import sizes_of

    if not launch.values and not launch.framework:
        return {}
    assumed = launch.framework or launch.usual or GENERIC
    told = replace(launch, framework=assumed)
    sizes = sizes_of(launch)
    decided = decide(launch, replace(sizes, gpus=sizes.gpus or gpus or None))
    fields = spec_fields(told, decided)
    fields.pop("pins")
    if isinstance(model := fields.get("model"), dict):
        model.setdefault("name", f"the model of {Path(launch.name).name[:60] or 'log'}")
    if not launch.framework:
        fields.pop("framework", None)
    return fields


def spec_fields(launch: Launch, decided: Decided) -> dict[str, Any]:
    """Return the sections of a spec that a launch gives."""
    sections: dict[str, Any] = {"framework": launch.framework}
    for field, said in launch.values.items():
        section, *path = field.split(".")
        if path and section in ("model", "training"):
            inner = sections.setdefault(section, {})
            for name in path[:-1]:
                inner = inner.setdefault(name, {})
            inner[path[-1]] = said.value
    if launch.preset is not None:
        sections["model"] = launch.bundled_model
    training = sections.setdefault("training", {})
    if "fused" in training:
        fused = framework(launch.framework or GENERIC).fused
        kinds = fused - training["fused"].keys()
        one = {kind for kind, is_on in training["fused"].items() if is_on}
        training["fused"] = sorted(kinds | one)
    if decided.global_batch is not None:
        training["global_batch"] = decided.global_batch
    if (precision := launch.value("precision")) is not None:
        first = precision[0] if isinstance(precision, list) else precision
        training["precision"] = first
    pins = {name: json.loads(json.dumps(value)) for name, value in decided.pins.items()}
    if "precision" in pins:
        pins["precision"] = training["precision"]
    order = ("model", "framework", "training")
    ordered = {name: sections[name] for name in order if sections.get(name)}
    return {**ordered, "pins": pins}
