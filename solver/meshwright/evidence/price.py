"""Prices a run as `solve` would price the same plan if it were pinned."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import ValidationError

from meshwright.check import check
from meshwright.evidence.assume import Assumed, Unpriced
from meshwright.evidence.machines import find_cluster
from meshwright.evidence.run import Run
from meshwright.job import make_job
from meshwright.plan import Plan, Stage
from meshwright.profile import Profile
from meshwright.spec.model import Model
from meshwright.spec.pins import AXES
from meshwright.spec.spec import Framework, Spec
from meshwright.spec.training import Training

FRAMEWORKS: tuple[tuple[str, Framework], ...] = (
    ("megatron-deepspeed", "deepspeed"),
    ("megatron", "megatron"),
    ("nemo", "megatron"),
    ("deepspeed", "deepspeed"),
    ("internevo", "deepspeed"),
    ("torchtitan", "torchtitan"),
    ("fsdp", "fsdp"),
)
"""The first word that a framework's published name contains decides."""

DISTRIBUTED_OPTIMIZER_YEAR = "2023"
SEQUENCE_PARALLEL_YEAR = "2023"
"""From then on Megatron runs are taken to use these where nothing is said."""


@dataclass(frozen=True)
class Priced:
    """A run with what Meshwright predicts for it."""

    run: Run
    spec: Spec
    plan: Plan
    step_s: float
    peak_gib: float
    state_gib: float
    """Of the fullest stage, without CUDA context and communication buffers."""
    assumed: dict[str, object]

    @property
    def fits(self) -> bool:
        """Return whether the plan fits in memory with the spec's margin."""
        return self.peak_gib <= self.spec.usable_gib


def price_runs(
    runs: list[Run], profile: Profile | None = None
) -> tuple[list[Priced], list[tuple[Run, str]]]:
    """Return the predictions, and the runs that have none with the reason."""
    priced, unpriced = [], []
    for run in runs:
        try:
            priced.append(price_run(run, profile))
        except Unpriced as reason:
            unpriced.append((run, str(reason)))
    return priced, unpriced


def price_run(run: Run, profile: Profile | None = None) -> Priced:
    """Return the prediction for a run, at the profile's efficiency if there is one.

    Raises:
        Unpriced: a field is missing or has no counterpart in the model yet.
        SpecError: the profile has nothing for the run's GPU and framework.
    """
    assumed = Assumed()
    _refuse(run)
    framework = _framework(run)
    cluster = find_cluster(run.hardware, assumed)
    batch = run.config.global_batch
    if batch is None:
        raise Unpriced("config.global_batch: not published")
    spec = Spec(
        model=_model(run, assumed),
        cluster=cluster,
        framework=framework,
        training=Training(
            seq_len=run.model.seq_len,
            global_batch=batch,
            precision="fp16" if run.config.precision == "fp16" else "bf16",
            attention=_attention(run, assumed),
        ),
    )
    plan = _plan(run, spec, assumed)
    efficiency = profile.efficiency(spec) if profile else None
    priced = check(make_job(spec, efficiency), plan)
    fullest = max(priced.stages, key=lambda stage: stage.total_gib)
    return Priced(
        run=run,
        spec=spec,
        plan=plan,
        step_s=priced.step_s,
        peak_gib=fullest.total_gib,
        state_gib=fullest.total_gib - fullest.parts["overhead"],
        assumed=assumed.fields,
    )


def _refuse(run: Run) -> None:
    """Raise for what the cost model does not know yet."""
    config = run.config
    if run.model.moe:
        raise Unpriced("model.moe: experts are not modelled")
    for name in ("vp", "cp", "ep"):
        if (getattr(config, name) or 1) > 1:
            raise Unpriced(f"config.{name}: {getattr(config, name)} is not modelled")
    for name in ("n_layers", "d_model", "n_heads", "d_ff", "vocab", "seq_len"):
        if getattr(run.model, name) is None:
            raise Unpriced(f"model.{name}: not published")
    if config.precision not in ("bf16", "fp16"):
        raise Unpriced(f"config.precision: {config.precision} is not modelled")
    if config.offload not in (None, "none"):
        raise Unpriced(f"config.offload: {config.offload} is not modelled")
    if config.optimizer not in (None, "Adam", "AdamW", "adam", "adamw"):
        raise Unpriced(f"config.optimizer: {config.optimizer} is not modelled")
    if config.schedule not in (None, "1f1b"):
        raise Unpriced(f"config.schedule: {config.schedule} is not modelled")
    for name in ("dp", "tp", "pp", "micro_batch"):
        if getattr(config, name) is None:
            raise Unpriced(f"config.{name}: not published")


def _framework(run: Run) -> Framework:
    name = run.config.framework.lower()
    for word, framework in FRAMEWORKS:
        if word in name:
            return framework
    raise Unpriced(f"config.framework: {run.config.framework!r} has no profile")


