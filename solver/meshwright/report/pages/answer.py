"""The page of an answer: its sections and its drawings, for each kind of answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_core import to_json

from meshwright.escape import in_html, printable_lines
from meshwright.loading.plan_text import pins_of_answer
from meshwright.report.alternatives import framework_limit_sections
from meshwright.report.compare import FASTEST_OF_THESE, compare_sections
from meshwright.report.explain import explain_sections
from meshwright.report.pages.plan_data import (
    memory_data,
    plan_data,
    priced_data,
    rounded,
)
from meshwright.report.pages.skeleton import file_text, filled_page
from meshwright.report.runs import run_sections
from meshwright.report.screen import COLUMNS, screen_text, whole_sections
from meshwright.report.serving import explanation_sections, serving_sections
from meshwright.report.simulation import simulation_sections
from meshwright.report.solve import (
    answer_lines,
    choice_sections,
    miss_sections,
    proof_sections,
    safety_lines,
    size_lines,
    sure_lines,
)
from meshwright.report.tables import (
    Lines,
    Section,
    Table,
    seconds_text,
    sections_as_text,
)
from meshwright.results.claims import (
    RECOMMENDED,
    headline,
    plan_lines,
    probability_text,
    proof_claim,
)
from meshwright.results.comparison import Comparison
from meshwright.results.explanation import Change, Explanation
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import Dot, LatticeMap, Refusal
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.result import Result
from meshwright.results.serving import PricedServing, ServingExplanation, ServingOutcome
from meshwright.results.simulation import DrawnPlan, KnownPlan, Simulation
from meshwright.spec.gpu import Gpu
from meshwright.spec.units import few_digits

Solved = Outcome | Explanation | Comparison

Drawn = Solved | Simulation

Group = tuple[str, str, Sequence[Section]]
"""Id and title of a part of the page, and what stands in it."""


@dataclass(frozen=True)
class Told:
    """The sections of the page for an answer."""

    title: str
    verdict: Sequence[str]
    groups: Sequence[Group]
    near: Sequence[dict[str, Any]] = ()
    worth: Sequence[dict[str, Any]] = field(default_factory=list)
    has_plan: bool = True
    """Whether a plan fits; if none does, the reasons come first."""
    is_comparison: bool = False
    risk: float = 0.0
    """The risk of running out of memory that the spec accepts."""
    histogram: dict[str, Any] | None = None
    """The step times of a simulation."""


def told_of(answer: Drawn, near: Iterable[KnownPlan] = (), risk: float = 0.0) -> Told:
    """Return the page's sections for an answer, and for plans near the fastest.

    `risk` is that of running out of memory which the spec accepts; only a page with
    plans near the fastest tells it.
    """
    return replace(_told(answer, [_near(plan) for plan in near]), risk=risk)


def _told(answer: Drawn, known: list[dict[str, Any]]) -> Told:
    if isinstance(answer, Outcome):
        return _of_outcome(answer, known)
    if isinstance(answer, Explanation):
        return _of_explanation(answer, known)
    if isinstance(answer, Simulation):
        return _of_simulation(answer)
    sections = compare_sections(answer)[1:]
    groups = [("compared", "The comparison in full", sections)]
    lines = tuple(_comparison_lines(answer))
    return Told(answer.title, lines, groups, known, is_comparison=True)


def _of_outcome(outcome: Outcome, near: list[dict[str, Any]]) -> Told:
    best = outcome.best
    groups: list[Group] = []
    if best is None:
        if sections := [*miss_sections(outcome)]:
            groups.append(("why", "Why none fits", sections))
        return Told(outcome.title, answer_lines(outcome).lines, groups, has_plan=False)
    fastest_s = (outcome.optimum or best).step_s
    limits = framework_limit_sections(outcome.framework_limits, fastest_s)
    groups = [
        ("choices", "What else was found", [*choice_sections(outcome), *limits]),
        ("safety", "How safe", [safety_lines(best, outcome)]),
        ("run", "The run", run_sections(outcome.run)),
        ("proof", "How sure, and the certificate", [*proof_sections(outcome)]),
    ]
    sure = sure_lines(outcome, best) if proof_claim(outcome) else ()
    verdict = (headline(outcome), *plan_lines(best.plan), *sure)
    return Told(outcome.title, verdict, groups, near)


def _of_explanation(explanation: Explanation, near: list[dict[str, Any]]) -> Told:
    first, *others = explain_sections(explanation)
    groups: list[Group] = [("why", "The explanation in full", others)]
    if explanation.best is not None:
        groups.append(
            (
                "proof",
                "How sure, and the certificate",
                [*proof_sections(explanation.best)],
            )
        )
    lines = first.lines if hasattr(first, "lines") else ()
    worth = list(_worth(explanation))
    return Told(explanation.title, lines, groups, near, worth, explanation.fits)


def _of_simulation(told: Simulation) -> Told:
    first, *others = simulation_sections(told)
    groups: list[Group] = [("simulated", "The simulation in full", others)]
    histogram = {
        "samples": told.samples,
        "edges": [rounded(edge) for edge in told.histogram.edges],
        "counts": told.histogram.counts,
        "undisturbedS": rounded(told.schedule_s),
        "medianS": rounded(told.step_s.median),
        "p99S": rounded(told.step_s.p99),
    }
    lines = first.lines if isinstance(first, Lines) else ()
    return Told(told.title, lines, groups, histogram=histogram)


def _worth(explanation: Explanation) -> Iterator[dict[str, Any]]:
    """Yield the changes that were solved again, with what each of them gains."""
    plan = explanation.plan
    if plan is None:
        return
    kinds: tuple[tuple[str, tuple[Change, ...]], ...] = (
        ("without it", explanation.binding),
        ("left open", explanation.helps),
        ("a little more", explanation.marginal_values),
    )
    for kind, changes in kinds:
        for change in changes:
            rate = change.tokens_per_s_per_gpu
            gain = rate / plan.tokens_per_s_per_gpu - 1 if rate else None
            yield {
                "change": change.change,
                "kind": kind,
                "stepS": change.step_s,
                "gain": gain,
            }


def _comparison_lines(comparison: Comparison) -> Iterator[str]:
    fitting = [
        (compared.name, compared.plan) for compared in comparison.plans if compared.plan
    ]
    if not fitting:
        yield "None of the plans fits."
    for rank, (name, plan) in enumerate(fitting[:2]):
        if rank == 0:
            yield f"{name} is {FASTEST_OF_THESE}: {seconds_text(plan.step_s)} a step."
        else:
            loss = plan.step_s / fitting[0][1].step_s - 1
            yield f"Next is {name}, {loss:.1%} slower."
    for one in comparison.plans:
        if one.plan is None:
            yield f"{one.name} does not fit: {'; '.join(map(str, one.broken_rules))}"


def _near(near: KnownPlan) -> dict[str, Any]:
    priced = near.priced
    return {
        "plan": priced.plan.brief,
        "pins": pins_of_answer(priced.plan.model_dump(mode="json")),
        "why": near.why,
        "isFirst": near.is_first,
        "stepS": rounded(priced.step_s),
        "risk": rounded(1 - priced.fit_probability),
    }


MOST_DRAWN = 8
"""Most plans of a comparison that are drawn."""


def priced_plans(answer: Solved) -> list[tuple[str, PricedPlan]]:
    """Return the plans of an answer that are drawn, each with its name."""
    if isinstance(answer, Outcome):
        # Without a proof it is no more than a plan.
        name = RECOMMENDED if answer.certificate else "the plan"
        return [] if answer.best is None else [(name, answer.best)]
    if isinstance(answer, Comparison):
        plans = [(one.name, one.plan) for one in answer.plans if one.plan is not None]
        return plans[:MOST_DRAWN]
    asked, best = answer.plan, answer.best.best if answer.best else None
    plans = [] if best is None else [(RECOMMENDED, best)]
    if asked is not None and (best is None or asked.plan != best.plan):
        plans.insert(0, ("the plan asked about", asked))
    return plans


ServingAnswer = ServingOutcome | ServingExplanation


def serving_told(answer: ServingAnswer) -> Told:
    """Return the page's sections for an answer about serving."""
    if isinstance(answer, ServingExplanation):
        first, *others = explanation_sections(answer)
        group = ("why", "The explanation in full", others)
    else:
        first, *others = serving_sections(answer)
        group = ("whole", "The answer in full", others)
    outcome = outcome_of(answer)
    lines = first.lines if isinstance(first, Lines) else ()
    # The answer comes first; the size of the model stands in no page.
    lines = tuple(line for line in lines if line not in size_lines(outcome.model))
    has_plan = outcome.best is not None
    return Told(answer.title, lines, [group], has_plan=has_plan)


