"""Plans that a run may have used: those that its publication leaves possible.

The layout has the plan fields that the publication settles (`layout_of`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from meshwright.evidence.published_numerics import is_pure
from meshwright.evidence.published_terms import (
    FULL,
    VOCABULARY,
    Assumptions,
    Recompute,
    Unpriced,
    expert_parts,
    modules_of,
    named_in,
    recompute_of,
    schedule_of,
)
from meshwright.evidence.runs import Run, RunConfig
from meshwright.frameworks.base.registry import framework, framework_of
from meshwright.plans.plan import Plan, Stage
from meshwright.spec.base import divisors
from meshwright.spec.plan_fields import AXES, GRADIENTS, OFFLOADS, OPTIMIZER, Offload
from meshwright.spec.spec import Spec


@dataclass(frozen=True)
class Choice:
    """Values of the plan fields that a publication may leave out."""

    shard: int
    recompute: Recompute
    micro_batch: int


@dataclass(frozen=True)
class Candidate:
    """A plan that a run may have used, and what it assumes."""

    plan: Plan
    noted: dict[str, object]


def candidates(run: Run, spec: Spec, assumed: Assumptions) -> Iterator[Candidate]:
    """Yield the plans that a run may have used.

    They are ordered from small to large shards, from no to full recomputation, and from
    large to small micro-batches. Since the run fitted in memory, the first plan that
    fits is taken for the one that ran.

    Raises:
        Unpriced: the published layout is incomplete or contradicts itself.
    """
    layout = layout_of(run, spec, assumed)
    shards = _shards(run, spec, layout)
    modes = (
        (ON_HOST,) if keeps_inputs_on_host(run, spec.framework) else recompute_of(run)
    )
    micro_batches = _micro_batches(run, spec, layout)
    for options in product(shards, modes, micro_batches):
        choice = Choice(*options)
        noted: dict[str, object] = {}
        if len(shards) > 1:
            noted["config.fsdp (shard group)"] = choice.shard
        if run.config.recompute is None:
            noted["config.recompute"] = str(choice.recompute)
        if run.config.micro_batch is None:
            noted["config.micro_batch"] = choice.micro_batch
        yield Candidate(_plan(spec, layout, choice), noted)


def _shards(run: Run, spec: Spec, layout: Layout) -> list[int]:
    """Return the possible numbers of ranks that shard state, least first."""
    config, dp = run.config, layout.dp
    if not layout.zero:
        return [1]
    if config.optimizer_shard_group:
        return [math.gcd(dp, config.optimizer_shard_group)]
    if found := _GROUP.search(config.fsdp or ""):
        return [math.gcd(dp, int(found[1]))]
    if "hybrid" in (config.fsdp or "") or "+DP" in (config.fsdp or ""):
        node = math.gcd(dp, spec.cluster.fan_outs[0])
        return [size for size in divisors(dp) if size % node == 0 and size > 1]
    return [dp]


def _micro_batches(run: Run, spec: Spec, layout: Layout) -> list[int]:
    """Return the possible micro-batches of a run, largest first.

    Where none is published: one sequence with a pipeline, which keeps it full; without
    a pipeline all powers of two.
    """
    replica_batch, rest = divmod(spec.training.global_batch, layout.dp)
    micro_batch = run.config.micro_batch
    if rest or replica_batch % (micro_batch or 1):
        multiple = layout.dp * (micro_batch or 1)
        batch = spec.training.global_batch
        raise Unpriced(f"config.global_batch: {batch} is not a multiple of {multiple}")
    count = replica_batch // (micro_batch or 1)
    if layout.vpp > 1 and count % layout.pp:
        raise Unpriced(
            f"config.vp: {count} micro-batches do not fill {layout.pp} stages"
        )
    if micro_batch:
        return [micro_batch]
    if layout.pp > 1:
        return [1]
    return [
        size for size in reversed(divisors(replica_batch)) if size & (size - 1) == 0
    ]


def _plan(spec: Spec, layout: Layout, choice: Choice) -> Plan:
    recompute, shard = choice.recompute, choice.shard
    degrees = {
        "tp": layout.tp,
        "cp": layout.cp,
        "dp_shard": shard,
        "dp_replicate": layout.dp // shard,
        "pp": layout.pp,
    }
    return Plan(
        tp=layout.tp,
        cp=layout.cp,
        dp_shard=shard,
        dp_replicate=layout.dp // shard,
        pp=layout.pp,
        ep=layout.ep,
        etp=layout.etp,
        vpp=layout.vpp,
        micro_batch=choice.micro_batch,
        microbatches=spec.training.global_batch // (layout.dp * choice.micro_batch),
        zero=layout.zero,
        sequence_parallel=layout.sequence_parallel,
        recompute=recompute.mode,
        recompute_modules=modules_of(spec, recompute),
        schedule=layout.schedule,
        precision=spec.training.precision,
        offload=layout.offload,
        stages=tuple(
            Stage(layers=layers, recompute_layers=repeated)
            for layers, repeated in zip(
                layout.stages, _recomputed(layout, recompute), strict=True
            )
        ),
        mesh=_mesh(spec.cluster.fan_outs, degrees),
    )


def _recomputed(layout: Layout, recompute: Recompute) -> list[int]:
    """Return the recomputed layers of each stage."""
    if layout.recomputed is not None and recompute.mode != "none":
        return list(layout.recomputed)
    return [recompute.layers(layers, layout.vpp) for layers in layout.stages]


def _mesh(
    sizes: tuple[int, ...], degrees: dict[str, int]
) -> dict[str, tuple[int, ...]]:
    """Return the mesh in the rank order of Megatron: tp innermost, then cp, dp, pp."""
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
    return {axis: tuple(factors) for axis, factors in mesh.items()}


def layers_of(run: Run, spec: Spec, vpp: int, assumed: Assumptions) -> tuple[int, ...]:
    """Return the layers of each stage, and note uneven ones as assumed.

    Raises:
        Unpriced: the stages outnumber the layers, or are not those of the model.
    """
    published, total = run.config.layers_per_stage, run.model.n_layers or 0
    pp = run.config.pp or 1
    if published is not None:
        if (len(published), sum(published)) != (pp, total):
            what = f"{sum(published)} layers in {len(published)} stages"
            raise Unpriced(f"config.layers_per_stage: {what}, not {total} in {pp}")
        if min(published[:-1], default=1) < 1:
            raise Unpriced("config.layers_per_stage: only the last stage may have none")
        return published
    each, over = divmod(total, pp * vpp)
    if not over:
        return (each * vpp,) * pp
    counts_ends = framework_of(spec).counts_ends_as_layers
    ends = _with_ends(total, pp, vpp) if counts_ends else ()
    layers = ends or _filled(total, pp, vpp) or _even(total, pp)
    if vpp > 1 and sum(layers) != total:
        raise Unpriced(f"config.vp: {total} layers in {pp} x {vpp} chunks")
    if min(layers) < 1:
        raise Unpriced(f"config.pp: {pp} stages for {total} layers")
    return assumed.value("config.layers_per_stage", layers)


def _with_ends(total: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Return stages in which embedding and head count as one layer each; else none.

    As in Megatron-LM's account_for_embedding_in_pipeline_split, GLM-130B and Llama 3
    405B (Dubey et al. 2024, section 3.3.2). DeepSpeed's pipeline counts transformer
    layers alone (partition_method 'type:transformer').
    """
    each, over = divmod(total + 2, pp * vpp)
    if over or pp == 1 or each * vpp < 2:
        return ()
    middle = each * vpp
    return (middle - 1, *[middle] * (pp - 2), middle - 1)


