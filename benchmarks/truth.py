"""How true predictions are: the board of docs/accuracy.md.

`python -m benchmarks.truth` prices all runs in benchmarks/runs and writes the tables of
docs/accuracy.md, and the figures that the short form compares. Runs that the fits have
seen are judged by fits that have not seen their source (leave one source out), and by
spreads of memory of all other sources; vTrain's single-node runs are fitted on one
depth of model and judged on the other. Runs in runs/unfitted are in no fit. Takes some
minutes of one core.

`--check` prices all runs at the profile that ships, and fails where a figure is worse
than the recorded one by more than its noise. Takes a minute.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import yaml
from joblib import Parallel, delayed

from benchmarks.bands import by_kind, errors_of, held
from benchmarks.fit_memory import published_spreads
from benchmarks.runs_of import (
    SINGLE_NODE,
    STRONG,
    TAKEN_FROM,
    UNFITTED,
    Priceable,
    all_runs,
    timed,
)
from meshwright import DEFAULT_PROFILE
from meshwright.cost.profile import Profile, load_profile
from meshwright.evidence.fit import Fit, errors_without
from meshwright.evidence.price import Priced
from meshwright.evidence.score import predicted_gib, score
from meshwright.evidence.timed_runs import TimedRuns
from meshwright.plans.columns import Bools, Floats, Ints

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "accuracy.md"
FIGURES = Path(__file__).with_suffix(".yaml")

LIKELY = 0.5
"""Stated probability of fitting from which on a plan counts as accepted."""


@dataclass(frozen=True)
class Judged:
    """A priced run with what a profile that has not seen its source says of it."""

    one: Priced
    step_s: float
    fit_probability: float

    @property
    def is_timed(self) -> bool:
        """Return whether the run has a step time that nothing contradicts."""
        return bool(self.one.run.step_s) and not self.one.run.is_contradictory

    @property
    def time_error(self) -> float:
        """Return ln(predicted / measured) of the step time."""
        return float(np.log(self.step_s / (self.one.run.step_s or np.nan)))

    @property
    def memory_error(self) -> float | None:
        """Return ln(predicted / measured) of the peak, None without one."""
        peak = self.one.run.measured.peak_memory_gb
        if peak is None or self.one.run.measured.fits is False:
            return None
        return float(np.log(predicted_gib(self.one) / peak))

    @property
    def ran(self) -> bool | None:
        """Return whether the run ran, None where that is not known."""
        fits = self.one.run.measured.fits
        return True if fits is None and self.one.run.step_s else fits


@dataclass(frozen=True)
class Board:
    """What is known of some runs."""

    name: str
    rows: int
    """Published runs, those that cannot be priced included."""
    judged: list[Judged]

    @property
    def time_errors(self) -> Floats:
        """Return ln(predicted / measured) of step times."""
        return np.array([one.time_error for one in self.judged if one.is_timed])

    @property
    def memory_errors(self) -> Floats:
        """Return ln(predicted / measured) of peaks."""
        errors = (one.memory_error for one in self.judged)
        return np.array([error for error in errors if error is not None])

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a line of the table."""
        ran = [one for one in self.judged if one.ran]
        failed = [one for one in self.judged if one.ran is False]
        refused = sum(one.fit_probability < LIKELY for one in ran)
        accepted = sum(one.fit_probability >= LIKELY for one in failed)
        return (
            self.name,
            f"{len(self.judged)}/{self.rows}",
            *_errors(self.time_errors),
            self._ranking(),
            *_errors(self.memory_errors),
            f"{refused}/{len(ran)}" if ran else "",
            f"{accepted}/{len(failed)}" if failed else "",
        )

    def figures(self) -> dict[str, tuple[float, float]]:
        """Return figures that are better when small, each with its noise."""
        ran = np.array([one.fit_probability < LIKELY for one in self.judged if one.ran])
        found: dict[str, tuple[float, float]] = {
            "unpriced": (1 - len(self.judged) / self.rows, 0.005)
        }
        known = {"time": self.time_errors, "memory": self.memory_errors}
        for name, errors in known.items():
            if len(errors):
                size = np.abs(errors)
                found[f"{name} median"] = _with_noise(size, np.median)
                found[f"{name} p90"] = _with_noise(size, partial(np.quantile, q=0.9))
        if len(ran):
            found["refused"] = _with_noise(ran.astype(float), np.mean)
        return found

    def _ranking(self) -> str:
        sound = [replace(j.one, step_s=j.step_s) for j in self.judged if j.is_timed]
        found = score(sound).ranking if sound else None
        if found is None:
            return ""
        return f"{found.kendall_tau_mean:.2f}/{found.regret_mean:.3f}"


def _errors(errors: Floats) -> tuple[str, ...]:
    """Return the number of errors, their median and 90th percentile, and the bias."""
    if not len(errors):
        return ("", "", "")
    size, bias = np.abs(errors), np.expm1(np.median(errors))
    shares = f"{np.median(size):.1%}/{np.quantile(size, 0.9):.1%}"
    return (str(len(errors)), shares, f"{bias:+.1%}")


