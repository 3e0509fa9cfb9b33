"""Published configurations, judged: `python -m benchmarks.experts [ID ...] [--json]`.

Each is solved with the published plan pinned: what the source leaves open is chosen.
Where a step was measured, the same spec is solved with nothing pinned, too. What a
source ran is not known when its plans are judged.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from rich.console import Console
from rich.table import Table

from benchmarks.doubt import Ran, everything_run, what_was_run
from benchmarks.experts.judge import FAR, Verdict, judge
from benchmarks.experts.read import Configuration, configurations, exceptions
from meshwright import DEFAULT_PROFILE
from meshwright.cost.profile import Profile, load_profile
from meshwright.spec.goals import DEFAULT_OOM_RISK
from meshwright.spec.plan_fields import FIELD


def main() -> None:
    """Judge and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("ids", nargs="*", help="parts of ids; default all")
    options.add_argument("--json", action="store_true", help="one JSON list")
    given = options.parse_args()
    chosen = [
        own
        for own in configurations()
        if not given.ids or any(part in own.id for part in given.ids)
    ]
    if not chosen:
        options.error(f"no id has {' or '.join(given.ids)} in it")
    ran = everything_run()
    told = [judge(own, profile=without(own, ran)) for own in chosen]
    if given.json:
        print(json.dumps([own.model_dump() for own in told], indent=1))
        return
    console = Console(width=190)
    console.print(table(told))
    console.print(recommendations(told))
    console.print("\n".join(refusals(told)), markup=False, soft_wrap=True)
    console.print("\n".join(summary(told)), markup=False, soft_wrap=True)


def without(own: Configuration, ran: list[Ran]) -> Profile:
    """Return the bundled profile as if the source of a configuration were unknown.

    No published plan is known to it at all.
    """
    known = what_was_run(ran, own.source.get("repo") or own.from_)
    changed = {"run_before": known, "names_published": False}
    return load_profile(DEFAULT_PROFILE).model_copy(update=changed)


def table(told: Iterable[Verdict]) -> Table:
    """Return a row for each configuration."""
    result = Table(title="Published configurations")
    for name in ("configuration", "GPUs", "runs on", "plan", "legal", "fits"):
        right = name == "GPUs"
        wraps = name in ("plan", "legal")
        justify: Literal["left", "right"] = "right" if right else "left"
        result.add_column(name, justify=justify, overflow="fold", no_wrap=not wraps)
    for name in ("step s", "measured", "error", "optimum", "measured is"):
        result.add_column(name, justify="right")
    for own in told:
        faster = {None: "", True: "faster", False: "slower"}[own.beats_optimum]
        result.add_row(
            own.id,
            "" if own.gpus is None else f"{own.gpus:,}",
            own.runs_on,
            own.plan,
            "yes" if own.is_legal else short(own.refused_by),
            _fit(own),
            *map(_seconds, (own.step_s, own.measured_s)),
            "" if own.error is None else f"{own.error:+.1%}",
            _seconds(own.optimum_s),
            faster,
        )
    return result


def recommendations(told: Iterable[Verdict]) -> Table:
    """Return the published plan beside the recommended one, where it fits."""
    result = Table(title="Published plans, and what Meshwright recommends instead")
    names = ("configuration", "techniques", "recommended", "its techniques")
    for name in names:
        result.add_column(name, overflow="fold")
    for name in ("beyond", "theirs s", "recommended s", "gain", "of it alone"):
        result.add_column(name, justify="right", overflow="fold")
    for own in told:
        if own.recommended_s is None:
            continue
        result.add_row(
            own.id,
            _joined(own.techniques),
            "the same" if own.gain == 0 else own.recommended,
            _joined(own.recommended_techniques),
            f"{len(own.beyond)} / {len(own.recommended_beyond)}",
            *map(_seconds, (own.step_s, own.recommended_s)),
            f"{own.gain or 0.0:.1%}",
            _decision(own),
        )
    return result


def _decision(own: Verdict) -> str:
    if own.decision_gain is None:
        return own.decision
    return f"{own.decision} {own.decision_gain:.0%}"


def _joined(techniques: tuple[str, ...]) -> str:
    return " + ".join(techniques) or "none"


def _fit(own: Verdict) -> str:
    if own.over_gib is not None:
        return f"{own.over_gib:.1f} GiB over"
    return "" if own.fit_probability is None else f"{own.fit_probability:.2f}"