def _filled(total: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Return interleaved stages of equal chunks, only the last of which is shorter.

    Megatron-Bridge splits the 61 layers of DeepSeek-V3 like this.
    """
    each = -(-total // (pp * vpp))
    last = total - each * (pp * vpp - 1)
    if vpp == 1 or last < 1:
        return ()
    return (*[each * vpp] * (pp - 1), each * (vpp - 1) + last)


def _even(total: int, pp: int) -> tuple[int, ...]:
    """Return stages that are as even as possible, the first ones with a layer more."""
    least, over = divmod(total, pp)
    return tuple(least + (stage < over) for stage in range(pp))


@dataclass(frozen=True)
class Layout:
    """The plan fields that all candidate plans of a run share."""

    tp: int
    cp: int
    pp: int
    dp: int
    ep: int
    etp: int
    vpp: int
    zero: int
    schedule: str
    sequence_parallel: bool
    stages: tuple[int, ...]
    recomputed: tuple[int, ...] | None
    offload: Offload


def with_degrees(run: Run, assumed: Assumptions) -> Run:
    """Return a run with the degrees that follow from those that are published.

    A code base that shards all of the state over all GPUs has no other degrees.
    """
    config, gpus = run.config, run.hardware.n_gpus
    known = {name: getattr(config, name) for name in ("dp", "tp", "pp")}
    left = [name for name, degree in known.items() if degree is None]
    is_flat = config.fsdp is not None or config.zero_stage == 3
    if is_flat and left:
        known |= {name: 1 for name in ("tp", "pp") if name in left}
    elif len(left) > 1 and config.dp == gpus:
        known |= dict.fromkeys(left, 1)
    others = math.prod(degree or 1 for degree in (*known.values(), config.cp))
    open_still = [name for name, degree in known.items() if degree is None]
    if len(open_still) == 1 and gpus and gpus % others == 0:
        known[open_still[0]] = gpus // others
    found = {name: known[name] for name in left if known[name] is not None}
    for name, degree in found.items():
        assumed.value(f"config.{name}", degree)
    return run.model_copy(update={"config": config.model_copy(update=found)})


def data_parallel(run: Run) -> int:
    """Return the data-parallel degree, without context parallelism.

    Raises:
        Unpriced: the product of the degrees is not the number of GPUs.
    """
    config, gpus = run.config, run.hardware.n_gpus
    dp = config.dp or 1
    used = (config.tp or 1) * (config.cp or 1) * (config.pp or 1) * dp
    if used != gpus:
        raise Unpriced(f"config: tp x cp x pp x dp is {used}, not {gpus} GPUs")
    return dp


def layout_of(run: Run, spec: Spec, assumed: Assumptions) -> Layout:
    """Return the published fields of the plan of a run, and usual values for others.

    Raises:
        Unpriced: the layout is incomplete or contradicts itself.
    """
    config, dp = run.config, data_parallel(run)
    tp, cp, pp = config.tp or 1, config.cp or 1, config.pp or 1
    schedule, published = schedule_of(config)
    vpp = published or _usual_chunks(run, spec, assumed)
    return Layout(
        tp,
        cp,
        pp,
        dp,
        *_expert_parallel(run, spec, assumed),
        vpp,
        _zero(run, dp * cp, assumed),
        schedule,
        tp > 1 and _sequence_parallel(run, spec, assumed),
        layers_of(run, spec, vpp, assumed),
        _recomputed_layers(config),
        offload_of(run, spec),
    )


def _recomputed_layers(config: RunConfig) -> tuple[int, ...] | None:
    """Return the published numbers of recomputed layers, one for each stage."""
    found, pp = config.recompute_layers, config.pp or 1
    if found is None or len(found) == pp:
        return found
    if len(found) != 1:
        raise Unpriced(f"config.recompute_layers: {len(found)} stages, not {pp}")
    return found * pp


def offload_of(run: Run, spec: Spec) -> Offload:
    """Return the state that a run kept on its hosts.

    DeepSpeed's gradients follow the optimizer from ZeRO-2 on (runtime/engine.py). A
    framework that offloads less does not offload what is smaller alone. Master weights
    are the parameters where no others are kept.

    Raises:
        Unpriced: it is none that is modelled.
    """
    published = (run.config.offload or "none").lower()
    if published in ("none", "no", "false"):
        return "none"
    master = "parameters" if is_pure(run.config) else "optimizer"
    kept = published.replace("master weights", master)
    kept = kept.replace("quantised weights", "")
    found = named_in(kept, VOCABULARY.offloads)
    if found is None:
        if any(word in kept for word in (*VOCABULARY.activations, "residual")):
            return "none"
        raise Unpriced(f"config.offload: {run.config.offload} is not modelled")
    wanted = OFFLOADS.index(found)
    had = framework_of(spec).offloads
    if wanted == OPTIMIZER and GRADIENTS in had and (run.config.zero_stage or 0) >= 2:
        wanted = GRADIENTS
    return OFFLOADS[min((code for code in had if code >= wanted), default=wanted)]


def is_offloading_activations(run: Run) -> bool:
    """Return whether activations of a run leave the GPU.

    Residuals are the inputs of layers: all that recomputing whole layers leaves. If
    only they leave of a layer that keeps more, that is not priced.
    """
    published = (run.config.offload or "").lower()
    if "residual" in published:
        return recompute_of(run) == (FULL,)
    return any(word in published for word in VOCABULARY.activations)


ON_HOST = Recompute("full-cpu")


def keeps_inputs_on_host(run: Run, name: str) -> bool:
    """Return whether all that leaves the GPU are inputs of layers that run again.

    Args:
        run: The run.
        name: The framework that it is priced as, which has that as a mode, or not.
    """
    config = run.config
    said = (config.offload or "").lower()
    is_whole = not {"half", "partitioned"} & {*said.split()} and config.pp in (None, 1)
    has_mode = ON_HOST.mode in framework(name).on_host and is_whole
    return has_mode and is_offloading_activations(run) and recompute_of(run) == (FULL,)


def _usual_chunks(run: Run, spec: Spec, assumed: Assumptions) -> int:
    """Return the assumed chunks per stage where none are published, mostly one.

    A source that calls the schedule interleaved has at least two. One that leaves out
    the micro-batch has left out the chunks too: chunks of tuned layouts of Megatron are
    one layer.
    """
    config = run.config
    layers, over = divmod(spec.model.n_layers, config.pp or 1)
    is_named = "interleaved" in f"{config.framework} {config.schedule}".lower()
    is_silent = framework_of(spec).has_tuned_chunks and config.micro_batch is None
    if config.pp == 1 or over or layers == 1 or not (is_named or is_silent):
        return 1
    chunks = divisors(layers)[1] if is_named else layers
    return assumed.value("config.vp", chunks)


def _zero(run: Run, ranks: int, assumed: Assumptions) -> int:
    zero = run.config.zero_stage
    if zero is None and run.config.fsdp is not None:
        return assumed.value("config.zero_stage", 3)
    if zero is None and ranks > 1:
        has_optimizer = run.era >= VOCABULARY.since.distributed_optimizer
        zero = assumed.value("config.zero_stage", int(has_optimizer))
    # On one GPU ZeRO-3 gathers a layer at a time too, and calls its hooks.
    return zero or 0 if ranks > 1 or zero == 3 else 0


def _expert_parallel(run: Run, spec: Spec, assumed: Assumptions) -> tuple[int, int]:
    """Return the expert-parallel degree, and the GPUs that split each expert."""
    config, moe = run.config, spec.model.moe
    if moe is None:
        return 1, 1
    ep, parts = config.ep or 1, expert_parts(run)
    room = spec.cluster.gpus // (config.pp or 1)
    if moe.n_experts % ep or room % (ep * parts):
        what = f"{moe.n_experts} experts over {room} GPUs"
        raise Unpriced(f"config.ep: {ep} does not divide {what}")
    if parts not in (1, config.tp):
        raise Unpriced(f"config.etp: {parts} is not modelled beside tp {config.tp}")
    if parts > 1:
        assumed.value("config.etp", parts)
    return ep, parts


def _sequence_parallel(run: Run, spec: Spec, assumed: Assumptions) -> bool:
    if run.config.sp is not None:
        return run.config.sp
    since = framework_of(spec).sequence_parallel_since
    is_usual = since is not None and run.era >= since
    return assumed.value("config.sp", is_usual)


_GROUP = re.compile(r"shard group (\d{1,9})")
