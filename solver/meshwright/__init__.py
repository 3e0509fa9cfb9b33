"""Meshwright picks the fastest parallelism plan that fits, with a proof.

    import meshwright as mw

    spec = mw.load("llama3-8b-2xh100-nvlink")    # or a path, a dict, YAML text
    outcome = mw.solve(spec)                     # mw.explain, mw.compare, mw.search
    outcome.best.plan, outcome.best.step_s       # outcome.to_dict() for JSON

The names of `__all__` are public; modules and folders are not, and move. Importing the
package loads none of them, and no library.

The way through the house, each room importing only those above it:

    reading/      text of others, read within limits, with the line of every value
    spec/         the user's question, as frozen models
    imports/      files of other tools about a cluster, as facts and as topologies
    loading/      from files, presets and imported clusters to a spec
    topology/     the cluster as a NetworkX graph; what groups pay on its links
    plans/        what a plan is, alone and as columns; pipeline schedules
    results/      what Meshwright answers, as data
    frameworks/   what each training framework launches, keeps and fuses
    rules/        the rules that a plan must keep
    cost/         bytes and seconds, pure functions over numpy columns
    check/        one plan re-scored in floats: the specification of what a plan is
    cpsat/        CP-SAT, and orders of the GPUs of a host, on whole numbers alone
    planner/      rows, bounds, one model, a proof: from a spec to the best plan
    economics/    around the step: the training run, jitter and failures, one matmul
    certificates/ files by which others check an answer
    explanations/ why a plan is rejected, what would fix it, at what price
    serving/      the same questions for inference
    exports/      plans as files that start a training framework
    traces/       traces of profilers, beside the modelled step
    report/       results as text, markdown, JSON and pictures
    sweeps/       many specs at once
    evidence/     predictions against measured runs, and fits to them
    calibration/  a user's own runs: switches, efficiencies, and which runs to make
    diagnosis/    why a run is slow or died, by its log, and what to change
    api/          the functions of `import meshwright`
    ui/           the page in the browser, and its server
    agents/       the same as tools, over the Model Context Protocol
    cli/          the commands
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # That of `typing`, which takes longer to import than the rest.

if TYPE_CHECKING:
    from typing import Any

    from meshwright.api.diagnose import diagnose as diagnose
    from meshwright.api.explain import compare as compare
    from meshwright.api.explain import explain as explain
    from meshwright.api.files import export as export
    from meshwright.api.files import html_report as html_report
    from meshwright.api.import_files import ImportedFile as ImportedFile
    from meshwright.api.import_files import import_file as import_file
    from meshwright.api.load import load as load
    from meshwright.api.price import price as price
    from meshwright.api.price import simulate as simulate
    from meshwright.api.search import rent as rent
    from meshwright.api.search import search as search
    from meshwright.api.solve import certificate as certificate
    from meshwright.api.solve import solve as solve
    from meshwright.errors import SpecError as SpecError
    from meshwright.exports.files import Export as Export
    from meshwright.plans.plan import Plan as Plan
    from meshwright.results.comparison import Comparison as Comparison
    from meshwright.results.diagnosis import Diagnosis as Diagnosis
    from meshwright.results.explanation import Explanation as Explanation
    from meshwright.results.outcome import Outcome as Outcome
    from meshwright.results.priced_plan import PricedPlan as PricedPlan
    from meshwright.results.serving import ServingExplanation as ServingExplanation
    from meshwright.results.serving import ServingOutcome as ServingOutcome
    from meshwright.results.simulation import Simulation as Simulation
    from meshwright.results.training_run import RentalAnswer as RentalAnswer
    from meshwright.spec.open_spec import OpenSpec as OpenSpec
    from meshwright.spec.serving import ServingSpec as ServingSpec
    from meshwright.spec.spec import Spec as Spec
    from meshwright.sweeps.summary import SearchResult as SearchResult

__version__ = "0.1.0"

DEFAULT_PROFILE = "measured"
"""The bundled profile that commands use unless told otherwise."""

_ROOMS = {
    "load": "api.load",
    "solve": "api.solve",
    "certificate": "api.solve",
    "explain": "api.explain",
    "diagnose": "api.diagnose",
    "export": "api.files",
    "compare": "api.explain",
    "search": "api.search",
    "rent": "api.search",
    "import_file": "api.import_files",
    "simulate": "api.price",
    "price": "api.price",
    "html_report": "api.files",
    "Spec": "spec.spec",
    "ServingSpec": "spec.serving",
    "OpenSpec": "spec.open_spec",
    "Plan": "plans.plan",
    "PricedPlan": "results.priced_plan",
    "Outcome": "results.outcome",
    "ServingOutcome": "results.serving",
    "Diagnosis": "results.diagnosis",
    "Explanation": "results.explanation",
    "ServingExplanation": "results.serving",
    "Comparison": "results.comparison",
    "Simulation": "results.simulation",
    "SearchResult": "sweeps.summary",
    "RentalAnswer": "results.training_run",
    "ImportedFile": "api.import_files",
    "Export": "exports.files",
    "SpecError": "errors",
}
"""The module that has each public name; it is loaded when the name is first used."""

__all__ = [*_ROOMS, "__version__"]


if not TYPE_CHECKING:  # Names that are not there are errors to type checkers.

    def __getattr__(name: str) -> Any:
        """Return a public name from its module (PEP 562)."""
        if name not in _ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
