"""Every reader of foreign text, as far as a command goes with what it has read."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest import mock

import numpy as np
from pydantic import ValidationError

from meshwright.api.import_files import launch_text
from meshwright.cost.profile import load_profile
from meshwright.cost.whole_model import active_params
from meshwright.errors import SpecError
from meshwright.evidence.fitted_topology import fit_files
from meshwright.evidence.runs import read_runs
from meshwright.evidence.score import judge
from meshwright.evidence.scoreboard import evidence_data, evidence_sections
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.plan import Sizes, decide
from meshwright.imports.read import (
    plain_data,
    read_facts,
    read_launch,
    read_levels,
    read_machine,
)
from meshwright.imports.registry import detect, kinds
from meshwright.imports.text import read_text
from meshwright.loading.imported import read_model
from meshwright.loading.load import load_cluster, load_gpu, load_question, load_spec
from meshwright.loading.plan_text import as_pins, read_plan
from meshwright.loading.vary import vary
from meshwright.planner.degrees import degree_rows
from meshwright.report.tables import sections_as_text
from meshwright.report.topology import topology_data, topology_sections
from meshwright.rules.user_rules import user_degree_rules, user_plan_rules
from meshwright.spec.model import Model
from meshwright.spec.topology import Topology
from meshwright.sweeps.cases import Case
from meshwright.sweeps.export import search_sections
from meshwright.sweeps.store import Store
from meshwright.sweeps.summary import summarise
from meshwright.sweeps.sweep import read_search
from tests.fuzz import good
from tests.helpers.command import run
from tests.helpers.import_gpus import A100, validated

MOST_CASES = 50
"""Of a sweep: a mutated one may ask for a million, rightly."""

SMALL_SPEC = "llama3-8b-2xh100-nvlink"


class Reader(NamedTuple):
    """A reader and what it reads well."""

    read: Callable[[Path], object]
    """Reads a file; raises MeshwrightError for what it refuses."""
    good: Sequence[str | bytes]

    @property
    def samples(self) -> list[bytes]:
        """Return the good files as bytes."""
        return [one.encode() if isinstance(one, str) else one for one in self.good]


_GPUS = [{"name": f"gpu{i}"} for i in range(2)]
_NIC = {"name": "nic0", "kind": "nic"}
SWITCHED = Topology.model_validate(
    {"gpu": A100, "levels": [{"name": "nv", "size": 8, "gb_s": 300, "latency_us": 1}]}
)
ROUTED = Topology.model_validate(
    {
        "gpu": A100,
        "nodes": [*_GPUS, _NIC],
        "links": [
            {"between": [gpu["name"], "nic0"], "gb_s": 10, "latency_us": 1}
            for gpu in _GPUS
        ],
    }
)
"""Machines that imported levels are put above."""

POD = Topology.model_validate(
    {
        **ROUTED.model_dump(exclude_none=True),
        "levels": [
            {"name": "ib", "size": 4, "gb_s": 25, "latency_us": 2, "uplink": "per_nic"}
        ],
    }
)
"""Eight GPUs, as a log has ranks."""


def _words(path: Path) -> str:
    """Return what the command line hands over of a text."""
    return path.read_bytes().decode("utf-8", "surrogateescape").replace("\0", "")


def _spec(path: Path) -> None:
    assert load_question(str(path)).title


def _foreign_spec(path: Path) -> None:
    path.with_name("good.txt").write_text(good.IMPORTS["nvidia_smi"][0])
    assert load_spec(str(path)).cluster.gpus


def _pin(path: Path) -> None:
    load_spec(SMALL_SPEC, [_words(path)])


def _topology(path: Path) -> None:
    cluster = load_cluster(str(path))
    if cluster.gpus <= MOST_CASES * 20:
        json.dumps(topology_data(cluster))
        sections_as_text(topology_sections(cluster))


def _sweep(path: Path) -> None:
    with mock.patch("meshwright.sweeps.sweep.MOST_POINTS", MOST_CASES):
        read_search(str(path))


def _filter(path: Path) -> None:
    sweep = path.with_name("sweep.yaml")
    text = json.dumps(_words(path).encode(errors="replace").decode())
    sweep.write_text(f"{good.SWEEPS[0]}where: {text}\n", encoding="utf-8")
    read_search(str(sweep))


def _rule(path: Path) -> None:
    """Read a rule, and hold it against a plan."""
    text = _words(path).encode(errors="replace").decode()
    spec = load_spec(SMALL_SPEC, rules=[text])
    (rule,) = spec.rules
    rows = degree_rows(np.array([[2, 1, 1, 1, 1], [1, 1, 1, 1, 2]]))
    for one in (*user_degree_rules(spec), *user_plan_rules(spec)):
        assert one.holds(spec, rows).dtype == bool
    assert rule.sentence.isprintable()


def _runs(suffix: str, path: Path) -> None:
    board = judge(read_runs(path.rename(path.with_suffix(suffix))))
    json.dumps(evidence_data(board))
    sections_as_text(evidence_sections(board))


def _profile(path: Path) -> None:
    profile = load_profile(str(path))
    profile.job(load_spec(SMALL_SPEC))
    for errors in filter(
        None, (profile.left_out, *(m.left_out for m in profile.measured))
    ):
        assert math.isfinite(math.exp(errors.p90)), "as reports print it"


@cache
def store_bytes() -> bytes:
    """Return a store with one row."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "own.sqlite"
        with Store(path) as store:
            store.put(good.STORED, Case("small", {}, None), "")
        return path.read_bytes()


