"""Diagnoses a run: hypotheses on its step, the cause of an end without memory, advice.

Changes are priced after the model was calibrated on the run itself: with the likely
fault in place, all of the step is scaled to what was measured, so that a run which is
slower for another reason is not told that any change makes up for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from meshwright.calibration.calibrate import with_runs
from meshwright.check.check import check
from meshwright.cost.profile import Profile
from meshwright.diagnosis.faults import Case, Run, slower_links
from meshwright.diagnosis.hypotheses import Hypothesis, judged, modelled, noise_of
from meshwright.diagnosis.memory_event import Cause, cause, others_gib
from meshwright.explanations.decisions import with_memory
from meshwright.explanations.explain import Explainer
from meshwright.explanations.levers import priced_levers
from meshwright.explanations.repairs import unpriced_repair, with_prices
from meshwright.frameworks.base.registry import framework_of
from meshwright.imports.logs.training_log import OutOfMemory, TrainingLog
from meshwright.loading.plan_text import pins_of_answer
from meshwright.planner.options import Options, tolerance_of
from meshwright.planner.solve import solve
from meshwright.plans.plan import Plan
from meshwright.results.diagnosis import (
    AdvisedChange,
    ComparedPart,
    Diagnosis,
    JudgedFault,
    LogFacts,
    MemoryCause,
    SuspectTensor,
)
from meshwright.results.outcome_parts import LEVER_EFFECTS, Repair
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.plan_fields import FIELDS, Pins

LEAST_SAVED = 0.01
"""Least share of the step for which a change is advised."""

SURE = 0.5
"""Probability from which on a fault counts as found when changes are priced."""

WORTH_UNDOING = 0.1
"""Probability from which on it is said what undoing a fault would save."""

MOST_SUSPECTS = 5
"""Tensors that an answer names."""


def diagnosis(run: Run, options: Options, missing: tuple[str, ...] = ()) -> Diagnosis:
    """Return what slows a run down, or stopped it, and what to change.

    Args:
        run: The run, with the switches of the profile.
        options: How to look for better plans; it has the profile.
        missing: Sentences on what is assumed for want of it in the log.
    """
    profile = options.profile
    calm = modelled(Case("", run.spec, run.plan), profile)
    told = Diagnosis(
        spec=run.spec.title,
        log=_facts(run, missing),
        plan=run.plan,
        modelled_s=calm.step_s,
        noise=noise_of(run, profile).step_sd,
    )
    update: dict[str, object] = {}
    if run.log.steps is not None and not run.log.steps.is_first_alone:
        ran = with_runs(profile, [(run.spec, run.plan)])
        options = replace(options, profile=ran)
        options.on_progress("judging hypotheses")
        found = judged(run, profile)
        update |= _slow(run, found, options)
        update["parts"] = tuple(
            ComparedPart(name=name, measured_s=s, modelled_s=calm.parts[name])
            for name, s in run.parts.items()
        )
    if run.log.out_of_memory is not None:
        options.on_progress("matching the allocation that failed")
        update["out_of_memory"] = _memory(run, run.log.out_of_memory, options)
    return told.model_copy(update=update)


def _facts(run: Run, missing: tuple[str, ...]) -> LogFacts:
    log, steps = run.log, run.log.steps
    if steps is not None and steps.is_first_alone:
        steps = None
    return LogFacts(
        kind=log.kind,
        title=log.title,
        step_s=steps.step_s if steps else None,
        low_s=steps.low_s if steps else None,
        high_s=steps.high_s if steps else None,
        steps=steps.count if steps else 0,
        allocated_gib=log.peak.allocated_gib,
        parts=tuple(run.parts),
        died=log.died,
        missing=missing,
    )


def _slow(
    run: Run, found: tuple[Hypothesis, ...], options: Options
) -> dict[str, object]:
    """Return hypotheses and changes of a run whose step was measured."""
    base = found[0]
    if base.probability < SURE or base.fault.kind == "none":
        base = _as_modelled(found)
    spec, plan = base.case.spec, base.case.plan
    job = options.profile.job(spec)
    priced = check(job, plan)
    scale = run.step_s / priced.step_s
    options.on_progress("looking for better plans and switches")
    changes = [
        *_undone(run, found),
        *_switches(run, base.case, scale, options.profile),
        *_plans(run, base.case, scale, options),
        *_hardware(run, base.case, scale, options.profile),
    ]
    ours = [one.step_s for one in changes if one.kind != "hardware"]
    kernels_s = priced.time_parts["compute"]
    order = ("fault", "switch", "plan", "hardware")
    return {
        "faults": tuple(map(_told, found)),
        "changes": tuple(
            sorted(
                changes,
                key=lambda one: (order.index(one.kind), -one.saves_s * one.probability),
            )
        ),
        "fastest_s": min([run.step_s, *ours]),
        "compute_share": min(kernels_s / run.step_s, 1.0),
    }


def _as_modelled(found: tuple[Hypothesis, ...]) -> Hypothesis:
    return next(one for one in found if one.fault.kind == "as modelled")


def _told(one: Hypothesis) -> JudgedFault:
    return JudgedFault(
        name=one.fault.name,
        key=one.fault.key,
        kind=one.fault.kind,
        size=one.case.size,
        probability=one.probability,
        prior=one.prior,
        source=one.fault.source,
        step_s=one.modelled.step_s,
    )


def _undone(run: Run, found: tuple[Hypothesis, ...]) -> Iterator[AdvisedChange]:
    """Yield what it saves to undo each fault that is likely enough."""
    calm = _as_modelled(found).modelled
    options = {one.switch: one.option for one in framework_of(run.spec).levers}
    for one in found:
        share = 1 - calm.step_s / one.modelled.step_s
        is_fault = one.fault.kind not in ("as modelled", "none")
        if is_fault and one.probability >= WORTH_UNDOING and share > LEAST_SAVED:
            size = f" ({one.case.size})" if one.case.size else ""
            yield AdvisedChange(
                kind="fault",
                change=f"mend: {one.fault.name}{size}",
                option=options.get(one.fault.key, ""),
                step_s=run.step_s * (1 - share),
                saves_s=run.step_s * share,
                note=f"if it is so: {one.probability:.2f}",
                probability=one.probability,
            )


def _switches(
    run: Run, case: Case, scale: float, profile: Profile
) -> Iterator[AdvisedChange]:
    """Yield the switches of the framework that gain on the plan that ran."""
    for lever in priced_levers(case.spec, case.plan, profile):
        step_s = scale * lever.step_s
        saves_s = run.step_s - step_s
        if saves_s > LEAST_SAVED * run.step_s and lever.fits:
            yield AdvisedChange(
                kind="switch",
                change=lever.edit,
                option=lever.option,
                step_s=step_s,
                saves_s=saves_s,
                note=LEVER_EFFECTS[lever.numbers],
            )


def _plans(
    run: Run, case: Case, scale: float, options: Options
) -> Iterator[AdvisedChange]:
    """Yield the recommended plan, if it is faster than the one that ran."""
    spec, plan = case.spec, case.plan
    tolerance = tolerance_of(spec, options.profile)
    asked = replace(
        options,
        tolerance=tolerance.share,
        tolerance_from=tolerance.source,
        is_brief=False,
    )
    pins = Pins.model_validate({} if has_pipelines(run.log) else {"pp": 1})
    best = solve(spec.model_copy(update={"pins": pins}), asked).best
    if best is None:
        return
    step_s = scale * best.step_s
    if step_s < run.step_s * (1 - LEAST_SAVED):
        yield AdvisedChange(
            kind="plan",
            change=edits(plan, best.plan) or str(best.plan),
            step_s=step_s,
            saves_s=run.step_s - step_s,
            plan=best.plan,
        )


def edits(plan: Plan, other: Plan) -> str:
    """Return the fields in which another plan differs, as 'tp: 8 -> 4'."""
    changed = (
        f"{field.name}: {getattr(plan, field.name)} -> {getattr(other, field.name)}"
        for field in FIELDS
        if getattr(plan, field.name) != getattr(other, field.name)
    )
    return ", ".join(changed).lower()


def _hardware(
    run: Run, case: Case, scale: float, profile: Profile
) -> Iterator[AdvisedChange]:
    """Yield what links of twice the bandwidth would save."""
    spec = case.spec
    if spec.cluster.parts:
        return
    ways = {
        "twice the network between hosts": False,
        "twice the links inside a host": True,
    }
    for name, is_inside in ways.items():
        wider = slower_links(spec, 2.0, is_inside=is_inside)
        step_s = scale * check(profile.job(wider), case.plan).step_s
        if step_s < run.step_s * (1 - LEAST_SAVED):
            yield AdvisedChange(
                kind="hardware",
                change=name,
                step_s=step_s,
                saves_s=run.step_s - step_s,
            )


def _memory(run: Run, event: OutOfMemory, options: Options) -> MemoryCause:
    """Return why memory ran out, and what would fit."""
    priced = check(options.profile.job(run.spec), run.plan)
    found = cause(run.spec, run.plan, priced, event)
    needed_gib = _needed_gib(event) or found.memory.total_gib
    return MemoryCause(
        line=event.line,
        tried_gib=event.tried_gib,
        phase=event.phase,
        step=event.step,
        part=found.part,
        suspects=_suspects(found),
        filled_by=found.filled_by,
        is_fragmented=found.is_fragmented,
        unused_gib=event.unallocated_gib,
        others_gib=others_gib(event),
        rank=None if found.stage is None else event.rank,
        stage=found.stage,
        memory=found.memory,
        needed_gib=needed_gib,
        repairs=fitting(run, priced, found.memory.total_gib, needed_gib, options),
    )


def _suspects(found: Cause) -> tuple[SuspectTensor, ...]:
    return tuple(
        SuspectTensor(
            name=one.tensor.name,
            part=one.tensor.part,
            gib=one.tensor.gib,
            probability=one.probability,
        )
        for one in found.suspects[:MOST_SUSPECTS]
    )


def _needed_gib(event: OutOfMemory) -> float:
    """Return what a rank needed at least when its memory ran out; 0 if unknown."""
    in_use = event.in_use_gib or event.allocated_gib or 0.0
    return in_use + event.tried_gib if in_use else 0.0


TRAINERS = frozenset(
    {"accelerate", "axolotl", "hf_trainer_log", "llama_factory", "trl"}
)
"""Kinds of logs and launches of programs on Hugging Face's Trainer, which has no
pipelines: accelerate's docs, usage_guides/deepspeed.md, "doesn't support Pipeline
Parallelism of DeepSpeed"."""


