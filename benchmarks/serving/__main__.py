"""How far predictions of serving lie off: `python -m benchmarks.serving`.

Every row of the published tables is here, none was used to choose a number of the
model. Each is priced as it was run: tensor parallelism as said, one replica. Where
more requests were sent than have room, as many as have room are in flight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

from meshwright import catalog
from meshwright.loading.load import load_cluster
from meshwright.loading.presets import resolved
from meshwright.results.serving import PricedServing, ServingPlan
from meshwright.serving.around import largest_batch
from meshwright.serving.check import check
from meshwright.serving.job import ServingJob, make_serving_job
from meshwright.spec.cluster import Cluster
from meshwright.spec.gpu import Gpu
from meshwright.spec.inference import Inference
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import AXES
from meshwright.spec.serving import ServingSpec

FOLDER = Path(__file__).parent
CLOSE = math.log(1.2)
"""Predictions within 20 %, either way."""


class Row(NamedTuple):
    """One measurement, and what is predicted for it."""

    source: str
    metric: str
    spec: ServingSpec
    tp: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Return the logarithm of predicted over measured."""
        return math.log(self.predicted / self.measured)


def rows() -> Iterator[Row]:
    """Yield every measurement."""
    shapes = yaml.safe_load((FOLDER / "models.yaml").read_text(encoding="utf-8"))
    for path in sorted(FOLDER.glob("*.yaml")):
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "rows" in data:
            for values in data["rows"]:
                own = dict(zip(data["columns"], values, strict=True))
                yield _row(data, own, _model(own["model"], shapes))


def _row(data: dict[str, Any], own: dict[str, Any], model: Model) -> Row:
    shared = {"prefill_tokens", "kv_precision", "weight_group"} & set(data)
    names = ("precision", "batch", "prompt_len", "output_len")
    inference = Inference(
        **{name: data[name] for name in shared}, **{name: own[name] for name in names}
    )
    cluster = _cluster(data["machine"], data.get("gpu"), own["tp"])
    spec = ServingSpec(model=model, cluster=cluster, inference=inference)
    priced = _priced(make_serving_job(spec), own["tp"])
    predicted = {
        "tokens_per_s": priced.tokens_per_s,
        "tokens_per_s_per_gpu": priced.tokens_per_s / own["tp"],
        "ttft_ms": priced.ttft_s * 1e3,
    }[data["metric"]]
    metric = "ttft_ms" if data["metric"] == "ttft_ms" else "tokens_per_s"
    return Row(data["source"], metric, spec, own["tp"], own["measured"], predicted)


def _priced(job: ServingJob, tp: int) -> PricedServing:
    """Return the plan as it was run, with the requests that have room."""
    mesh = {axis: (tp if axis == "tp" else 1,) for axis in AXES}
    layers = (job.model.n_layers,)
    plan = ServingPlan(
        tp=tp, pp=1, dp_replicate=1, microbatches=1, layers=layers, mesh=mesh
    )
    return check(
        job.with_inference(batch=largest_batch(job, plan, job.inference.batch)), plan
    )


def _model(name: str, shapes: dict[str, Any]) -> Model:
    if name in shapes:
        return Model.model_validate(shapes[name])
    path = catalog.locate("specs/models", name, Path())
    return Model.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def _cluster(machine: str, gpu: str | None, size: int) -> Cluster:
    """Return one level of a machine, of so many GPUs."""
    topology = load_cluster(machine).topology
    level = topology.levels[0].model_copy(update={"size": size})
    changes: dict[str, object] = {"levels": (level,), "scale_out": None, "host": None}
    if gpu is not None:
        data = resolved("benchmarks.serving", "gpu", gpu).data["gpu"]
        changes["gpu"] = Gpu.model_validate(data)
    return Cluster(topology=topology.model_copy(update=changes))


def main() -> None:
    """Predict and print."""
    found = list(rows())
    console = Console(width=110)
    console.print(_each(found))
    console.print(_by_source(found))


def _each(found: list[Row]) -> Table:
    table = Table(title="Serving, as measured and as predicted")
    for name in ("source", "model", "precision", "tp", "batch", "prompt", "output"):
        table.add_column(name)
    for name in ("metric", "measured", "predicted", "error"):
        table.add_column(name, justify="right")
    for row in found:
        own = row.spec.inference
        shape = (row.tp, own.batch, own.prompt_len, own.output_len)
        table.add_row(
            row.source,
            row.spec.model.name,
            own.precision,
            *map(str, shape),
            row.metric,
            f"{row.measured:,.4g}",
            f"{row.predicted:,.4g}",
            f"{math.expm1(row.error):+.0%}",
        )
    return table


def _by_source(found: list[Row]) -> Table:
    table = Table(title="Within 20 %, by source")
    for name in ("source", "metric", "rows", "within 20 %", "median", "p90", "bias"):
        table.add_column(name, justify="left" if name == "source" else "right")
    for metric in ("tokens_per_s", "ttft_ms"):
        of_metric = [row for row in found if row.metric == metric]
        for source in dict.fromkeys(row.source for row in of_metric):
            _add(table, source, metric, [r for r in of_metric if r.source == source])
        _add(table, "all of these", metric, of_metric)
        table.add_section()
    return table


def _add(table: Table, source: str, metric: str, found: list[Row]) -> None:
    errors = np.array([row.error for row in found])
    close = int((abs(errors) <= CLOSE).sum())
    median, p90 = np.expm1(np.percentile(abs(errors), [50, 90]))
    bias = f"{math.expm1(np.median(errors)):+.0%}"
    cells = (str(len(found)), str(close), f"{median:.0%}", f"{p90:.0%}", bias)
    table.add_row(source, metric, *cells)


if __name__ == "__main__":
    main()