def _store(path: Path) -> None:
    with Store(path) as store:
        rows = list(store.get([good.STORED.key], ""))
    summary = summarise("fuzz", rows, "step_s", "model", ("step_s", "gpus"))
    sections_as_text(search_sections(summary))
    summary.to_json()


def _stored_row(path: Path) -> None:
    content = path.read_bytes()
    text: str | bytes = content
    with contextlib.suppress(UnicodeDecodeError):  # SQLite stores bytes as such
        text = content.decode()
    path.write_bytes(store_bytes())
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.execute("UPDATE results SET row = ?", (text,))
    _store(path)


def _plan_text(path: Path) -> None:
    read_plan(_words(path))


def _plan_file(path: Path) -> None:
    read_plan(str(path))


def _vary(path: Path) -> None:
    varied = vary(SMALL_SPEC, _words(path))
    varied.at(varied.low)


def _quantity(path: Path) -> None:
    result = run("gemm", "8", "8", "8", f"--vram={_words(path)}")
    if result.code == 2:
        raise SpecError(result.stderr)
    assert result.code in (0, 1), result


def _name(path: Path) -> None:
    load_gpu("--gpu", _words(path))


def _import(kind: str, path: Path) -> None:
    if kind in kinds("machines"):
        assert validated(read_machine(kind, path, A100), A100).gpus
    elif kind in kinds("fabrics"):
        for machine in (SWITCHED, ROUTED):
            levels = read_levels(kind, path, machine).fields["levels"]
            assert Topology.model_validate({**machine.model_dump(), "levels": levels})
    elif kind in kinds("models"):
        _model(path)
    elif kind in kinds("launches"):
        assert launch_text(path, kind)
        _judged(read_launch(path, kind))
    else:
        plain_data(read_facts(kind, path))


def _model(path: Path) -> None:
    """Count the parameters of a model as the command does."""
    fields, _ = read_model(path)
    with contextlib.suppress(ValidationError):
        assert active_params(Model.model_validate(fields)) > 0


def _judged(launch: Launch) -> None:
    """Decide the plan of a launch on jobs that it may contradict."""
    for gpus, n_layers in ((2, 2), (64, 32)):
        with contextlib.suppress(SpecError):
            as_pins(launch, decide(launch, Sizes(gpus, n_layers)))


def _fit(path: Path) -> None:
    for machine in (SWITCHED, POD):
        data = machine.model_dump(exclude_none=True)
        fit_files(data, machine, "nccl_tests", [path], "", 0)


def _detect(path: Path) -> None:
    assert detect(read_text(path)) in (*kinds(), None)


def _dies(_path: Path) -> None:
    os.abort()


def _hangs(_path: Path) -> None:
    while True:
        pass


def _hoards(_path: Path) -> None:
    bytearray(2**30)


def _breaks(path: Path) -> None:
    raise ZeroDivisionError(path)


def _rambles(path: Path) -> None:
    raise SpecError("x" * 3_000)


PLANTED = {
    "crash": Reader(_dies, [""]),
    "hang": Reader(_hangs, [""]),
    "memory": Reader(_hoards, [""]),
    "traceback": Reader(_breaks, [""]),
    "long": Reader(_rambles, [""]),
}
"""Readers that misbehave, by what they must be counted as."""

SAMPLES = [text for texts in good.IMPORTS.values() for text in texts]

READERS = {
    "spec": Reader(_spec, good.SPECS),
    "spec with a file": Reader(_foreign_spec, [good.FOREIGN % "nvidia_smi"]),
    "pin": Reader(_pin, good.PINS),
    "topology": Reader(_topology, good.TOPOLOGIES),
    "sweep": Reader(_sweep, good.SWEEPS),
    "where": Reader(_filter, good.FILTERS),
    "rule": Reader(_rule, good.RULES),
    "runs yaml": Reader(partial(_runs, ".yaml"), good.RUNS),
    "runs csv": Reader(partial(_runs, ".csv"), good.TABLES),
    "profile": Reader(_profile, good.PROFILES),
    "store": Reader(_store, [store_bytes()]),
    "store row": Reader(_stored_row, [good.STORED.model_dump_json()]),
    "plan text": Reader(_plan_text, good.PLANS),
    "plan file": Reader(_plan_file, good.ANSWERS),
    "vary": Reader(_vary, good.VARIED),
    "quantity": Reader(_quantity, good.QUANTITIES),
    "name": Reader(_name, ["h100-sxm-80gb", "NVIDIA A100 SXM4 80GB"]),
    **{
        kind: Reader(partial(_import, kind), texts)
        for kind, texts in good.IMPORTS.items()
    },
    "link fit": Reader(_fit, good.IMPORTS["nccl_tests"]),
    "detect": Reader(_detect, SAMPLES),
}
"""By name."""