def _model(run: Run, assumed: Assumed) -> Model:
    model = run.model
    is_gated, tied = model.gated_mlp, model.tied
    if is_gated is None:
        is_gated = assumed.value("model.gated_mlp", False)
    if tied is None:
        tied = assumed.value("model.tied", not is_gated)
    is_learned = (model.pos_emb or "").startswith("learned")
    fields = {
        "name": model.name,
        "n_layers": model.n_layers,
        "d_model": model.d_model,
        "n_heads": model.n_heads,
        "n_kv_heads": model.n_kv_heads or model.n_heads,
        "d_ff": model.d_ff,
        "vocab": model.vocab,
        "gated_mlp": is_gated,
        "norm": "rmsnorm" if is_gated else "layernorm",
        "bias": "none" if is_gated else "all",
        "tied_embeddings": tied,
        "learned_positions": model.seq_len if is_learned else 0,
    }
    if model.head_dim is not None:
        fields["head_dim"] = model.head_dim
    try:
        return Model.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(("model", *map(str, first["loc"])))
        raise Unpriced(f"{field}: {first['msg']}") from None


def _attention(run: Run, assumed: Assumed) -> str:
    """Return plain attention for runs from before fused kernels were common."""
    if run.config.attention is not None:
        return "flash" if "flash" in run.config.attention.lower() else "plain"
    is_fused = "flash" in run.config.framework.lower() or run.date >= "2023"
    return assumed.value("config.attention", "flash" if is_fused else "plain")


def _plan(run: Run, spec: Spec, assumed: Assumed) -> Plan:
    config = run.config
    tp, pp, dp = config.tp or 1, config.pp or 1, config.dp or 1
    micro_batch = config.micro_batch or 1
    sequences = dp * micro_batch
    batch = spec.training.global_batch
    if batch % sequences:
        raise Unpriced(f"config.global_batch: {batch} is not a multiple of {sequences}")
    if tp * pp * dp != spec.cluster.gpus:
        raise Unpriced(f"config: tp x pp x dp is not {spec.cluster.gpus} GPUs")
    zero, shard = _sharding(run, spec, dp, assumed)
    mode = _recompute(run, assumed)
    degrees = {"tp": tp, "cp": 1, "dp_shard": shard, "dp_replicate": dp // shard}
    degrees["pp"] = pp
    layers = _layers(run, spec, pp, assumed)
    return Plan.model_validate(
        {
            **degrees,
            "micro_batch": micro_batch,
            "microbatches": batch // sequences,
            "zero": zero,
            "sequence_parallel": tp > 1 and _sequence_parallel(run, spec, assumed),
            "recompute": mode,
            "schedule": "1f1b",
            "precision": spec.training.precision,
            "stages": tuple(
                Stage(layers=n, recompute_layers=0 if mode == "none" else n)
                for n in layers
            ),
            "mesh": _mesh(spec.cluster.fan_outs, degrees),
        }
    )


def _sharding(run: Run, spec: Spec, dp: int, assumed: Assumed) -> tuple[int, int]:
    """Return the ZeRO stage and over how many ranks it shards."""
    zero = run.config.zero_stage
    if zero is None and dp > 1:
        has_optimizer = run.date >= DISTRIBUTED_OPTIMIZER_YEAR
        zero = assumed.value("config.zero_stage", int(has_optimizer))
    if dp == 1 or not zero:
        return 0, 1
    if "hybrid" in (run.config.fsdp or ""):
        inside = spec.cluster.fan_outs[0]
        shard = assumed.value("config.fsdp (shard group)", math.gcd(dp, inside))
        return (zero, shard) if shard > 1 else (0, 1)
    return zero, dp


def _recompute(run: Run, assumed: Assumed) -> str:
    published = run.config.recompute
    if published is None:
        return assumed.value("config.recompute", "none")
    if published not in ("none", "selective", "full"):
        raise Unpriced(f"config.recompute: {published} is not modelled")
    return published


def _sequence_parallel(run: Run, spec: Spec, assumed: Assumed) -> bool:
    if run.config.sp is not None:
        return run.config.sp
    is_usual = spec.framework == "torchtitan" or (
        spec.framework == "megatron" and run.date >= SEQUENCE_PARALLEL_YEAR
    )
    return assumed.value("config.sp", is_usual)


def _layers(run: Run, spec: Spec, pp: int, assumed: Assumed) -> tuple[int, ...]:
    """Return the layers of each stage; even, the first stages taking what is over."""
    published = run.config.layers_per_stage
    if published is not None:
        return published
    least, over = divmod(spec.model.n_layers, pp)
    if least == 0:
        raise Unpriced(f"config.pp: {pp} stages for {spec.model.n_layers} layers")
    layers = tuple(least + (stage < over) for stage in range(pp))
    return assumed.value("config.layers_per_stage", layers) if over else layers


def _mesh(sizes: tuple[int, ...], degrees: dict[str, int]) -> dict[str, list[int]]:
    """Return the mesh in Megatron's rank order: tp innermost, then dp, then pp."""
    left, mesh = list(sizes), {axis: [1] * len(sizes) for axis in AXES}
    for axis in AXES:
        wanted = degrees[axis]
        for level in range(len(sizes)):
            factor = math.gcd(wanted, left[level])
            mesh[axis][level] = factor
            left[level] //= factor
            wanted //= factor
        if wanted > 1:
            raise Unpriced(f"config: {axis} {degrees[axis]} does not map onto nodes")
    return mesh
