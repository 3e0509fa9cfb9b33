"""The files of the page, the choices it offers, and the values of its sliders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from meshwright import catalog
from meshwright.exports import TARGETS
from meshwright.exports.target import target
from meshwright.loading.load import load_cluster
from meshwright.reading.yaml_and_csv import read_yaml
from meshwright.report.pages.answer import CHARTS
from meshwright.report.pages.skeleton import SHARED, file_text, served_page
from meshwright.spec.base import MOST_RISK
from meshwright.spec.goals import SIMPLEST
from meshwright.spec.spec import Spec, framework_names

FILES = Path(__file__).with_name("files")

SCRIPTS = ("state", "controls", "paste", "lattice", "answers", "play")
"""Scripts of this page, which run after those of the charts."""


@cache
def page_files() -> dict[str, tuple[str, str]]:
    """Return the media type and the text of every file by its name."""
    charts = {
        f"{name}.js": (SCRIPT, file_text(f"{name}.js")) for name in (*SHARED, *CHARTS)
    }
    scripts = {
        f"{name}.js": (SCRIPT, file_text(f"{name}.js", FILES)) for name in SCRIPTS
    }
    styles = {
        "page.css": (STYLE, file_text("page.css")),
        "play.css": (STYLE, file_text("play.css", FILES)),
    }
    page = served_page(
        file_text("play.html", FILES),
        "Meshwright",
        json.dumps({"choices": choices(), "plans": [], "verdict": []}),
        [f"files/{name}" for name in (*charts, *scripts)],
        [f"files/{name}" for name in styles],
    )
    return {**charts, **scripts, **styles, "index.html": (PAGE, page)}


FIRST = "llama3-70b-256xh100"
"""The bundled spec with which the page opens."""


@cache
def choices() -> dict[str, Any]:
    """Return the entries of the page's lists."""
    return {
        "first": FIRST,
        "models": catalog.names(catalog.MODELS),
        "clusters": list(_clusters()),
        "gpus": catalog.names(catalog.GPUS),
        "frameworks": framework_names(),
        "exports": _exports(),
        "specs": dict(_specs()),
    }


def _exports() -> dict[str, list[str]]:
    """Return the targets that plans of a framework are written for, the usual first."""
    found: dict[str, list[str]] = {}
    for name in TARGETS:
        found.setdefault(target(name).framework, []).append(name)
    return found


def _clusters() -> Iterator[dict[str, Any]]:
    folders = ("topologies", "topologies/machines")
    for name in sorted(name for kind in folders for name in catalog.names(kind)):
        cluster = load_cluster(name)
        yield {
            "name": name,
            "gpus": cluster.gpus,
            "gpu": cluster.topology.gpu.name,
            "grows": cluster.topology.scale_out is not None,
        }


def _specs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the bundled specs of training by name, as they are written."""
    for name in catalog.names("specs"):
        fields = read_yaml(catalog.locate("specs", name, Path())).data
        if "training" in fields:
            yield name, fields


SCRIPT, STYLE, PAGE = "text/javascript", "text/css", "text/html"

MACHINES = tuple(sorted(n * 2**k for n in (1, 3) for k in range(13)))

MEMORY_GIB = (16, 24, 32, 40, 48, 64, 80, 96, 128, 141, 180, 192, 256, 288)

GB_S = (3.125, 6.25, 12.5, 25, 50, 100, 200, 400, 900)

SEQUENCES = tuple(sorted(n * 2**k for n in (1, 3) for k in range(15)))

TOKENS = tuple(2**k for k in range(8, 21))

RISKS = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)

TOLERANCES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)

MOST_GPUS = 32_768
"""Most GPUs that the slider offers."""


@dataclass(frozen=True)
class Knob:
    """A number of the spec: a slider, and a box to type it."""

    name: str
    label: str
    path: str
    """Where the number stands in the spec."""
    numbers: tuple[float, ...]
    """The places of the slider, as the page shows them."""
    at: int
    """The place of the present number."""
    unit: str = ""
    per: int = 1
    """The divisor that turns a shown number into that of the spec."""

    def to_dict(self) -> dict[str, Any]:
        """Return the slider as the page has it."""
        return asdict(self)


def knobs(spec: Spec) -> list[Knob]:
    """Return the sliders that a spec has."""
    return [
        *_gpus(spec),
        *_memory(spec),
        *_bandwidth(spec),
        _training("batch", "Sequences a step", spec.training.global_batch, SEQUENCES),
        _training("sequence", "Tokens a sequence", spec.training.seq_len, TOKENS),
        *_risk(spec),
        *_tolerance(spec),
    ]


def _knob(
    name: str,
    label: str,
    path: str,
    now: float,
    usual: Iterable[float],
    unit: str = "",
    per: int = 1,
) -> Knob:
    """Return the slider of a number that the spec has as `now`."""
    values = sorted({now, *usual})
    shown = tuple(_shown(value * per) for value in values)
    return Knob(name, label, path, shown, values.index(now), unit, per)


def _shown(number: float) -> float:
    return number if isinstance(number, int) else float(f"{number:.6g}")


def _training(name: str, label: str, now: int, usual: Iterable[int]) -> Knob:
    field = {"batch": "global_batch", "sequence": "seq_len"}[name]
    return _knob(name, label, f"training.{field}", now, usual)


def _gpus(spec: Spec) -> Iterator[Knob]:
    cluster = spec.cluster
    if cluster.parts or cluster.topology.scale_out is None:
        return
    each = max(cluster.gpus // cluster.count, 1)
    usual = [count for count in MACHINES if count * each <= MOST_GPUS]
    yield _knob("gpus", "GPUs", "cluster.count", cluster.count, usual, per=each)


def _memory(spec: Spec) -> Iterator[Knob]:
    if spec.cluster.parts:
        return
    path, now = "cluster.topology.gpu.memory_gib", spec.cluster.topology.gpu.memory_gib
    label = "Memory of a GPU"
    if spec.limits.memory_gib is not None:
        path, now = "limits.memory_gib", spec.limits.memory_gib
        label = "Memory that a plan may use"
    yield _knob("memory", label, path, now, MEMORY_GIB, "GiB")


def _bandwidth(spec: Spec) -> Iterator[Knob]:
    topology = spec.cluster.topology
    if spec.cluster.parts or not topology.above:
        return
    outer = topology.above[-1]
    path = f"levels[{len(topology.levels) - 1}]"
    if topology.scale_out is not None:
        path = "scale_out"
    label = f"Bandwidth of {outer.name}"
    whole = f"cluster.topology.{path}.gb_s"
    yield _knob("bandwidth", label, whole, outer.gb_s, GB_S, "GB/s")


def _risk(spec: Spec) -> Iterator[Knob]:
    if not spec.limits.is_by_risk:
        return
    usual = [risk for risk in RISKS if risk <= MOST_RISK]
    label, path = "Risk of running out of memory", "limits.oom_risk"
    yield _knob("risk", label, path, spec.limits.risk, usual, "%", 100)


def _tolerance(spec: Spec) -> Iterator[Knob]:
    """Yield the slider of the tolerance, for the objective that most specs have."""
    names = tuple(level.metric for level in spec.objective.levels)
    if names not in (("step_s",), ("step_s", SIMPLEST)):
        return
    label, now = "Slower for a simpler plan", spec.objective.tolerance
    yield _knob("tolerance", label, "objective", now, TOLERANCES, "%", 100)
