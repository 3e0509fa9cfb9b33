"""The outcome of a solve as titled tables and lines: the plan, then its proof."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from meshwright.report.alternatives import (
    BY_DOUBTED,
    DOUBTED_STEP,
    choice_lines,
    least_loss_text,
    lever_sections,
    near_sections,
    open_sections,
    step_text,
)
from meshwright.report.tables import (
    Lines,
    Section,
    Table,
    seconds_text,
    short_rule_text,
)
from meshwright.results.claims import (
    NONE_FITS,
    familiarity_claim,
    miss_claims,
    plan_lines,
    probability_text,
    proof_claim,
    published_claims,
    safety_claims,
    short_plan_text,
    speed_claim,
)
from meshwright.results.outcome import Band, Certificate, KindResult, NearMiss, Outcome
from meshwright.results.outcome_parts import Conflict, ModelSize, Simplicity
from meshwright.results.priced_plan import PricedPlan
from meshwright.surface import option

WORDS = {
    "rarely_run": "a combination of techniques that many have run",
    "deep_pipeline": "no more than 16 stages",
    "replicated_shards": "no replicas of shards",
    "offload": "nothing in host memory",
    "short_context_parallel": "no short sequence split over GPUs",
    "zero3_in_pipeline": "no ZeRO-3 in a pipeline",
    "uneven_stages": "as many layers on every stage",
    "partial_recompute": "every layer recomputed, or none",
    "odd_micro_batch": "a micro-batch that is a power of two",
}
"""The property of a plan that is simpler by a criterion."""


def simplicity_sections(outcome: Outcome) -> Iterator[Section]:
    """Yield how the recommended plan is simpler than the fastest, and that plan."""
    told, fastest = outcome.simplicity, outcome.fastest
    if told is None or fastest is None:
        return
    lines = (
        f"The recommended plan takes {told.loss:.2%} longer than the fastest plan "
        f"({seconds_text(fastest.step_s)}). {_why_another(told, fastest, 'It')}",
        f"The fastest plan ({option('fastest')}): "
        + str(fastest.plan).replace(",", ", "),
    )
    yield Lines("The fastest plan, and why another is recommended", lines)


def simpler_text(outcome: Outcome) -> str:
    """Return why the recommended plan is not the fastest, if another is."""
    told, fastest = outcome.simplicity, outcome.fastest
    if told is None or fastest is None:
        return ""
    return _why_another(told, fastest, "The recommended plan")


def _why_another(told: Simplicity, fastest: PricedPlan, plan: str) -> str:
    """Return in a sentence why a plan is recommended that is not the fastest."""
    if told.criterion == "beyond_runs":
        return (
            f"The fastest plan has {familiarity_claim(fastest)}. Where the model holds "
            "there, it gains that much: measure it before you count on it."
        )
    if told.criterion == "unlike_published":
        return f"{plan} is the one that is published for this job."
    if told.criterion == "techniques":
        simpler = f"{_named(told.techniques)}, not {_named(told.fastest_techniques)}"
        return f"{plan} is simpler: {simpler}."
    return f"{plan} is simpler: {WORDS[told.criterion]}."


def _named(techniques: tuple[str, ...]) -> str:
    return " + ".join(techniques) or "data parallelism alone"


def solve_sections(outcome: Outcome) -> list[Section]:
    """Return an outcome as sections: plan, time, memory, links, rivals, certificate."""
    best = outcome.best
    if best is None:
        return [
            answer_lines(outcome),
            *miss_sections(outcome),
            *open_sections(outcome.open),
        ]
    return [
        answer_lines(outcome),
        *open_sections(outcome.open),
        *simplicity_sections(outcome),
        time_table(best),
        _memory_table(best),
        safety_lines(best, outcome),
        *lever_sections(outcome.levers),
        *([_link_table(best)] if best.links else []),
        *choice_sections(outcome),
        *proof_sections(outcome),
    ]


def answer_lines(outcome: Outcome) -> Lines:
    """Return the recommended plan, its speed and its proof, or why there is none."""
    best = outcome.best
    if best is None:
        return Lines(outcome.title, miss_lines(outcome))
    lines = (*size_lines(outcome.model), *plan_lines(best.plan), speed_line(best))
    return Lines(outcome.title, (*lines, *sure_lines(outcome, best)))


def sure_lines(outcome: Outcome, best: PricedPlan) -> Iterator[str]:
    """Yield how near a plan is to what was run, what is proven, and what is not."""
    yield from filter(None, [familiarity_line(best), proof_claim(outcome)])
    yield from filter(None, [simpler_text(outcome)])
    yield from published_claims(outcome)


def familiarity_line(best: PricedPlan) -> str:
    """Return how near a plan is to what was run, as a sentence."""
    told = familiarity_claim(best)
    return f"{told[0].upper()}{told[1:]}." if told else ""


def choice_sections(outcome: Outcome) -> Iterator[Section]:
    """Yield the plans that were found beside the recommended one."""
    fastest = outcome.optimum
    if fastest is None:
        return
    if outcome.arrangements:
        yield arrangement_table(fastest, outcome)
    if outcome.by_kind:
        yield kind_table(fastest, outcome.by_kind)
    if outcome.others:
        yield others_table(fastest, outcome.others)
    yield from near_sections(outcome.near)


def size_lines(model: ModelSize | None) -> tuple[str, ...]:
    """Return the size of the model in a line, where it is known."""
    return () if model is None else (model.text,)


def speed_line(best: PricedPlan) -> str:
    """Return the step time and the rate of a plan."""
    return f"step {speed_claim(best)}"


def time_table(best: PricedPlan) -> Table:
    """Return the parts of the step, in seconds and as shares."""
    unit, per_s = ("s", 1.0) if best.step_s >= 1 else ("ms", 1e3)
    parts = {name: s for name, s in best.time_parts.items() if s > 1e-9 * best.step_s}
    rows = [
        (name, f"{seconds * per_s:,.3f}", f"{seconds / best.step_s:.1%}")
        for name, seconds in {**parts, "step": best.step_s}.items()
    ]
    return Table("Step time by part", ("part", unit, "share"), tuple(rows))


def stage_table(best: PricedPlan, most: int) -> Table:
    """Return the memory of the fullest stages in few columns, equal ones in a row."""
    groups = alike([_stage_cells(best, e) for e in range(best.plan.pp)])
    fullest = sorted(groups.items(), key=lambda one: -best.stages[one[1][0]].total_gib)[
        :most
    ]
    rows = tuple(
        (spans(members), *cells)
        for cells, members in sorted(fullest, key=lambda one: one[1])
    )
    left = best.plan.pp - sum(len(members) for _, members in fullest)
    title = _memory_title(best) + (f"; {left} emptier stages left out" if left else "")
    return Table(title, ("stage", "layers", "redone", "total", "free"), rows)


def _stage_cells(best: PricedPlan, e: int) -> tuple[str, ...]:
    stage, memory = best.plan.stages[e], best.stages[e]
    return (
        str(stage.layers),
        str(stage.recompute_layers),
        f"{memory.total_gib:.2f}",
        f"{memory.usable_gib - memory.total_gib:.2f}",
    )


def _memory_table(best: PricedPlan) -> Table:
    names = [
        name
        for name in best.stages[0].parts
        if any(stage.parts[name] > 0 for stage in best.stages)
    ]
    cells = [_memory_cells(best, e, names) for e in range(best.plan.pp)]
    # A column that is empty in every stage is left out.
    shown = [i for i, column in enumerate(zip(*cells, strict=True)) if any(column)]
    heading = ("GPU", "layers", "redone", *names, "total", "free", "host")
    groups = alike(cells)
    rows = tuple(
        (spans(members), *(same_cells[i] for i in shown))
        for same_cells, members in groups.items()
    )
    shares = tuple(
        best.stages[members[0]].total_gib / best.stages[members[0]].usable_gib
        for members in groups.values()
    )
    columns = tuple(heading[i] for i in shown)
    return Table(_memory_title(best), ("stage", *columns), rows, shares)


def alike(cells: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], list[int]]:
    """Return the stages that have the same cells, by these."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for stage, same in enumerate(cells):
        groups.setdefault(same, []).append(stage)
    return groups