def _with_noise(
    values: Floats, statistic: Callable[[Floats], np.floating]
) -> tuple[float, float]:
    """Return a statistic of values and its standard error, by the bootstrap."""
    rng = np.random.default_rng(0)
    drawn = [statistic(rng.choice(values, len(values))) for _ in range(100)]
    return float(statistic(values)), float(np.std(drawn))


def main() -> int:
    """Judge, write or check; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    told = "compare with the recorded figures, at the profile that ships"
    parser.add_argument("--check", action="store_true", help=told)
    is_check = parser.parse_args().check
    shipped = shipped_runs()
    if is_check:
        return check(figures_of(shipped))
    cases = TimedRuns(timed(shipped["seen"].priced))
    publish(shipped, unseen_errors(Fit(cases, Profile())))
    return 0


Figures = dict[str, dict[str, tuple[float, float]]]


def publish(shipped: dict[str, Priceable], errors: Floats) -> None:
    """Write the tables and the figures, given runs at the profile that ships.

    `errors` are those of the timed runs of the fit, under fits without their source.
    """
    seen, unseen, now = shipped["seen"], shipped["new"], figures_of(shipped)
    of_seen, of_new = judged_unseen(seen, errors), as_shipped(unseen.priced)
    _write("seen", _markdown(HEADING, (b.cells() for b in boards(seen, of_seen))))
    _write("new", _markdown(HEADING, (b.cells() for b in boards(unseen, of_new))))
    _write("bands", _markdown(OF_BANDS, bands([*of_seen, *of_new])))
    _write("fits", _markdown(OF_FITS, fits(of_new)))
    recorded = {
        name: {key: [round(x, 5) for x in pair] for key, pair in figures.items()}
        for name, figures in now.items()
    }
    FIGURES.write_text(yaml.safe_dump(recorded, sort_keys=False), encoding="utf-8")
    print(f"wrote {DOCUMENT.relative_to(ROOT)} and {FIGURES.relative_to(ROOT)}")


def shipped_runs() -> dict[str, Priceable]:
    """Return all runs at the profile that ships: those of the fit, and new ones."""
    profile = load_profile(DEFAULT_PROFILE)
    folders = {"seen": STRONG, "new": UNFITTED}
    return {name: all_runs(folder, profile) for name, folder in folders.items()}


def figures_of(shipped: dict[str, Priceable]) -> Figures:
    """Return the figures of all runs at the profile that ships."""
    return {
        name: _whole(name, runs, as_shipped(runs.priced)).figures()
        for name, runs in shipped.items()
    }


def check(now: Figures) -> int:
    """Print the figures beside the recorded ones; return 1 where one has fallen."""
    recorded = yaml.safe_load(FIGURES.read_text(encoding="utf-8"))
    fallen = 0
    for name, figures in now.items():
        for key, (value, _) in figures.items():
            before, noise = recorded[name].get(key, (value, 0.0))
            has_fallen = value > before + noise
            fallen += has_fallen
            mark = f"  WORSE than its noise, {noise:.1%}" if has_fallen else ""
            print(f"{name} {key}: {before:.1%} -> {value:.1%}{mark}")
    return int(fallen > 0)


def as_shipped(priced: Iterable[Priced]) -> list[Judged]:
    """Return runs that no fit has seen, as the profile at which they are priced."""
    return [Judged(one, one.step_s, one.fit_probability) for one in priced]


def judged_unseen(seen: Priceable, errors_seen: Floats) -> list[Judged]:
    """Return the runs of the fit, each under a fit and spreads without its source.

    `errors_seen` are those of step times.
    """
    errors = dict(zip(_ids(timed(seen.priced)), errors_seen, strict=True))
    sources = sorted({one.run.source_id for one in seen.priced})
    of_others = {
        source: published_spreads(
            [one for one in seen.priced if one.run.source_id != source]
        )
        for source in sources
    }

    def judged(one: Priced) -> Judged:
        error = errors.get(one.run.id)
        step_s = one.step_s if error is None else one.off_by(error).step_s
        others = Profile(memory=of_others[one.run.source_id])
        spread = others.memory_spread(one.spec.framework)
        spec = one.spec.with_memory_spread(spread)
        return Judged(one, step_s, spec.fit_probability(one.needed_gib))

    return [judged(one) for one in seen.priced]


def _ids(priced: Sequence[Priced]) -> list[str]:
    return [one.run.id for one in priced]


def boards(runs: Priceable, judged: list[Judged]) -> list[Board]:
    """Return the boards of each source, of all runs, and of kinds of runs."""
    sources = sorted(runs.rows)
    found = [
        Board(s, runs.rows[s], [j for j in judged if j.one.run.source_id == s])
        for s in sources
    ]
    whole = _whole("**all but vtrain_single**", runs, judged)
    kinds: dict[str, Callable[[Judged], bool]] = {
        "dense": lambda j: j.one.spec.model.moe is None,
        "experts": lambda j: j.one.spec.model.moe is not None,
        "adapters": lambda j: j.one.spec.training.lora is not None,
        "tuned by users": lambda j: j.one.spec.training.tuned == "user",
        "steps under 0.3 s": lambda j: (j.one.run.step_s or 1) < 0.3,
    }
    for number, gave in TAKEN_FROM.items():
        if {*gave} & {*sources}:
            kinds[f"gave no {number}"] = partial(_is_not_of, gave)
    found.append(whole)
    for name, is_kind in kinds.items():
        members = [j for j in whole.judged if is_kind(j)]
        if members:
            found.append(Board(name, len(members), members))
    return found


def _is_not_of(sources: Sequence[str], judged: Judged) -> bool:
    return judged.one.run.source_id not in sources


def _whole(name: str, runs: Priceable, judged: list[Judged]) -> Board:
    """Return the board of all runs but vTrain's single-node ones, which are many."""
    kept = [j for j in judged if j.one.run.source_id != SINGLE_NODE]
    total = sum(count for s, count in runs.rows.items() if s != SINGLE_NODE)
    return Board(name, total, kept)


