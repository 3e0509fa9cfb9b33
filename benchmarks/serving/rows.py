"""Published measurements of serving, each with the plan that it was measured with.

Every row of the published tables is here. Each is priced as it was run: tensor
parallelism as said, one replica. Where more requests were sent than have room, as many
as have room are in flight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from meshwright import catalog
from meshwright.loading.load import load_cluster
from meshwright.loading.sources import resolved
from meshwright.plans.columns import Floats
from meshwright.results.serving import ServingPlan
from meshwright.serving.check import check
from meshwright.serving.deployment import Engine, make_serving_job
from meshwright.serving.solve import largest_batch
from meshwright.spec.cluster import Cluster
from meshwright.spec.gpu import Gpu
from meshwright.spec.model import Model
from meshwright.spec.plan_fields import AXES
from meshwright.spec.serving import Inference, ServingSpec

FOLDER = Path(__file__).parent

SHARED = (
    "prefill_tokens",
    "kv_precision",
    "weight_group",
    "decode_attention",
    "overlap_host",
)
"""Fields of `inference` that a whole table may set."""


@dataclass(frozen=True)
class Row:
    """One measurement."""

    source: str
    metric: str
    spec: ServingSpec
    plan: ServingPlan
    in_flight: int
    """Requests at a time: those sent, or as many as have room."""
    measured: float
    """Of all GPUs together."""

    def predicted(self, engine: Engine) -> float:
        """Return what an engine of such numbers is predicted to reach."""
        job = make_serving_job(self.spec, engine).with_inference(batch=self.in_flight)
        priced = check(job, self.plan)
        return priced.ttft_s * 1e3 if self.metric == "ttft_ms" else priced.tokens_per_s

    def error(self, engine: Engine) -> float:
        """Return the logarithm of predicted over measured."""
        return math.log(self.predicted(engine) / self.measured)


def errors(found: list[Row], engine: Engine) -> Floats:
    """Return the logarithms of predicted over measured."""
    return np.array([row.error(engine) for row in found])


def rows() -> Iterator[Row]:
    """Yield every measurement."""
    shapes = yaml.safe_load((FOLDER / "models.yaml").read_text(encoding="utf-8"))
    for path in sorted(FOLDER.glob("*.yaml")):
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "rows" in data:
            for values in data["rows"]:
                found = dict(zip(data["columns"], values, strict=True))
                yield _row(data, found, _model(found["model"], shapes))


def _row(data: dict[str, Any], given: dict[str, Any], model: Model) -> Row:
    names = ("precision", "batch", "prompt_len", "output_len")
    inference = Inference(
        **{name: data[name] for name in SHARED if name in data},
        **{name: given[name] for name in names},
    )
    cluster = _cluster(data["machine"], data.get("gpu"), given["tp"])
    spec = ServingSpec(model=model, cluster=cluster, inference=inference)
    plan = _plan(given["tp"], model.n_layers)
    counted = given["tp"] if data["metric"] == "tokens_per_s_per_gpu" else 1
    return Row(
        source=data["source"],
        metric=data["metric"].removesuffix("_per_gpu"),
        spec=spec,
        plan=plan,
        in_flight=largest_batch(make_serving_job(spec), plan, inference.batch),
        measured=counted * given["measured"],
    )


def _plan(tp: int, layers: int) -> ServingPlan:
    """Return the plan of one replica without stages."""
    mesh = {axis: (tp if axis == "tp" else 1,) for axis in AXES}
    return ServingPlan(
        tp=tp, pp=1, dp_replicate=1, microbatches=1, layers=(layers,), mesh=mesh
    )


def _model(name: str, shapes: dict[str, Any]) -> Model:
    if name in shapes:
        return Model.model_validate(shapes[name])
    path = catalog.locate("specs/models", name, Path())
    return Model.model_validate(catalog.read(path).data)


def _cluster(machine: str, gpu: str | None, size: int) -> Cluster:
    """Return one level of a machine, of so many GPUs."""
    topology = load_cluster(machine).topology
    level = topology.levels[0].model_copy(update={"size": size})
    changes: dict[str, object] = {"levels": (level,), "scale_out": None, "host": None}
    if gpu is not None:
        data = resolved("benchmarks.serving", "gpu", gpu).data["gpu"]
        changes["gpu"] = Gpu.model_validate(data)
    return Cluster(topology=topology.model_copy(update=changes))