def spans(stages: list[int]) -> str:
    """Return stages in few letters, as in 0, 2-5."""
    runs: list[list[int]] = []
    for stage in stages:
        if runs and runs[-1][-1] == stage - 1:
            runs[-1].append(stage)
        else:
            runs.append([stage])
    return ", ".join(
        str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs
    )


def _memory_title(best: PricedPlan) -> str:
    usable = list(dict.fromkeys(f"{stage.usable_gib:.2f}" for stage in best.stages))
    recomputes = any(stage.recompute_layers for stage in best.plan.stages)
    redone = " (redone: recomputed layers)" if recomputes else ""
    return f"Memory of a GPU by stage, GiB of {' or '.join(usable)} usable{redone}"


def _memory_cells(best: PricedPlan, e: int, names: list[str]) -> tuple[str, ...]:
    stage, memory = best.plan.stages[e], best.stages[e]
    recomputes = any(one.recompute_layers for one in best.plan.stages)
    return (
        stage.gpu,
        str(stage.layers),
        str(stage.recompute_layers) if recomputes else "",
        *(f"{memory.parts[name]:.2f}" for name in names),
        f"{memory.total_gib:.2f}",
        f"{memory.usable_gib - memory.total_gib:.2f}",
        f"{memory.host_gib:.2f}"
        if any(stage.host_gib > 0 for stage in best.stages)
        else "",
    )


