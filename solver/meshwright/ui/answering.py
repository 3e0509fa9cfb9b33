"""Answers one question, message by message: this runs in a process of the pool."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from meshwright import DEFAULT_PROFILE
from meshwright.api.explain import explain
from meshwright.api.files import export, html_report, report_data
from meshwright.api.options import read_profile
from meshwright.api.price import map_of, timeline
from meshwright.api.solve import solve
from meshwright.deadline import Interrupt
from meshwright.errors import SpecError
from meshwright.loading.load import load_spec
from meshwright.plans.plan import Plan
from meshwright.report.pages.answer import map_data
from meshwright.report.simulation import trace_text
from meshwright.results.explanation import Explanation
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.plan_fields import FIELD, Pins, Value
from meshwright.spec.spec import Spec
from meshwright.ui.question import FILES, edits_of

Message = dict[str, Any]

Tell = Callable[[Message], None]

CARRIED = (
    *("tp", "pp", "vpp", "cp", "ep", "zero", "schedule", "micro_batch"),
    *("recompute", "recompute_layers", "offload", "sequence_parallel"),
)
"""Fields of the plan before that the first picture keeps; others are chosen anew."""

CARRIED_S = 0.5
"""Seconds after which no plan is carried over."""

PINNABLE = (
    *("tp", "pp", "vpp", "cp", "ep", "dp_replicate", "dp_shard", "zero", "schedule"),
    *("micro_batch", "microbatches", "recompute", "offload", "sequence_parallel"),
)
"""Fields of a plan that the page can pin."""

MOST_OFFERED = 4096
"""Largest number that the page offers to pin."""


def answer(task: Mapping[str, Any], tell: Tell, interrupt: Interrupt) -> None:
    """Tell the answer to a task, which has the fields of a spec and what is wanted.

    Raises:
        SpecError: the spec or the plan of the task cannot be used.
    """
    spec = load_spec(task["spec"], files=FILES)
    wanted = task["wanted"]
    if wanted == "files":
        tell(_files(spec, task))
        return
    if wanted == "map":
        tell({"kind": "map", "map": _map(spec, task)})
        return
    if plan := task.get("carried"):
        _tell_carried(spec, plan, tell)
    outcome = solve(
        spec,
        by_kind=False,
        repair=wanted == "report",
        time_limit_s=task["limit_s"],
        on_progress=lambda text: tell({"kind": "progress", "text": text}),
        interrupt=interrupt,
    )
    if wanted == "report":
        tell(download("report.html", html_report(spec, outcome)))
        return
    tell(_answer(spec, outcome))
    if outcome.status == "infeasible" and not interrupt.is_asked:
        tell({"kind": "progress", "text": "looking for the conflict and repairs"})
        tell(_reasons(spec, explain(spec, interrupt=interrupt)))


def _tell_carried(spec: Spec, plan: Mapping[str, Any], tell: Tell) -> None:
    """Tell the plan before on the changed spec, where it fits: that takes no search."""
    kept = {name: plan[name] for name in CARRIED if plan.get(name) is not None}
    try:
        # Not `pins_of`: what a launch does unless told is no part of the plan before.
        pins = Pins.model_validate(kept)
        given = {name: value for name, value in spec.pins if value is not None}
        both = pins.model_copy(update=given)
        pinned = spec.model_copy(update={"pins": Pins.model_validate(dict(both))})
        found = solve(
            pinned, by_kind=False, fastest=True, safety=False, time_limit_s=CARRIED_S
        )
    except (SpecError, ValueError):
        return
    if found.best is not None:
        # The proof is of the pinned fields alone, and the page shows it as no answer.
        unproven = found.model_copy(update={"certificate": None})
        tell({**_answer(spec, unproven), "kind": "carried"})


def _answer(spec: Spec, outcome: Outcome) -> Message:
    best = outcome.best
    return {
        "kind": "answer",
        "status": outcome.status,
        "isStopped": outcome.is_stopped,
        "page": report_data(spec, outcome),
        "plan": None if best is None else best.plan.model_dump(mode="json"),
        "speed": best and {"stepS": best.step_s, "rate": best.tokens_per_s_per_gpu},
        "known": [priced.plan.model_dump(mode="json") for priced in _known(outcome)],
        "pinnable": [] if best is None else list(_pinnable(spec, best.plan)),
    }


def _known(outcome: Outcome) -> list[PricedPlan]:
    """Return the recommended plan and the fastest, if there are any."""
    found = (outcome.best, outcome.fastest)
    return [priced for priced in found if priced is not None]


def _map(spec: Spec, task: Mapping[str, Any]) -> Message | None:
    """Return the map of the lattice around the known plans of an answer."""
    plans = [_plan(fields) for fields in task["plans"]]
    found = map_of(spec, plans, read_profile(DEFAULT_PROFILE))
    return None if found is None else map_data(found)


def _pinnable(spec: Spec, plan: Plan) -> Iterator[Message]:
    """Yield the fields of a plan that can be pinned, and the values to choose from."""
    for name in PINNABLE:
        value = getattr(plan, name)
        values = dict.fromkeys((*_offered(spec, name), value))
        yield {
            "name": name,
            "value": value,
            "values": sorted(values) if isinstance(value, int) else [*values],
            "isPinned": getattr(spec.pins, name) is not None,
        }


def _offered(spec: Spec, name: str) -> tuple[Value, ...]:
    """Return the values of a field that the page offers to pin."""
    field = FIELD[name]
    if field.words:
        return field.words
    if field.dtype is bool:
        return False, True
    if name == "zero":
        return 0, 1, 2, 3
    whole = {
        "pp": spec.model.n_layers,
        "vpp": spec.model.n_layers,
        "ep": spec.model.moe.n_experts if spec.model.moe else 1,
        "micro_batch": spec.training.global_batch,
        "microbatches": spec.training.global_batch,
    }.get(name, spec.cluster.gpus)
    return tuple(n for n in range(1, min(whole, MOST_OFFERED) + 1) if whole % n == 0)


def _reasons(spec: Spec, told: Explanation) -> Message:
    """Return the conflict, and the repairs with the edits that apply them."""
    conflict = told.conflict
    return {
        "kind": "reasons",
        "isStopped": told.is_stopped,
        "page": report_data(spec, told),
        "conflict": [str(rule) for rule in conflict.rules] if conflict else [],
        "isMinimal": bool(conflict and conflict.is_minimal),
        "repairs": [
            {"sentence": repair.sentence, "edits": [*map(list, edits_of(repair))]}
            for repair in told.repairs
        ],
    }


def _files(spec: Spec, task: Mapping[str, Any]) -> Message:
    """Return a plan as the files of a launcher, or its step as a trace."""
    plan = _plan(task["plan"])
    if task["to"] == "trace":
        return download("trace.json", trace_text(timeline(spec, plan)))
    exported = export(spec, plan, to=task["to"] or None)
    files = {file.name: file.text for file in exported.files}
    return archive(task["to"] or "launch", files)


def _plan(fields: Any) -> Plan:
    try:
        return Plan.model_validate(fields)
    except ValidationError:
        raise SpecError("plan: expected the plan of an answer, whole") from None


FIRST_DATE = (1980, 1, 1, 0, 0, 0)
"""The first date of the zip format: the same files make the same archive."""


def download(name: str, text: str) -> dict[str, str]:
    """Return a file as a message to the page."""
    return _message(name, text.encode())


def archive(name: str, files: Mapping[str, str]) -> dict[str, str]:
    """Return files as one message: a file alone as it is, several as a zip archive."""
    if len(files) == 1:
        return download(*next(iter(files.items())))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as zipped:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path, FIRST_DATE)
            entry.external_attr = (0o755 if path.endswith(".sh") else 0o644) << 16
            zipped.writestr(entry, text)
    return _message(f"{name}.zip", packed.getvalue())


def _message(name: str, content: bytes) -> dict[str, str]:
    return {"kind": "file", "name": name, "base64": base64.b64encode(content).decode()}