def outcome_of(answer: ServingAnswer) -> ServingOutcome:
    """Return the outcome whose plan is drawn."""
    return answer.outcome if isinstance(answer, ServingExplanation) else answer


def serving_plan_data(priced: PricedServing, gpu: Gpu | None = None) -> dict[str, Any]:
    """Return all that the page draws of a plan of serving, on this GPU if known."""
    plan = priced.plan
    known = gpu and {"gpu": gpu.name, "capacity": rounded(gpu.memory_gib)}
    told = [{**(known or {}), "layers": layers} for layers in plan.layers]
    return {
        "id": 0,
        "name": "the plan",
        "note": "",
        "words": [str(plan)],
        "facts": [
            ("First token", seconds_text(priced.ttft_s)),
            ("A token", seconds_text(priced.tpot_s)),
            ("Tokens/s", f"{priced.tokens_per_s:,.0f}"),
            ("Requests/s", few_digits(priced.requests_per_s)),
            ("Fullest GPU", f"{priced.peak_gib:.2f} GiB"),
            ("Fits with probability", probability_text(priced.fit_probability)),
        ],
        "launch": None,
        "times": [
            _time("ttft", "The first token", priced.ttft_s, priced.ttft_parts),
            _time("tpot", "Every further token", priced.tpot_s, priced.tpot_parts),
        ],
        "memory": memory_data(priced.stages, told),
    }


