"""How much explanations look at: what bounds leave in costs only time.

The counts are those of one version, in `tests/data/work_of_explanations.yaml`. `python
-m tests.explanations.test_work_of_explanations` writes today's: less is an improvement
to keep, and more needs a reason.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import meshwright as mw
from meshwright.cost.profile import load_profile
from meshwright.explanations.compare import compare, with_crossovers
from meshwright.explanations.explain import Explainer
from meshwright.explanations.framework_rules import solve_with_limits
from meshwright.loading.plan_text import read_plan
from meshwright.loading.vary import vary
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from tests.helpers.work import changed, counted, write

DATA = "work_of_explanations.yaml"

OPTIONS = Options(tolerance=0.02)

MEASURED = Options(tolerance=0.02, profile=load_profile("measured"))

DENSE = "llama2-13b-8xa100"


def spec(name: str, **pins: object) -> mw.Spec:
    return mw.load(name, mw.Spec, pins=pins)


def of_spec(name: str, options: Options = OPTIONS, **pins: object) -> None:
    Explainer(options).spec(spec(name, **pins))


def of_plan(name: str, plan: str) -> None:
    Explainer(OPTIONS).plan(spec(name), read_plan(plan))


def of_crossovers() -> None:
    """Compare plans where the bandwidth of a link is varied."""
    plans = [(text, read_plan(text)) for text in ("tp=2", "dp=2")]
    link = vary("llama3-8b-2xa100-pcie", "topology.levels[0].gb_s=8:900")
    known = spec("llama3-8b-2xa100-pcie")
    with_crossovers(compare(known, plans, solve), link, plans, solve)


CASES: dict[str, Callable[[], object]] = {
    "a spec": lambda: of_spec(DENSE),
    "a pinned spec": lambda: of_spec(DENSE, MEASURED, tp=4, pp=1, cp=1),
    "no memory": lambda: of_spec("llama3-8b-2x4090-pcie"),
    "a plan": lambda: of_plan(DENSE, "tp=2,pp=2,micro_batch=2,zero=1"),
    "a plan that does not fit": lambda: of_plan(DENSE, "tp=1,pp=1,zero=0"),
    "degrees that clash": lambda: of_plan(DENSE, "tp=4,pp=2,dp=2"),
    "a rule of the framework": lambda: of_plan(DENSE, "pp=4,dp=2,zero=3"),
    "degrees that no framework takes": lambda: of_plan(DENSE, "cp=2,tp=4"),
    "limits": lambda: solve_with_limits(spec(DENSE), OPTIONS),
    "crossovers": of_crossovers,
}


def work(name: str, patch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return how much an explanation looks at."""
    return counted(CASES[name], patch)


@pytest.mark.parametrize("name", CASES)
def test_as_much_is_looked_at_as_it_takes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert changed(DATA, name, work(name, monkeypatch)) == {}


if __name__ == "__main__":
    write(DATA, CASES, work)