def _link_table(best: PricedPlan) -> Table:
    rows = tuple(
        (
            load.phase,
            load.link,
            f"{load.gb:,.1f}",
            seconds_text(load.seconds),
            f"{load.utilisation:.1%}",
        )
        for load in best.links
    )
    heading = ("axis", "link", "GB", "at full rate", "of the step")
    return Table("Most loaded link of each axis, per step and way", heading, rows)


def arrangement_table(best: PricedPlan, outcome: Outcome) -> Table:
    """Return the ways to use unlike parts, the best first."""
    ways = outcome.arrangements
    least_s = ways[0].doubted_s or ways[0].step_s or best.step_s
    has_doubted = ways[0].doubted_s is not None
    rows = []
    for way in ways:
        takes_s = way.doubted_s or way.step_s
        loss = _loss_text(takes_s / least_s - 1) if takes_s else "none fits"
        steps = [way.step_s, way.doubted_s][: 1 + has_doubted]
        rows.append((way.sentence, *map(step_text, steps), loss))
    doubted = (DOUBTED_STEP,) * has_doubted
    heading = ("the job", "step", *doubted, "loses")
    return Table("Ways to use the unlike parts", heading, tuple(rows))


def kind_table(
    fastest: PricedPlan, kinds: tuple[KindResult, ...], is_short: bool = False
) -> Table:
    """Return the fastest plan of every kind, and what keeps other kinds from fitting.

    Kinds that the same rule rules out share a row. In short, a plan is its degrees, and
    kinds that a rule rules out whatever the memory are no rows.
    """
    known = [(kind, kind.best) for kind in kinds if kind.best]
    rows = [
        (
            kind.kind,
            *_kind_cells(fastest, kind, best),
            short_plan_text(best.plan) if is_short else best.plan.brief,
        )
        for kind, best in sorted(known, key=lambda pair: pair[1].step_s)
    ]
    for why, names in _misses(kinds, is_short).items():
        rows.append((", ".join(names), "-", "-", f"none fits: {why}"))
    heading = ("kind", "step", "loses", "fastest plan of the kind")
    return Table("What wins, and by how much", heading, tuple(rows))


