"""The layout of a run: the plan fields that its publication settles."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.evidence.assumptions import Assumptions, Unpriced
from meshwright.evidence.published_terms import schedule_of
from meshwright.evidence.run import Run
from meshwright.evidence.stage_layers import layers_of
from meshwright.frameworks.base.registry import framework_of
from meshwright.spec.divisors import divisors
from meshwright.spec.spec import Spec

DISTRIBUTED_OPTIMIZER_YEAR = "2023"
"""The year from which runs are assumed to use it where nothing is published."""


@dataclass(frozen=True)
class Layout:
    """The plan fields that all candidate plans of a run share."""

    tp: int
    cp: int
    pp: int
    dp: int
    ep: int
    vpp: int
    zero: int
    schedule: str
    sequence_parallel: bool
    stages: tuple[int, ...]


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
        _expert_parallel(run, spec, assumed),
        vpp,
        _zero(run, dp * cp, assumed),
        schedule,
        tp > 1 and _sequence_parallel(run, spec, assumed),
        layers_of(run, spec, vpp, assumed),
    )


def _usual_chunks(run: Run, spec: Spec, assumed: Assumptions) -> int:
    """Return the assumed chunks per stage where none are published, mostly one.

    A source that calls the schedule interleaved has at least two. One that leaves out
    the micro-batch has left out the chunks too: chunks of tuned layouts of Megatron are
    one layer.
    """
    config = run.config
    layers, over = divmod(spec.model.n_layers, config.pp or 1)
    is_named = "interleaved" in f"{config.framework} {config.schedule}"
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
        has_optimizer = run.era >= DISTRIBUTED_OPTIMIZER_YEAR
        zero = assumed.value("config.zero_stage", int(has_optimizer))
    return zero or 0 if ranks > 1 else 0


def _expert_parallel(run: Run, spec: Spec, assumed: Assumptions) -> int:
    """Return the expert-parallel degree, of whole experts.

    NeMo also splits each expert over the tensor-parallel GPUs, which is priced as a
    larger expert-parallel degree. Recipes of Megatron-Bridge do not, nor do layouts for
    which that would take more experts or GPUs than there are.
    """
    config, moe = run.config, spec.model.moe
    if moe is None:
        return 1
    ep, tp, room = config.ep or 1, config.tp or 1, spec.cluster.gpus // (config.pp or 1)
    fits_with_tp = moe.n_experts % (ep * tp) == room % (ep * tp) == 0
    if tp > 1 and fits_with_tp and "nemo" in config.framework.lower():
        ep = assumed.value("config.ep (folded with tp)", ep * tp)
    if moe.n_experts % ep or room % ep:
        what = f"{moe.n_experts} experts over {room} GPUs"
        raise Unpriced(f"config.ep: {ep} does not divide {what}")
    return ep


def _sequence_parallel(run: Run, spec: Spec, assumed: Assumptions) -> bool:
    if run.config.sp is not None:
        return run.config.sp
    since = framework_of(spec).sequence_parallel_since
    is_usual = since is not None and run.era >= since
    return assumed.value("config.sp", is_usual)