def short(refused_by: str) -> str:
    """Return the rule, or the field, that refuses a plan."""
    return refused_by.partition(": ")[0]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def refusals(told: Iterable[Verdict]) -> Iterator[str]:
    """Yield a line for each configuration that is refused or does not fit."""
    named = exceptions()
    for own in told:
        if own.fits:
            continue
        known = named.get(own.id)
        why = f" ({known.kind}: {known.reason})" if known else ""
        yield f"{own.id}: {own.refused_by or _fit(own)}{why}"


def summary(told: list[Verdict]) -> Iterator[str]:
    """Yield counts and medians."""
    legal, fit = sum(own.is_legal for own in told), sum(own.fits for own in told)
    safe = sum((own.fit_probability or 0.0) >= 1 - DEFAULT_OOM_RISK for own in told)
    at_default = f"{safe} with probability {1 - DEFAULT_OOM_RISK:g} or more"
    yield f"legal: {legal} of {len(told)}; fit: {fit}, {at_default}"
    timed = [own for own in told if own.error is not None]
    for name, has_experts in (("dense", False), ("experts", True)):
        errors = [own.error or 0.0 for own in timed if own.has_experts == has_experts]
        if errors:
            off = statistics.median(map(abs, errors))
            yield (
                f"{name}: {len(errors)} measured, median {off:.1%} off "
                f"({statistics.median(errors):+.1%})"
            )
    judged = [own for own in told if own.beats_optimum is not None]
    faster = sum(bool(own.beats_optimum) for own in judged)
    yield from _recommended(told)
    yield f"measured faster than the proven optimum: {faster} of {len(judged)}"


def _recommended(told: list[Verdict]) -> Iterator[str]:
    """Yield how the recommended plans compare with those of the teams."""
    both = [own for own in told if own.gain is not None]
    if not both:
        return
    gains = sorted(own.gain or 0.0 for own in both)
    simpler = sum(bool(own.is_simpler) for own in both)
    far = sum(gain > FAR for gain in gains)
    p90 = gains[int(0.9 * (len(gains) - 1))]
    yield (
        f"recommended plans that are as simple as theirs, or simpler: {simpler} of "
        f"{len(both)}"
    )
    yield (
        f"claimed gain over theirs: median {statistics.median(gains):.1%}, p90 "
        f"{p90:.1%}; above {FAR:.0%}: {far} of {len(both)}"
    )
    yield from _familiar(both)
    causes = Counter(own.decision for own in both if own.decision)
    yield "what gains most of these when it alone is left open: " + ", ".join(
        f"{name} {count}" for name, count in causes.most_common()
    )


def _familiar(told: list[Verdict]) -> Iterator[str]:
    """Yield how many plans are beyond what other sources ran, and what they gain."""
    for name, has_experts in (("dense", False), ("experts", True)):
        part = [own for own in told if own.has_experts == has_experts]
        if not part:
            continue
        ours, theirs = (
            sum(bool(beyond) for beyond in found)
            for found in zip(
                *((own.recommended_beyond, own.beyond) for own in part), strict=True
            )
        )
        same, alike = (
            sum(
                {*own.techniques} - aside == {*own.recommended_techniques} - aside
                for own in part
            )
            for aside in (set[str](), {FIELD["recompute"].technique})
        )
        fastest = statistics.median(own.fastest_gain or 0.0 for own in part)
        doubted = statistics.median(own.doubted_gain or 0.0 for own in part)
        mean = statistics.median(own.gain or 0.0 for own in part)
        yield (
            f"{name}: beyond what other sources ran: {ours} of {len(part)} recommended "
            f"plans, {theirs} of theirs; with their techniques: {same}, recomputation "
            f"aside {alike}; median gain {mean:+.1%}, with doubts {doubted:+.1%}, of "
            f"the fastest {fastest:+.1%}"
        )
    measured = sorted(
        own.measured_s / own.recommended_s - 1
        for own in told
        if own.measured_s and own.recommended_s
    )
    if measured:
        median, p90 = statistics.median(measured), measured[len(measured) * 9 // 10]
        yield f"gain over {len(measured)} measured steps: {median:.1%}, p90 {p90:.1%}"


if __name__ == "__main__":
    main()