CAPTIONS = {
    "ttft": "The prefill of one prompt, alone.",
    "tpot": "A token of every request in flight; requests are not prefilled meanwhile.",
}


def _time(id_: str, title: str, whole_s: float, parts: dict[str, float]) -> Any:
    shown = [(name, rounded(s)) for name, s in parts.items() if s > 1e-9 * whole_s]
    return {
        "id": id_,
        "title": title,
        "label": f"{title} by part",
        "caption": CAPTIONS[id_],
        "parts": shown,
        "wholeS": rounded(whole_s),
        "whole": "in all",
    }


FILTERS = ("tp", "pp", "ep", "zero")
"""Fields by which dots can be chosen."""


def map_data(lattice: LatticeMap) -> dict[str, Any]:
    """Return the data of the chart of a map.

    A dot is a row: state, step time, whether that is exact, memory, plans,
    techniques, and the values of `fields`. Fields that all dots share stand once.
    """
    names = list(lattice.dots[0].fields) if lattice.dots else []
    values = {name: [dot.fields[name] for dot in lattice.dots] for name in names}
    fields = [name for name in names if len(set(values[name])) > 1]
    common = {name: values[name][0] for name in names if name not in fields}
    dots = sorted(lattice.dots, key=lambda dot: (ORDER.index(dot.state), dot.step_s))
    return {
        "told": list(_map_lines(lattice)),
        "names": names,
        "fields": fields,
        "common": common,
        "filters": [name for name in FILTERS if name in fields],
        "usable": rounded(lattice.usable_gib),
        "dots": [_dot_row(dot, fields) for dot in dots],
        "refusals": [_map_refusal(refusal) for refusal in lattice.refusals],
    }


ORDER = ("slower", "memory", "near", "best")
"""States in the order in which their dots are drawn, the last on top."""


def _dot_row(dot: Dot, fields: list[str]) -> list[Any]:
    seen = (rounded(dot.step_s), dot.is_exact, rounded(dot.memory_gib))
    of_dot = (dot.state, *seen, dot.skeletons, dot.techniques)
    return [*of_dot, *(dot.fields[name] for name in fields)]


def _map_refusal(refusal: Refusal) -> dict[str, Any]:
    return {
        "rule": refusal.rule,
        "sentence": refusal.sentence,
        "count": refusal.count,
        "examples": [dict(fields) for fields in refusal.examples],
    }


def _map_lines(lattice: LatticeMap) -> Iterator[str]:
    if lattice.dots:
        yield from _dot_lines(lattice)
    else:
        yield "No plan is legal: rules refuse all degrees."
    if lattice.refusals:
        yield (
            "Grey dots are degrees that rules refuse before anything is priced, each "
            "at the first rule that it breaks; the numbers count all."
        )


def _dot_lines(lattice: LatticeMap) -> Iterator[str]:
    dots, skeletons = len(lattice.dots), lattice.skeletons
    if lattice.shared:
        names = ", ".join(lattice.shared)
        yield (
            f"{dots:,} dots stand for {skeletons:,} legal plans on all their "
            f"meshes: those with the same {names} share a dot."
        )
    else:
        meshes = f", {skeletons:,} with all their meshes" * (skeletons > dots)
        each = f"Each of the {dots:,} dots is a legal plan{meshes}"
        yield f"{each}; its layers are split as is best."
    yield (
        "A dot stands at a lower bound on step time: no plan of it that fits is "
        "faster. The recommended plan stands at its exact time."
    )
    yield (
        "Memory is that of the fullest GPU, in the plan that has this bound. "
        "Where none fits, it is the least that any of them needs which frees the most "
        "with the smallest micro-batch, and the bound leaves memory aside."
    )
    if lattice.is_of_parts:
        yield "It is of the parts as the recommended plan uses them."
    if lattice.has_open_rules:
        yield "Limits on links and rules on splits of layers may refuse what fits here."


