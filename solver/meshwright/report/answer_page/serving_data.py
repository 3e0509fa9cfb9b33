"""What the page tells and draws of an answer about serving."""

from __future__ import annotations

from typing import Any

from meshwright.report.answer_page.answers import Told
from meshwright.report.answer_page.plan_data import memory_data, rounded
from meshwright.report.safety import probability_text
from meshwright.report.serving import serving_sections
from meshwright.report.serving_explain import explanation_sections
from meshwright.report.solve import size_lines
from meshwright.report.tables import Lines, seconds_text
from meshwright.results.serving import PricedServing, ServingOutcome
from meshwright.results.serving_explanation import ServingExplanation
from meshwright.spec.gpu import Gpu

ServingAnswer = ServingOutcome | ServingExplanation


def serving_told(answer: ServingAnswer) -> Told:
    """Return what the page tells of an answer about serving."""
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


def serving_plan_data(priced: PricedServing, gpu: Gpu) -> dict[str, Any]:
    """Return all that the page draws of a plan of serving."""
    plan = priced.plan
    told = [
        {"gpu": gpu.name, "layers": layers, "capacity": rounded(gpu.memory_gib)}
        for layers in plan.layers
    ]
    return {
        "id": 0,
        "name": "the plan",
        "note": "",
        "words": [str(plan)],
        "facts": [
            ("First token", seconds_text(priced.ttft_s)),
            ("A token", seconds_text(priced.tpot_s)),
            ("Tokens/s", f"{priced.tokens_per_s:,.0f}"),
            ("Requests/s", f"{priced.requests_per_s:,.3g}"),
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