def _misses(kinds: tuple[KindResult, ...], is_short: bool) -> dict[str, list[str]]:
    """Return the kinds that do not fit, by what their nearest plan breaks."""
    found: dict[tuple[str, float | None], tuple[str, list[str]]] = {}
    for kind in kinds:
        if kind.near_miss is None:
            continue
        rule = kind.near_miss.broken_rules[0]
        if rule.need is None and is_short:
            continue
        same = found.setdefault((rule.rule, rule.need), (short_rule_text(rule), []))
        same[1].append(kind.kind)
    return dict(found.values())


def _kind_cells(
    fastest: PricedPlan, kind: KindResult, best: PricedPlan
) -> tuple[str, str]:
    """Return the step and the loss of a kind's plan, and by how much it loses at least.

    They are upper bounds where that plan is not proven to be the fastest.
    """
    step = seconds_text(best.step_s)
    loss = _loss_text(best.step_s / fastest.step_s - 1)
    if kind.is_proven:
        return step, loss
    least = (kind.bound_s or 0.0) / fastest.step_s - 1
    return f"<= {step}", least_loss_text(least) if least > 0 else f"<= {loss}"


def _loss_text(loss: float) -> str:
    return "wins" if abs(loss) < 1e-12 else f"+{loss:.1%}"


def others_table(best: PricedPlan, others: tuple[PricedPlan, ...]) -> Table:
    """Return the fastest plan and those that come next."""
    rows = tuple(
        (
            str(rank),
            seconds_text(plan.step_s),
            _loss_text(plan.step_s / best.step_s - 1),
            plan.plan.brief,
        )
        for rank, plan in enumerate((best, *others), 1)
    )
    return Table("The fastest plans", ("rank", "step", "loses", "plan"), rows)


CONFLICT = "Smallest conflict: no plan keeps all of these, whatever else it does"


def conflict_lines(conflict: Conflict, title: str = CONFLICT) -> Lines:
    """Return the constraints that no plan keeps together."""
    return Lines(title, tuple(map(str, conflict.rules)))


def miss_sections(outcome: Outcome) -> Iterator[Section]:
    """Yield the conflict of an outcome without a plan, if it was looked for."""
    if outcome.conflict is not None and outcome.conflict.rules:
        yield conflict_lines(outcome.conflict)


def miss_lines(outcome: Outcome) -> tuple[str, ...]:
    """Return the plan that comes closest, and the rules that it breaks."""
    miss = outcome.near_miss
    if miss is None:
        undecided = "Undecided: no plan was found, and not all were looked at."
        return (undecided, *([outcome.left_open] if outcome.left_open else []))
    return (
        NONE_FITS,
        *miss_claims(outcome),
        "The nearest miss",
        f"    {miss.description}",
        "breaks",
        *(f"    {rule}" for rule in miss.broken_rules),
        *_fullest_gpu(miss),
    )


def _fullest_gpu(miss: NearMiss) -> Iterator[str]:
    """Yield the memory of the nearest miss by part, if it breaks the memory rule."""
    if miss.memory is not None and any(r.rule == "memory" for r in miss.broken_rules):
        parts = [f"{k} {v:.2f}" for k, v in miss.memory.parts.items() if v > 0]
        yield f"Its fullest GPU holds {miss.memory.total_gib:.2f} GiB: " + ", ".join(
            parts
        )


def proof_sections(outcome: Outcome) -> Iterator[Section]:
    """Yield how far the answer may be off, and its certificate."""
    best, fastest = outcome.best, outcome.optimum
    if best is None or fastest is None:
        return
    if outcome.band:
        yield Lines("How sure", tuple(band_lines(outcome)))
    if outcome.certificate:
        yield Lines("Certificate", tuple(_certificate(outcome, best, fastest)))


FEW_RUNS = 10
"""Of fewer, the number that lay within a band is told, not a share."""