HEADING = (
    "source", "priced/runs", "times", "median/p90", "bias", "tau/regret",
    "peaks", "median/p90", "bias", "refused/ran", "accepted/failed",
)  # fmt: skip


OF_BANDS = ("models", "runs", "sources", "median", "p90", "runs within", "of a source")


def bands(judged: Iterable[Judged]) -> Iterator[tuple[str, ...]]:
    """Yield how far off a new source may find step times, and how often that held."""
    kinds = by_kind((one.one, one.time_error) for one in judged if one.is_timed)
    for found in errors_of(kinds):
        shares = found.median, found.p90, *held(kinds[found.has_experts])
        told = (f"{share:.1%}" for share in shares)
        yield (found.kind, str(found.rows), str(found.sources), *told)


OF_FITS = ("stated to fit", "runs", "ran", "ran out of memory")

STATED = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 1.0)
"""Ends of the ranges of stated probabilities of fitting."""


def fits(judged: Iterable[Judged]) -> Iterator[tuple[str, ...]]:
    """Yield how many of the runs that are stated to fit as likely did."""
    stated: dict[bool | None, list[float]] = defaultdict(list)
    for one in judged:
        stated[one.ran].append(one.fit_probability)
    ran, failed = (np.histogram(stated[did], STATED)[0] for did in (True, False))
    columns = zip(pairwise(STATED), ran + failed, ran, failed, strict=True)
    for (low, high), *counts in columns:
        yield (f"{low:.0%} to {high:.0%}", *map(str, counts))


def _write(name: str, table: str) -> None:
    """Write a table into the document, between its marks."""
    text = DOCUMENT.read_text(encoding="utf-8")
    start = f"<!-- {name} -->\n"
    before, found, rest = text.partition(start)
    _, end, after = rest.partition("<!-- end -->")
    if not found or not end:
        raise ValueError(f"{DOCUMENT}: expected {start.strip()} and <!-- end -->")
    written = f"{before}{start}\n{table}\n\n{end}{after}"
    DOCUMENT.write_text(written, encoding="utf-8")


def _markdown(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = "|---" + "|---:" * (len(heading) - 1) + "|"
    first, *rows = (f"| {' | '.join(cells)} |" for cells in (heading, *lines))
    return "\n".join((first, rule, *rows))


def unseen_errors(fit: Fit) -> Floats:
    """Return the error of every run under a fit that has not seen it."""
    single, errors = _is_single(fit.cases), np.empty(len(fit.cases))
    folds = [publication(fit, s) for s in np.unique(fit.sources[~single])]
    each = (delayed(errors_without)(fit, out) for out in folds)
    for out, found in zip(folds, Parallel(n_jobs=-1)(each), strict=True):
        errors[out] = found
    alone = np.flatnonzero(single)
    within = Fit(fit.cases.take(alone), Profile())
    for depth in _depths(fit.cases):
        errors[depth] = errors_without(within, np.isin(alone, depth))
    return errors


def publication(fit: Fit, source: str) -> Bools:
    """Return the runs of the publication of a source; that of vTrain has two."""
    sources = [SINGLE_NODE, "vtrain"] if source in (SINGLE_NODE, "vtrain") else [source]
    return np.isin(fit.sources, sources)


def _is_single(cases: TimedRuns) -> Bools:
    return np.array([one.run.source_id == SINGLE_NODE for one in cases.runs])


def _depths(cases: TimedRuns) -> list[Ints]:
    """Return the single-node runs of each depth."""
    depths = np.array([one.spec.model.n_layers for one in cases.runs])
    single = _is_single(cases)
    return [np.flatnonzero(single & (depths == d)) for d in np.unique(depths[single])]


if __name__ == "__main__":
    sys.exit(main())