def has_pipelines(log: TrainingLog) -> bool:
    """Return whether the program that wrote a log can split layers over stages."""
    return TRAINERS.isdisjoint((log.kind, log.launch.kind))


ASKED = (
    "tp", "pp", "vpp", "cp", "ep", "zero", "sequence_parallel", "schedule",
    "micro_batch", "recompute", "offload", "precision",
)  # fmt: skip
"""Fields of a plan that stay as they ran while changes are looked for."""


def fitting(
    run: Run,
    priced: PricedPlan,
    modelled_gib: float,
    needed_gib: float,
    options: Options,
) -> tuple[Repair, ...]:
    """Return changes after which the run fits, the cheapest first.

    Where the model takes the plan for one that fits, the memory that a plan may use
    shrinks by as much as the rank needed more than modelled: it ran out.
    """
    spec, usable_gib = run.spec, run.spec.usable_gib
    card_gib = spec.cluster.topology.gpu.memory_gib
    if priced.peak_gib <= usable_gib:
        short = modelled_gib / max(needed_gib, card_gib)
        spec = with_memory(
            spec, min(usable_gib * short, math.nextafter(priced.peak_gib, 0))
        )
    fields = pins_of_answer(run.plan.model_dump(mode="json"))
    pins = Pins.model_validate({n: v for n, v in fields.items() if n in ASKED})
    told = Explainer(options).plan(spec.model_copy(update={"pins": Pins()}), pins)
    if told.plan is None:
        # A limit that was set to what the run needed is none of the user's.
        return tuple(
            one
            for one in told.repairs
            if one.changes != "safety" and (one.plan.pp == 1 or has_pipelines(run.log))
        )
    # Fields that are not asked for are enough: shards, chunks, how layers are split.
    changed = edits(run.plan, told.plan.plan) or "other layers on the stages"
    return tuple(with_prices([unpriced_repair([changed], told.plan)], None))
