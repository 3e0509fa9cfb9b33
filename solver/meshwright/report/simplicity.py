"""What the simplest plan costs against the fastest one, as lines."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.report.tables import Lines, Section, seconds_text
from meshwright.results.claims import familiarity_claim
from meshwright.results.outcome import Outcome

WORDS = {
    "offload": "no state in host memory",
    "short_context_parallel": "no short sequence split over GPUs",
    "zero3_in_pipeline": "no ZeRO-3 in a pipeline",
    "uneven_stages": "as many layers on every stage",
    "partial_recompute": "every layer recomputed, or none",
    "odd_micro_batch": "a micro-batch that is a power of two",
}
"""What a plan has that is simpler by a criterion."""


def simplicity_sections(outcome: Outcome) -> Iterator[Section]:
    """Yield what the fastest plan is and gains, where the recommended is simpler."""
    told, fastest = outcome.simplicity, outcome.fastest
    if told is None or fastest is None:
        return
    if told.criterion == "beyond_runs":
        why = (
            f"The fastest plan has {familiarity_claim(fastest)}. Where the model holds "
            "there, it gains that much: measure it before you count on it."
        )
    elif told.criterion == "techniques":
        simpler = f"{_named(told.techniques)}, not {_named(told.fastest_techniques)}"
        why = f"It is simpler: {simpler}."
    else:
        why = f"It is simpler: {WORDS[told.criterion]}."
    lines = (
        f"The recommended plan takes {told.loss:.2%} longer than the fastest plan "
        f"({seconds_text(fastest.step_s)}). {why}",
        "The fastest plan (--fastest): " + str(fastest.plan).replace(",", ", "),
    )
    yield Lines("The fastest plan, and why another is recommended", lines)


def _named(techniques: tuple[str, ...]) -> str:
    return " + ".join(techniques) or "data parallelism alone"
