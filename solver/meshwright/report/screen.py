"""Answers on one screen: what matters most, in at most 40 lines of 80 columns.

The answer stands first, with what options asked for. Other sections follow, the most
useful first, while there is room. `--verbose` prints every section of an answer.
A solve imports no classes of other answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from meshwright.report.alternatives import (
    degree_sections,
    framework_limit_sections,
    lever_lines,
    near_sections,
    next_value_sections,
    open_sections,
)
from meshwright.report.compare import compare_sections, ledger_sections
from meshwright.report.diagnose import diagnosis_sections
from meshwright.report.explain import (
    conflict_sections,
    explain_sections,
    gap_table,
    model_sections,
    named_plan_lines,
    nearest_lines,
    repair_table,
    slack_lines,
    verdict_lines,
    worth_table,
)
from meshwright.report.runs import rental_sections, run_lines, run_sections
from meshwright.report.serving import explanation_sections, serving_sections
from meshwright.report.solve import (
    arrangement_table,
    band_lines,
    kind_table,
    miss_lines,
    miss_sections,
    others_table,
    solve_sections,
    speed_line,
    stage_table,
    sure_lines,
    time_table,
)
from meshwright.report.tables import Lines, Section, sections_as_text
from meshwright.results.claims import fullest_claim, limit_claim, plan_lines
from meshwright.results.outcome import Outcome
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.result import Result
from meshwright.results.serving import ServingExplanation, ServingOutcome
from meshwright.results.training_run import RentalAnswer

if TYPE_CHECKING:
    from meshwright.results.diagnosis import Diagnosis
    from meshwright.results.explanation import Explanation

LINES, COLUMNS = 40, 80
"""The screen that an answer fits on."""

FEW_CHANGES, FEW_REPAIRS, FEW_STAGES, FEW_LEVERS = 6, 4, 5, 2
"""Rows on a screen; `--verbose` has all."""

Answer: TypeAlias = "Outcome | Explanation | ServingOutcome | ServingExplanation"

Shown: TypeAlias = "Answer | Diagnosis"
"""The part of an answer, to a spec or to a log, that fits on a screen."""


def screen_sections(
    answer: Shown, asked: str = "", width: int = COLUMNS
) -> list[Section]:
    """Return the sections of an answer that fit on a screen of this width.

    `asked` is the spec as the user named it, for the commands that say more; empty
    where a name alone does not repeat the question.
    """
    last = Lines("Next", tuple(_next(answer, asked)))
    if isinstance(answer, Outcome):
        return _trimmed(*_solve(answer), last, width)
    return _others(answer, last, width)


def _others(answer: Shown, last: Section, width: int) -> list[Section]:
    """Return the sections of answers to other questions than a solve of training."""
    from meshwright.results.diagnosis import Diagnosis
    from meshwright.results.explanation import Explanation

    if isinstance(answer, Diagnosis) and answer.out_of_memory is None:
        return _diagnosis(answer, last, width)
    if isinstance(answer, Explanation):
        return _trimmed(*_explain(answer), last, width)
    first, *others = full_sections(answer, is_short=True)
    return _trimmed([first], others, last, width)


def screen_text(told: Result) -> str:
    """Return an answer as text of a screen, without commands that say more.

    Answers that have no short form are printed whole.
    """
    if _always_whole(told):
        return sections_as_text(whole_sections(told), COLUMNS)
    return sections_as_text(screen_sections(cast("Shown", told))[:-1], COLUMNS)


def whole_sections(told: Result) -> list[Section]:
    """Return every section of an answer of any kind."""
    make = _always_whole(told)
    return make(told) if make else full_sections(cast("Shown", told))


def _always_whole(told: Result) -> Callable[[Any], list[Section]] | None:
    """Return the function that makes the sections of an answer without a short form."""
    if isinstance(told, Outcome):
        return None
    from meshwright.report.simulation import simulation_sections, trace_sections
    from meshwright.results.comparison import Comparison
    from meshwright.results.simulation import Simulation, TraceComparison

    makers: dict[type[Result], Callable[[Any], list[Section]]] = {
        Comparison: compare_sections,
        RentalAnswer: rental_sections,
        Simulation: simulation_sections,
        TraceComparison: trace_sections,
    }
    return makers.get(type(told))


def full_sections(answer: Shown, is_short: bool = False) -> list[Section]:
    """Return every section of an answer; in short, tables of serving are narrow."""
    if isinstance(answer, Outcome):
        return _outcome_sections(answer)
    from meshwright.results.diagnosis import Diagnosis
    from meshwright.results.explanation import Explanation

    if isinstance(answer, Explanation):
        return explain_sections(answer)
    if isinstance(answer, ServingOutcome):
        return serving_sections(answer, is_short)
    if isinstance(answer, Diagnosis):
        return diagnosis_sections(answer, is_short)
    return explanation_sections(answer, is_short)


def _outcome_sections(outcome: Outcome) -> list[Section]:
    """Return the sections of an outcome, and of the run around it."""
    step_s = outcome.optimum.step_s if outcome.optimum else None
    return [
        *solve_sections(outcome),
        *framework_limit_sections(outcome.framework_limits, step_s),
        *model_sections(outcome.solved_model),
        *run_sections(outcome.run),
    ]


Parts = tuple[list[Section], Iterable[Section]]
"""The answer with what was asked for, and sections that follow while there is room."""


def _trimmed(
    first: list[Section], others: Iterable[Section], last: Section, width: int
) -> list[Section]:
    """Return sections in their order, leaving out those for which there is no room."""
    shown = list(first)
    for section in others:
        if _count([*shown, section, last], width) <= LINES:
            shown.append(section)
    return [*shown, last]


def _diagnosis(told: Diagnosis, last: Section, width: int) -> list[Section]:
    """Return the sections on why a run is slow; rows are cut before tables are."""
    sections: list[Section] = []
    for rows in range(FEW_CHANGES, 0, -1):
        sections = diagnosis_sections(told, is_short=True, rows=rows)
        if _count([*sections, last], width) <= LINES:
            break
    return _trimmed(sections[:1], sections[1:], last, width)


def _count(sections: list[Section], width: int) -> int:
    return sections_as_text(sections, width).count("\n")


def _next(answer: Shown, asked: str) -> Iterator[str]:
    """Yield the commands that say more, or that use the answer."""
    verb = _verb(answer)
    if isinstance(answer, Outcome | ServingOutcome):
        if asked:
            what = "Mend it" if answer.best is None else "Why"
            yield f"{what}: meshwright explain {asked}"
        if asked and isinstance(answer, Outcome) and answer.best is not None:
            yield f"Start it: meshwright export {asked} -o run"
            if answer.fastest is not None:
                yield f"The fastest plan: meshwright solve {asked} --fastest"
    yield f"All of it: {f'meshwright {verb} {asked}' if asked else 'add'} --verbose"


def _verb(answer: Shown) -> str:
    """Return the command that answers so."""
    if isinstance(answer, Outcome | ServingOutcome):
        return "solve"
    from meshwright.results.diagnosis import Diagnosis

    return "diagnose" if isinstance(answer, Diagnosis) else "explain"


def _solve(outcome: Outcome) -> Parts:
    """Return the plan, its step and memory, and how sure the answer is."""
    best, fastest = outcome.best, outcome.optimum
    asked = [
        *open_sections(outcome.open),
        *framework_limit_sections(
            outcome.framework_limits, fastest.step_s if fastest else None
        ),
        *model_sections(outcome.solved_model),
    ]
    if best is None or fastest is None:
        first = Lines(outcome.title, miss_lines(outcome))
        return [first, *asked], miss_sections(outcome)
    if outcome.run:
        asked.append(Lines("The run", tuple(run_lines(outcome.run))))
    asked += near_sections(outcome.near)
    if outcome.others:
        asked.append(others_table(fastest, outcome.others))
    first = Lines(outcome.title, tuple(_plan_lines(outcome, best)))
    return [first, *asked], _beside(outcome, best, fastest)


def _plan_lines(outcome: Outcome, best: PricedPlan) -> Iterator[str]:
    yield from plan_lines(best.plan)
    yield speed_line(best)
    yield fullest_claim(best)
    yield limit_claim(best)
    yield from band_lines(outcome)
    yield from sure_lines(outcome, best)


def _beside(
    outcome: Outcome, best: PricedPlan, fastest: PricedPlan
) -> Iterator[Section]:
    """Yield what else a reader may want to know."""
    pays = best.plan.pays_for_memory
    yield from lever_lines(outcome.levers, FEW_LEVERS, pays_for_memory=pays)
    if outcome.by_kind:
        yield kind_table(fastest, outcome.by_kind, is_short=True)
    yield time_table(best)
    if outcome.arrangements:
        yield arrangement_table(fastest, outcome)
    if best.plan.pp > 1:
        yield stage_table(best, FEW_STAGES)


def _explain(told: Explanation) -> Parts:
    """Return the verdict, what decides it, and what would change it."""
    verdict = Lines(told.title, verdict_lines(told))
    asked = ledger_sections(told.collectives) if told.collectives else []
    asked += open_sections(told.open)
    asked += next_value_sections(told.next_values)
    if not told.fits:
        return [verdict, *asked], _refusal(told)
    # The verdict has the recommended plan already, unless another one is judged.
    is_named = told.status != "fits" or _is_recommended(told)
    claims = named_plan_lines(told)[is_named:]
    first = Lines(verdict.title, (*verdict.lines, *claims))
    return [first, *asked], _reasons(told)


def _is_recommended(told: Explanation) -> bool:
    """Return whether the plan that is judged is the recommended one."""
    best, plan = told.best.best if told.best else None, told.plan
    return best is not None and plan is not None and best.plan == plan.plan


def _refusal(told: Explanation) -> Iterator[Section]:
    yield from conflict_sections(told)
    if told.nearest_plan:
        yield nearest_lines(told.nearest_plan)
    if told.repairs:
        yield repair_table(told.repairs[:FEW_REPAIRS], is_short=True)


def _reasons(told: Explanation) -> Iterator[Section]:
    outcome, plan = told.best, told.plan
    assert plan is not None
    fastest = outcome.optimum if outcome and outcome.optimum else plan
    if told.gap and plan.plan != fastest.plan:
        yield gap_table(plan, fastest, told.gap)
    if told.degrees:
        yield from degree_sections(told.degrees, told.best_of_degrees)[:1]
    if worth := worth_table(told, plan, FEW_CHANGES):
        yield worth
    yield from lever_lines(told.levers, FEW_LEVERS)
    if told.slack:
        yield Lines("Slack", tuple(slack_lines(told.slack, kept=False)))
    yield from near_sections(told.near)
