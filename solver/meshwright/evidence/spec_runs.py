"""Runs of a spec: the model and cluster of a spec file, and the plan that was run."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from meshwright.errors import SpecError
from meshwright.evidence.assumptions import Unpriced
from meshwright.evidence.run import Run, RunConfig, RunHardware, RunModel
from meshwright.explanations.changed_spec import with_pins
from meshwright.frameworks.base.selective import as_launched
from meshwright.loading.load import load_spec
from meshwright.loading.plan_text import pins_of_answer, read_plan
from meshwright.plans.plan import Plan
from meshwright.reading.document import Document, Where
from meshwright.reading.files import is_file
from meshwright.reading.messages import explain
from meshwright.search.options import Options
from meshwright.search.solve import asked_plan
from meshwright.spec.pins import Pins
from meshwright.spec.spec import Spec


def spec_of(run: Run) -> Spec:
    """Return the spec of a run, with the plan that was run as its pins.

    Raises:
        SpecError: spec or plan cannot be read.
        Unpriced: it is of a kind of cluster that calibration does not know.
    """
    source = str(run.spec)
    spec = _loaded(source, os.stat(source).st_mtime_ns if is_file(source) else 0)
    if spec.cluster.parts:
        raise Unpriced("spec: its cluster has several kinds of GPU")
    spec = with_pins(spec, as_launched(_pins(run, spec), spec))
    return with_pins(spec, _left_out(spec.pins))


@lru_cache(maxsize=256)
def _loaded(source: str, _changed_ns: int) -> Spec:
    """Return a spec; a file that was changed meanwhile is read again."""
    return load_spec(source)


def _pins(run: Run, spec: Spec) -> Pins:
    """Return the plan of a run as pins; none where the spec has them all."""
    if run.plan is None:
        return Pins()
    if isinstance(run.plan, str):
        return read_plan(run.plan, spec)
    fields: dict[str, Any] = run.plan
    if "stages" in fields:
        fields = pins_of_answer(fields)
    try:
        return Pins.model_validate(fields)
    except ValidationError as error:
        document = Document(fields, {(): Where(f"{run.id}: plan")})
        raise SpecError(explain(document, error, Pins)) from None


def _left_out(pins: Pins) -> Pins:
    """Return what a launch does where it does not say: none of these techniques.

    Left open, the fastest would be chosen: copies of what ZeRO shards, say, which have
    a multiple of its memory.
    """
    fields: dict[str, Any] = {"vpp": 1, "ep": 1, "offload": "none"}
    if pins.mesh is None:
        fields["cp"] = 1
        is_sharded = pins.zero is not None and not pins.zero.accepts(0)
        if is_sharded and pins.dp_shard is None:
            fields["dp_replicate"] = 1
    free = {name: fields[name] for name in fields if getattr(pins, name) is None}
    return Pins.model_validate(free)


def plan_of(spec: Spec) -> Plan:
    """Return the plan that the pins of a spec ask for, also if memory is too small.

    Raises:
        Unpriced: no plan of them is legal; names the rule.
    """
    try:
        return asked_plan(spec, Options(is_brief=True))
    except SpecError as error:
        raise Unpriced(str(error)) from None


def with_published_fields(run: Run, spec: Spec, plan: Plan) -> Run:
    """Return a run of a spec with the fields by which runs are grouped and timed."""
    model, training, topology = spec.model, spec.training, spec.cluster.topology
    fields = {
        "model": RunModel(
            name=model.name,
            n_layers=model.n_layers,
            d_model=model.d_model,
            seq_len=training.seq_len,
        ),
        "hardware": RunHardware(gpu=topology.gpu.name, n_gpus=spec.cluster.gpus),
        "config": RunConfig(
            dp=plan.dp,
            tp=plan.tp,
            pp=plan.pp,
            global_batch=training.global_batch,
            framework=spec.framework,
        ),
    }
    return run.model_copy(update=fields)