def band_lines(outcome: Outcome) -> Iterator[str]:
    """Yield how far the step time may be off, and a plan within that error."""
    best, band = outcome.best, outcome.band
    if best is None or band is None:
        return
    low, high = best.step_s * math.exp(-band.p90), best.step_s * math.exp(band.p90)
    none_on = f"; none was on {' or '.join(band.none_on)}" if band.none_on else ""
    between = f"Between {seconds_text(low)} and {seconds_text(high)}"
    yield f"{between}: {_told(band)}{none_on}."
    next_best = outcome.runner_up
    if outcome.fastest:
        # The plan is compared with the fastest one already.
        return
    if next_best and next_best.step_s <= best.step_s * math.exp(band.median):
        loss = next_best.step_s / best.step_s - 1
        simpler = "simpler, " if next_best.is_simpler else ""
        yield f"A plan within that error ({simpler}{loss:+.1%}): {next_best.plan.brief}"


def _told(band: Band) -> str:
    """Return how many runs lay how near; of fewer than ten, nine in ten cannot."""
    runs = f"{band.runs} run{'s' * (band.runs > 1)} of {band.runs_of}"
    within = f"within {math.expm1(band.p90):.0%}"
    if not band.is_measured:
        return f"calibrated on {runs}, nine in ten are expected {within}"
    if band.sources:
        each = f"{band.runs:,} of {band.sources} sources, which count alike"
        return f"nine in ten measured runs of {band.runs_of} lay {within} ({each})"
    # Of n runs so many lie below the 90th percentile that numpy interpolates.
    near = math.floor(0.9 * (band.runs - 1)) + 1
    lay = "nine in ten" if band.runs >= FEW_RUNS else str(near)
    return f"of {runs} that were measured, {lay} lay {within}"


def _certificate(
    outcome: Outcome, best: PricedPlan, fastest: PricedPlan
) -> Iterator[str]:
    certificate = outcome.certificate
    if certificate is None:
        return
    yield from choice_lines(outcome.open)
    yield from claim_lines(outcome.status, certificate, fastest.step_s)
    if best.plan.pp > 1:
        gap = best.schedule_s / best.step_s - 1
        difference = f"{abs(gap):.2%} {'more' if gap > 0 else 'less'}"
        yield (
            f"What was minimised: {certificate.objective}. By the task graph of its "
            f"schedule the recommended plan takes {seconds_text(best.schedule_s)}, "
            f"{difference if abs(gap) > 5e-5 else 'the same'}."
        )
    if outcome.rival:
        yield (
            f"By the task graph {outcome.rival.plan} is faster than the fastest plan: "
            f"{seconds_text(outcome.rival.schedule_s)}, not "
            f"{seconds_text(fastest.schedule_s)}."
        )


def claim_lines(status: str, certificate: Certificate, step_s: float) -> Iterator[str]:
    """Yield what was proven, and how all plans but the fastest were ruled out.

    `step_s` is the step time of the fastest plan that was found, or the least doubted
    step where the bound is of these.
    """
    if certificate.levels:
        by = ", then ".join(certificate.levels) + BY_DOUBTED * bool(certificate.doubt)
        yield f"Best by {by} of all uses of the parts."
    least = f"no plan takes less than {certificate.bound_s:.6f} s"
    least += BY_DOUBTED * certificate.is_of_doubted
    if status == "optimal":
        yield f"Proven optimal in the model: {least} (gap 0)."
    else:
        gap = max(0.0, 1 - certificate.bound_s / step_s)
        found = f"the fastest plan found so far {step_s:.6f} s (gap {gap:.2%})"
        yield f"Not proven: {least}, {found}."
        yield certificate.left_open
    counts = certificate.counts
    yield (
        f"{counts.skeletons:,} legal plans, splits of layers aside: {counts.bounded:,} "
        f"cannot be faster, {counts.no_memory:,} others cannot fit, "
        f"{counts.survivors:,} left to CP-SAT."
    )


def safety_lines(plan: PricedPlan, outcome: Outcome | None = None) -> Lines:
    """Return the probability that a plan fits, then what to run at other risks."""
    claims = () if outcome is None else safety_claims(outcome)
    return Lines("How safe", (fit_text(plan.fit_probability), *claims))


def fit_text(probability: float) -> str:
    """Return how likely a plan fits, as a sentence."""
    return f"Fits with probability {probability_text(probability)}."