CHARTS = (
    *("figure", "memory", "waterfall", "timeline", "playback", "cluster", "mesh"),
    *("near", "worth", "histogram", "map", "answer"),
)
"""Scripts that draw an answer, in the order in which a page runs them."""

MOST_SPANS = 4_000
"""Most tasks that the timelines of a page draw, of all its plans together."""


def answer_page(
    told: Told, plans: Sequence[DrawnPlan], lattice: LatticeMap | None = None
) -> str:
    """Return the page of an answer: its text, its plans, and the map of all plans."""
    data = answer_data(told, plans)
    if lattice is not None:
        data["map"] = map_data(lattice)
    return page_of(data)


def page_of(data: dict[str, Any], charts: Sequence[str] = CHARTS) -> str:
    """Return the page that draws some data by scripts."""
    return filled_page(
        file_text("answer.html"),
        data["title"],
        to_json(data, inf_nan_mode="null").decode(),
        [file_text(f"{name}.js") for name in (*charts, "page")],
    )


def answer_data(told: Told, plans: Sequence[DrawnPlan]) -> dict[str, Any]:
    """Return the data that the scripts of the page draw."""
    each = MOST_SPANS // max(len(plans), 1)
    drawn = [plan_data(plan, i, each) for i, plan in enumerate(plans)]
    return told_data(told, drawn)


def told_data(told: Told, drawn: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the data of an answer's sections and of its plans."""
    return {
        "title": told.title,
        "verdict": [line.strip() for line in told.verdict],
        "isComparison": told.is_comparison,
        "plans": drawn,
        "hasPlan": told.has_plan,
        "risk": told.risk,
        "near": told.near,
        "worth": told.worth,
        "histogram": told.histogram,
        "sections": [
            {"id": id_, "title": title, "sections": list(map(_section_data, sections))}
            for id_, title, sections in told.groups
            if sections
        ],
    }


def _section_data(section: Section) -> dict[str, Any]:
    if isinstance(section, Table):
        table = {"heading": section.heading, "rows": section.rows}
        return {"title": section.title, **table}
    return {"title": section.title, "lines": section.lines}


NOTEBOOK_CHARTS = ("figure", "memory", "waterfall", "worth", "histogram", "answer")
"""Scripts that draw an answer in a notebook, in the order in which they run."""

TEXT = '<pre style="overflow: auto; line-height: 1.3">{}</pre>'

FRAME = (
    '<iframe title="{}" srcdoc="{}" '
    'style="width: 100%; height: 0; max-height: 1000px; border: 0"></iframe>'
)
"""Its script makes it as high as the page, which scrolls where that is higher."""


def notebook_html(answer: Result) -> str:
    """Return an answer as notebooks show it."""
    return _framed(screen_text(answer), _answer_alone(answer))


def sections_html(sections: Sequence[Section]) -> str:
    """Return sections as notebooks show them."""
    text = sections_as_text(list(sections), COLUMNS)
    return _framed(text, told_data(_whole_told(sections), ()))


def _framed(text: str, data: dict[str, Any]) -> str:
    page = page_of(data, NOTEBOOK_CHARTS)
    text = TEXT.format(in_html(printable_lines(text)))
    return f"<div>{text}{FRAME.format(in_html(data['title']), in_html(page))}</div>"


def _answer_alone(answer: Result) -> dict[str, Any]:
    """Return the page's data for an answer alone."""
    if isinstance(answer, ServingOutcome | ServingExplanation):
        best = outcome_of(answer).best
        plans = [] if best is None else [serving_plan_data(best)]
        return told_data(serving_told(answer), plans)
    if isinstance(answer, Simulation):
        return told_data(told_of(answer), ())
    if isinstance(answer, Outcome | Explanation | Comparison):
        drawn = [priced_data(*named) for named in priced_plans(answer)]
        return told_data(told_of(answer), drawn)
    return told_data(_whole_told(whole_sections(answer)), ())


def _whole_told(sections: Sequence[Section]) -> Told:
    """Return sections as a page tells them: the lines of the first on top."""
    first, *others = sections
    told, rest = (first.lines, others) if isinstance(first, Lines) else ((), sections)
    return Told(first.title, told, [("whole", "The answer in full", rest)])
