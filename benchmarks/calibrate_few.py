"""How far a few runs of a source calibrate it, picked at random or as `probe` picks.

`python -m benchmarks.calibrate_few` takes every source in benchmarks/runs with at least
ten timed runs of one framework. The prior is a fit to all other publications. Fifty
times it draws two thirds of the source's runs, calibrates on five of these, picked at
random and by what `meshwright probe` expects them to tell, and judges all other runs of
the source. Of more than forty runs it takes forty, drawn once. Takes five minutes of
one core; `--rows 3` calibrates on three.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from joblib import Parallel, delayed
from rich.console import Console
from rich.table import Table

from benchmarks.fit_memory import published_spreads
from benchmarks.runs_of import STRONG, priced_runs
from benchmarks.truth import publication
from meshwright.calibration.beliefs import code_base
from meshwright.calibration.calibrate import NINE_IN_TEN
from meshwright.calibration.probe import Prior, Quantities, choose
from meshwright.calibration.responses import Response, responses_of
from meshwright.cost.profile import Profile
from meshwright.evidence.fit import Fit, with_factors
from meshwright.evidence.price import Priced
from meshwright.evidence.timed_runs import TimedRuns
from meshwright.plans.columns import Floats
from meshwright.spec.goals import card_gib

LEAST_RUNS, MOST_RUNS, DRAWS, POOL = 10, 40, 50, 2 / 3


@dataclass(frozen=True)
class Site:
    """The runs of one framework of a source, with a profile that has not seen them."""

    name: str
    runs: list[Priced]
    profile: Profile


@dataclass(frozen=True)
class Errors:
    """|ln(predicted / measured)| of runs of a site, over all draws."""

    before: Floats
    at_random: Floats
    by_probe: Floats
    within: float
    """Share of measurements within the stated nine tenths, calibrated at random."""


def predictions(prior: Prior) -> Quantities:
    """Return the step times of all plans as the quantities that count."""
    count = len(prior.responses)
    return Quantities(np.eye(count, 2 * count), np.ones(count))


def sites(priced: list[Priced]) -> Iterator[Site]:
    """Yield the sites with enough runs."""
    fit, rng = Fit(TimedRuns(priced), Profile()), np.random.default_rng(0)
    keys = sorted({(one.run.source_id, one.spec.framework) for one in priced})
    for source, framework in keys:
        found = [
            one
            for one in priced
            if (one.run.source_id, one.spec.framework) == (source, framework)
        ]
        if len(found) < LEAST_RUNS:
            continue
        kept = rng.permutation(len(found))[:MOST_RUNS]
        out = publication(fit, source)
        others = [one for one, is_out in zip(priced, out, strict=True) if not is_out]
        profile = with_factors(Profile(), fit.factors_without(out))
        profile = profile.model_copy(update={"memory": published_spreads(others)})
        yield Site(f"{source}, {framework}", [found[i] for i in sorted(kept)], profile)


def errors_of(site: Site, rows: int) -> Errors:
    """Return the errors of a site before and after calibration on some rows."""
    responses = responses_of(site.runs, site.profile)
    measured = np.log([one.run.step_s or np.nan for one in site.runs])
    before = np.abs(np.array([one.log_s for one in responses]) - measured)
    rng, found = np.random.default_rng(1), list[tuple[Floats, Floats]]()
    probed: list[Floats] = []
    for _ in range(DRAWS):
        pool = rng.permutation(len(site.runs))[: int(POOL * len(site.runs))]
        found.append(_judged(site, responses, pool[:rows].tolist()))
        picked = _picked(site, responses, sorted(pool.tolist()), rows)
        probed.append(_judged(site, responses, picked)[0])
    errors = np.concatenate([error for error, _ in found])
    spreads = np.concatenate([spread for _, spread in found])
    within = float(np.mean(errors < NINE_IN_TEN * spreads))
    return Errors(before, errors, np.concatenate(probed), within)


def _judged(
    site: Site, responses: tuple[Response, ...], picked: list[int]
) -> tuple[Floats, Floats]:
    """Return errors and spreads of the runs that were not picked."""
    others = [i for i in range(len(site.runs)) if i not in picked]
    order = [*picked, *others]
    found = code_base(
        [site.runs[i] for i in order],
        [responses[i] for i in order],
        len(picked),
        site.profile,
    )
    measured = np.log([site.runs[i].run.step_s or np.nan for i in others])
    errors = np.abs(found.log_steps[len(picked) :] - measured)
    return errors, found.spreads[len(picked) :]


def _picked(
    site: Site, responses: tuple[Response, ...], pool: list[int], rows: int
) -> list[int]:
    """Return the runs of a pool that `probe` expects to tell most."""
    first = site.runs[0].spec
    spread = site.profile.memory_spread(first.framework)
    whole_gib = first.cluster.topology.gpu.memory_gib
    prior = Prior(responses, spread.sigma, spread.bias, card_gib(whole_gib))
    chosen = choose(prior, predictions(prior), pool, rows)
    return [one.index for one in chosen]


def main() -> None:
    """Calibrate, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5, help="Runs to calibrate on.")
    rows = parser.parse_args().rows
    found = list(sites(priced_runs(STRONG)))
    each = (delayed(errors_of)(site, rows) for site in found)
    results = dict(
        zip((site.name for site in found), Parallel(n_jobs=-1)(each), strict=True)
    )
    Console(width=120).print(_table(found, results, rows))


def _table(found: list[Site], results: dict[str, Errors], rows: int) -> Table:
    title = (
        f"Step time, calibrated on {rows} runs: |ln(predicted / measured)| of others"
    )
    table = Table(title=title)
    table.add_column("source, framework")
    for heading in ("runs", "before", "p90", f"{rows} at random", "p90"):
        table.add_column(heading, justify="right")
    for heading in (f"{rows} by probe", "p90", "within 9 in 10"):
        table.add_column(heading, justify="right")
    for site in found:
        table.add_row(site.name, str(len(site.runs)), *_cells(results[site.name]))
    table.add_section()
    runs = sum(len(site.runs) for site in found)
    table.add_row("all of these", str(runs), *_cells(_together([*results.values()])))
    return table


def _cells(errors: Errors) -> Iterator[str]:
    for one in (errors.before, errors.at_random, errors.by_probe):
        yield f"{np.median(one):.1%}"
        yield f"{np.quantile(one, 0.9):.1%}"
    yield f"{errors.within:.0%}"


def _together(results: list[Errors]) -> Errors:
    counts = [len(one.at_random) for one in results]
    return Errors(
        np.concatenate([one.before for one in results]),
        np.concatenate([one.at_random for one in results]),
        np.concatenate([one.by_probe for one in results]),
        float(np.average([one.within for one in results], weights=counts)),
    )


if __name__ == "__main__":
    main()
