"""What the limits of frameworks cost: `python -m benchmarks.limits`.

Every bundled spec of training is solved under every framework that has limits, and
again without each limit alone and without all of them, at the framework's own kernels
and memory. Solves are proven, with the efficiencies that commands use by default.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

import meshwright as mw
from meshwright.catalog import names
from meshwright.frameworks.base.registry import limits_of
from meshwright.results.outcome_parts import LiftedLimit
from meshwright.spec.spec import framework_names

HEADINGS = ("limit", "specs", "it costs", "mean", "largest", "spec of the largest")


@dataclass
class Costs:
    """What one limit of one framework costs on the specs that have a plan under it."""

    shares: dict[str, float] = field(default_factory=dict)
    """By spec: by which share the step is longer."""
    first_plans: int = 0
    """Specs that have a plan only without the limit."""

    def add(self, spec: str, lifted_limit: LiftedLimit) -> None:
        """Add what the limit costs on a spec."""
        if lifted_limit.status not in ("optimal", "infeasible"):
            raise SystemExit(
                f"{spec}: {lifted_limit.limit}: {lifted_limit.status}, not proven"
            )
        if lifted_limit.costs is not None:
            self.shares[spec] = lifted_limit.costs
        self.first_plans += lifted_limit.gains and lifted_limit.costs is None

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the cells of a row: counts, mean, the largest and its spec."""
        costly = sum(share > 0 for share in self.shares.values())
        found = f"{costly}" + (f" + {self.first_plans}" if self.first_plans else "")
        if not costly:
            return f"{len(self.shares)}", found, "-", "-", ""
        worst = max(self.shares, key=lambda name: self.shares[name])
        mean = sum(self.shares.values()) / len(self.shares)
        largest = f"{self.shares[worst]:.1%}"
        return f"{len(self.shares)}", found, f"{mean:.2%}", largest, worst


def main() -> None:
    """Solve and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--framework", help="one framework alone")
    given = options.parse_args()
    console = Console(width=120)
    for name in framework_names():
        if given.framework in (None, name):
            costs = costs_under(name)
            if costs:
                console.print(table_of(name, costs))
    console.print(
        "specs: those that the limit concerns, with a plan under the framework; it "
        "costs: how many of them it makes slower, + how many more have a plan only "
        "without it; mean: over those with a plan."
    )


def costs_under(framework: str) -> dict[str, Costs]:
    """Return what each limit of a framework costs, by its name; `all` comes last."""
    costs: dict[str, Costs] = defaultdict(Costs)
    for name in specs():
        spec = mw.load(name, mw.Spec).model_copy(update={"framework": framework})
        if not limits_of(spec):
            return {}
        print(f"{framework}: {name}", file=sys.stderr)
        found = mw.solve(spec, by_kind=False, framework_limits=True).framework_limits
        assert found is not None
        for limit in found.limits:
            costs[limit.limit].add(name, limit)
        costs["all"].add(name, found.all_lifted)
    return {**costs, "all": costs.pop("all")}


def specs() -> list[str]:
    """Return the names of the bundled specs of training."""
    return [name for name in names("specs") if isinstance(mw.load(name), mw.Spec)]


def table_of(framework: str, costs: dict[str, Costs]) -> Table:
    """Return a table of what limits cost, the costliest on average first."""
    table = Table(title=f"What the limits of {framework} cost, each lifted alone")
    for heading in HEADINGS:
        is_text = heading.startswith(("limit", "spec of"))
        table.add_column(heading, justify="left" if is_text else "right")
    together = costs.pop("all")
    for limit, one in sorted(costs.items(), key=lambda item: _order(item[1])):
        table.add_row(limit, *one.cells)
    table.add_section()
    table.add_row("all of them together", *together.cells)
    return table


def _order(costs: Costs) -> tuple[float, int]:
    return -sum(costs.shares.values()), -costs.first_plans


if __name__ == "__main__":
    main()
