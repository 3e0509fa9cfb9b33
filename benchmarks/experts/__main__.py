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
        configuration
        for configuration in configurations()
        if not given.ids or any(part in configuration.id for part in given.ids)
    ]
    if not chosen:
        options.error(f"no id has {' or '.join(given.ids)} in it")
    ran = everything_run()
    told = [judge(one, profile=without(one, ran)) for one in chosen]
    if given.json:
        print(json.dumps([one.model_dump() for one in told], indent=1))
        return
    console = Console(width=190)
    console.print(table(told))
    console.print(recommendations(told))
    console.print("\n".join(refusals(told)), markup=False, soft_wrap=True)
    console.print("\n".join(summary(told)), markup=False, soft_wrap=True)


def without(configuration: Configuration, ran: list[Ran]) -> Profile:
    """Return the bundled profile as if the source of a configuration were unknown.

    Of published plans it knows those of other sources.
    """
    source = configuration.source.get("repo") or configuration.from_
    changed = {"run_before": what_was_run(ran, source), "unseen": source}
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
    for one in told:
        faster = {None: "", True: "faster", False: "slower"}[one.beats_optimum]
        result.add_row(
            one.id,
            "" if one.gpus is None else f"{one.gpus:,}",
            one.runs_on,
            one.plan,
            "yes" if one.is_legal else short(one.refused_by),
            _fit(one),
            *map(_seconds, (one.step_s, one.measured_s)),
            "" if one.error is None else f"{one.error:+.1%}",
            _seconds(one.optimum_s),
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
    for one in told:
        if one.recommended_s is None:
            continue
        result.add_row(
            one.id,
            _joined(one.techniques),
            "the same" if one.gain == 0 else one.recommended,
            _joined(one.recommended_techniques),
            f"{len(one.beyond)} / {len(one.recommended_beyond)}",
            *map(_seconds, (one.step_s, one.recommended_s)),
            f"{one.gain or 0.0:.1%}",
            _decision(one),
        )
    return result


def _decision(verdict: Verdict) -> str:
    if verdict.decision_gain is None:
        return verdict.decision
    return f"{verdict.decision} {verdict.decision_gain:.0%}"


def _joined(techniques: tuple[str, ...]) -> str:
    return " + ".join(techniques) or "none"


def _fit(verdict: Verdict) -> str:
    if verdict.over_gib is not None:
        return f"{verdict.over_gib:.1f} GiB over"
    return "" if verdict.fit_probability is None else f"{verdict.fit_probability:.2f}"


def short(refused_by: str) -> str:
    """Return the rule, or the field, that refuses a plan."""
    return refused_by.partition(": ")[0]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def refusals(told: Iterable[Verdict]) -> Iterator[str]:
    """Yield a line for each configuration that is refused or does not fit."""
    named = exceptions()
    for one in told:
        if one.fits:
            continue
        known = named.get(one.id)
        why = f" ({known.kind}: {known.reason})" if known else ""
        yield f"{one.id}: {one.refused_by or _fit(one)}{why}"


def summary(told: list[Verdict]) -> Iterator[str]:
    """Yield counts and medians."""
    legal, fit = sum(one.is_legal for one in told), sum(one.fits for one in told)
    safe = sum((one.fit_probability or 0.0) >= 1 - DEFAULT_OOM_RISK for one in told)
    at_default = f"{safe} with probability {1 - DEFAULT_OOM_RISK:g} or more"
    yield f"legal: {legal} of {len(told)}; fit: {fit}, {at_default}"
    timed = [one for one in told if one.error is not None]
    for name, has_experts in (("dense", False), ("experts", True)):
        errors = [one.error or 0.0 for one in timed if one.has_experts == has_experts]
        if errors:
            off = statistics.median(map(abs, errors))
            yield (
                f"{name}: {len(errors)} measured, median {off:.1%} off "
                f"({statistics.median(errors):+.1%})"
            )
    judged = [one for one in told if one.beats_optimum is not None]
    faster = sum(bool(one.beats_optimum) for one in judged)
    yield from _recommended(told)
    yield f"measured faster than the proven optimum: {faster} of {len(judged)}"


def _recommended(told: list[Verdict]) -> Iterator[str]:
    """Yield how the recommended plans compare with those of the teams."""
    both = [one for one in told if one.gain is not None]
    if not both:
        return
    gains = sorted(one.gain or 0.0 for one in both)
    simpler = sum(bool(one.is_simpler) for one in both)
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
    yield _differing(both)
    causes = Counter(one.decision for one in both if one.decision)
    yield "what gains most of these when it alone is left open: " + ", ".join(
        f"{name} {count}" for name, count in causes.most_common()
    )


def _differing(told: list[Verdict]) -> str:
    """Return how many plans leave a technique of theirs out, or add one."""
    pairs = [({*one.techniques}, {*one.recommended_techniques}) for one in told]
    left_out = Counter(name for theirs, ours in pairs for name in theirs - ours)
    added = Counter(name for theirs, ours in pairs for name in ours - theirs)
    counts = (
        f"{name} {left_out[name]} / {added[name]}"
        for name, _ in (left_out + added).most_common()
    )
    return "techniques of theirs left out / others added: " + ", ".join(counts)


def _familiar(told: list[Verdict]) -> Iterator[str]:
    """Yield how many plans are beyond what other sources ran, and what they gain."""
    for name, has_experts in (("dense", False), ("experts", True)):
        part = [one for one in told if one.has_experts == has_experts]
        if not part:
            continue
        ours, theirs = (
            sum(bool(beyond) for beyond in found)
            for found in zip(
                *((one.recommended_beyond, one.beyond) for one in part), strict=True
            )
        )
        same, alike = (
            sum(
                {*one.techniques} - aside == {*one.recommended_techniques} - aside
                for one in part
            )
            for aside in (set[str](), {FIELD["recompute"].technique})
        )
        fastest = statistics.median(one.fastest_gain or 0.0 for one in part)
        doubted = statistics.median(one.doubted_gain or 0.0 for one in part)
        mean = statistics.median(one.gain or 0.0 for one in part)
        yield (
            f"{name}: beyond what other sources ran: {ours} of {len(part)} recommended "
            f"plans, {theirs} of theirs; with their techniques: {same}, recomputation "
            f"aside {alike}; median gain {mean:+.1%}, with doubts {doubted:+.1%}, of "
            f"the fastest {fastest:+.1%}"
        )
    measured = sorted(
        one.measured_s / one.recommended_s - 1
        for one in told
        if one.measured_s and one.recommended_s
    )
    if measured:
        median, p90 = statistics.median(measured), measured[len(measured) * 9 // 10]
        yield f"gain over {len(measured)} measured steps: {median:.1%}, p90 {p90:.1%}"


if __name__ == "__main__":
    main()
