"""The training run on one plan, with stragglers, Chinchilla and compressed gradients.

A compression scheme changes the bytes on the links and adds passes over the gradients.
Its effect on model quality is not modelled.

Time lost to failures and checkpoints follows Young 1974, 'A first order approximation
to the optimum checkpoint interval', and Daly 2006, 'A higher order estimate of the
optimum checkpoint interval for restart dumps'.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from statistics import NormalDist
from typing import Any, NamedTuple

from meshwright.cost.job import Efficiency, Job
from meshwright.cost.traffic import RENEWS_WEIGHTS
from meshwright.cost.whole_model import checkpoint_size, state_size
from meshwright.economics.ledger import ledger
from meshwright.economics.planned_run import PlannedRun
from meshwright.results.comparison import LedgerEntry
from meshwright.results.priced_plan import PricedPlan
from meshwright.results.training_run import (
    Chinchilla,
    Compression,
    DeadlineCheck,
    Failures,
    RunReport,
    Scheme,
    StragglerPrice,
)
from meshwright.spec.cluster import per_mtoken, watts
from meshwright.spec.spec import Checkpoint
from meshwright.spec.units import GIB, HOUR_S

PCIE_GB_S = 12.5
"""PCIe bandwidth of a GPU whose port is not known: 0.8 of the 15.75 GB/s of PCIe 3.0
x16 (PCI-SIG)."""


class Days(NamedTuple):
    """Length of a run without failures and with them."""

    ideal: float
    real: float


def failures(run: PlannedRun) -> Failures | None:
    """Return the cost of failures to a run; None if the spec gives no rate of failures.

    If the spec describes no checkpoints, only the time between failures is known.
    """
    if run.asked.mtbf_gpu_hours is None:
        return None
    mtbf_hours = run.asked.mtbf_gpu_hours / run.plan.world_size
    if run.asked.checkpoint is None:
        return Failures(mtbf_hours=mtbf_hours)
    return _with_checkpoints(run, run.asked.checkpoint, mtbf_hours)


def over_days(failures: Failures, days: Days | None) -> Failures:
    """Return the failures with their number and the days lost over a whole run."""
    if days is None:
        return failures
    expected = days.real * 24 / failures.mtbf_hours
    lost = days.real - days.ideal if failures.goodput is not None else None
    return failures.model_copy(update={"expected": expected, "lost_days": lost})


def _with_checkpoints(
    run: PlannedRun, checkpoint: Checkpoint, mtbf_hours: float
) -> Failures:
    """Return the cost of failures to a run with checkpoints at Daly's interval.

    A checkpoint has the trained weights and their optimizer state, each part written
    once. After a failure it is read again. An asynchronous checkpoint stops
    training only until host memory has it, but is lost if a failure comes before it is
    written; the next one does not start before that.
    """
    size = checkpoint_size(run.job.spec)
    write_s, mtbf_s = size / (checkpoint.gb_s * 1e9), mtbf_hours * HOUR_S
    is_async = checkpoint.is_async
    stall_s = _copy_to_host_s(run, size) if is_async else write_s
    again_s = restart_s(checkpoint, write_s)
    asked_s = daly_s(stall_s, mtbf_s)
    interval_s = max(asked_s, write_s) if is_async else asked_s
    useful = goodput(interval_s, stall_s, again_s, mtbf_s)
    gain = useful - goodput(SHORT_S, stall_s, again_s, mtbf_s)
    is_short = interval_s < SHORT_S
    is_needless = is_short and gain < LITTLE
    return Failures(
        mtbf_hours=mtbf_hours,
        checkpoint_gb=size / 1e9,
        write_s=write_s,
        stall_s=stall_s,
        young_s=young_s(stall_s, mtbf_s),
        interval_s=interval_s,
        goodput=useful,
        set_by="storage" if is_needless or interval_s > asked_s else "failures",
        failures_alone_s=asked_s,
        storage_share=write_s / (interval_s + stall_s),
        storage_tb_h=size / 1e12 * HOUR_S / (interval_s + stall_s),
        short_gains=gain if is_short else None,
    )


def restart_s(checkpoint: Checkpoint, write_s: float) -> float:
    """Return the seconds from a failure until training goes on where it was saved.

    Reading a checkpoint takes as long as writing it. What was being written behind
    the training is lost, and with it as much work again.
    """
    return checkpoint.restart_s + write_s + (write_s if checkpoint.is_async else 0.0)


def _copy_to_host_s(run: PlannedRun, size: float) -> float:
    """Return the seconds in which every GPU copies its part to its host."""
    topology = run.job.spec.cluster.topology
    host_gb_s = topology.host.pcie_gb_s if topology.host else None
    gb_s = host_gb_s or topology.gpu.pcie_gb_s or PCIE_GB_S
    return size / run.plan.world_size / (gb_s * 1e9)


SHORT_S = 300.0
"""Below this interval a report says whether failures really ask for it."""

LITTLE = 0.01
"""Share of the time that an interval may lose before it is worth shortening."""

MOST_EXPONENT = 700.0
"""Largest exponent of e whose power is still a float."""


def young_s(stall_s: float, mtbf_s: float) -> float:
    """Return the seconds of work between checkpoints: Young 1974, equation 1."""
    return math.sqrt(2 * stall_s * mtbf_s)


def daly_s(stall_s: float, mtbf_s: float) -> float:
    """Return the seconds of work between checkpoints: Daly 2006, equation 37."""
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    share = stall_s / (2 * mtbf_s)
    return young_s(stall_s, mtbf_s) * (1 + math.sqrt(share) / 3 + share / 9) - stall_s


def goodput(
    interval_s: float, stall_s: float, restart_s: float, mtbf_s: float
) -> float:
    """Return the useful share of the time where failures come at random.

    An interval of work and its checkpoint take M e^(R/M) (e^((tau + delta)/M) - 1)
    (Daly 2006, equation 20).
    """
    exponent = (interval_s + stall_s + restart_s) / mtbf_s
    if exponent > MOST_EXPONENT:
        return 0.0
    tries_s = math.exp(restart_s / mtbf_s) * math.expm1((interval_s + stall_s) / mtbf_s)
    return interval_s / (mtbf_s * tries_s)


SCHEMES: tuple[Scheme, ...] = ("fp16", "1-bit", "top-k", "powersgd")

ENCODE_BYTES: dict[Scheme, float] = {
    "fp16": 12.0,
    "1-bit": 16.0,
    "top-k": 16.0,
    "powersgd": 24.0,
}
"""Bytes of memory that a scheme reads and writes, per gradient and step.

fp16 casts there and back, 4 + 2 each. 1-bit reads gradient and error and writes error
and result, 4 each (Tang et al. 2021, 1-bit Adam, algorithm 1); so does top-k, which
selects on the way (Lin et al. 2018, Deep Gradient Compression, algorithm 4). PowerSGD
reads the sum of both twice more for its two products (Vogels et al. 2019, algorithm 1).
"""


class GradientShape(NamedTuple):
    """The numbers that the size of compressed gradients depends on."""

    reduced_bytes: float
    """Bytes of one gradient as it is sent without compression."""
    width: int
    """Rows and columns of a weight matrix, which is taken as square."""
    density: float
    """Share of the gradients that top-k sends."""
    rank: int
    """Rank of PowerSGD's factors."""
    zero: int
    """ZeRO stage; at 0 the ring goes round twice, to add up and to hand out."""


class GradientTraffic(NamedTuple):
    """Seconds per step that gradients are on the links, and the exposed part."""

    traffic_s: float
    exposed_s: float


def compression_savings(run: PlannedRun, hours: float | None) -> Iterator[Compression]:
    """Yield what each scheme saves, by the stage whose gradients are most exposed.

    `hours` is the length of the run, None if it is not known.
    """
    by_stage = [
        gradient_entries(stage.entries) for stage in ledger(run.job, run.plan).stages
    ]
    entries = max(
        by_stage, key=lambda sums: math.fsum(entry.exposed_s for entry in sums)
    )
    if entries:
        for scheme in SCHEMES:
            yield _savings(run, scheme, entries, hours)


def _savings(
    run: PlannedRun, scheme: Scheme, entries: list[LedgerEntry], hours: float | None
) -> Compression:
    shape, efficiency = _gradient_shape(run), run.job.efficiency
    now_s = math.fsum(entry.seconds for entry in entries)
    exposed_now_s = math.fsum(entry.exposed_s for entry in entries)
    after = compressed_traffic(scheme, entries, shape, efficiency)
    bytes_per_s = run.job.spec.cluster.topology.gpu.memory_gb_s * 1e9
    rate = bytes_per_s * efficiency.memory
    encode_s = ENCODE_BYTES[scheme] * gradients_per_gpu(entries, shape) / rate
    saved_s = exposed_now_s - after.exposed_s - encode_s
    saved_hours = hours * saved_s / run.priced.step_s if hours else None
    return Compression(
        scheme=scheme,
        share=after.traffic_s / now_s,
        traffic_s=after.traffic_s,
        exposed_s=after.exposed_s,
        encode_s=encode_s,
        step_s=run.priced.step_s - saved_s,
        saved_days=saved_hours / 24 if saved_hours is not None else None,
        saved_usd=run.usd(saved_hours),
    )


def _gradient_shape(run: PlannedRun) -> GradientShape:
    return GradientShape(
        reduced_bytes=run.state.reduced,
        width=run.model.d_model,
        density=run.asked.topk_density,
        rank=run.asked.powersgd_rank,
        zero=run.plan.zero,
    )


def gradient_entries(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Return the entries of a ledger that send gradients of weights."""
    parts = ("dp", "zero")
    return [one for one in entries if one.part in parts and "gradients" in one.where]


def bytes_share(scheme: Scheme, entry: LedgerEntry, shape: GradientShape) -> float:
    """Return the bytes of a compressed collective over those of a plain one; at most 1.

    - fp16: 2 bytes a gradient;
    - 1-bit: one bit, and scales that do not count (Seide et al. 2014, section 3);
    - powersgd: two factors of rank r for d x d weights, fp32: 2 r / d of 4 bytes;
    - top-k: 4 bytes of value and 4 of index, which an all-gather collects from all n
      ranks: n k 8 bytes, in place of a ring's one or two ways round.
    """
    is_both_ways = entry.operation == "all_reduce" or shape.zero == 0
    gathered = entry.ranks * shape.density * 8
    per_gradient = {
        "fp16": 2.0,
        "1-bit": 1 / 8,
        "powersgd": 4 * 2 * shape.rank / shape.width,
        "top-k": gathered / 2 if is_both_ways else gathered,
    }[scheme]
    return min(per_gradient / shape.reduced_bytes, 1.0)


def compressed_traffic(
    scheme: Scheme,
    entries: Iterable[LedgerEntry],
    shape: GradientShape,
    efficiency: Efficiency,
) -> GradientTraffic:
    """Return the traffic of gradients under a scheme.

    As many seconds stay hidden as are hidden now, but no larger share than the
    efficiency lets overlap.
    """
    overlap = {"dp": efficiency.grad_overlap, "zero": efficiency.gather_overlap}
    traffic_s = exposed_s = 0.0
    for entry in entries:
        sent_s = entry.seconds * bytes_share(scheme, entry, shape)
        hidden_s = min(overlap[entry.part] * sent_s, entry.seconds - entry.exposed_s)
        traffic_s += sent_s
        exposed_s += sent_s - hidden_s
    return GradientTraffic(traffic_s, exposed_s)


def gradients_per_gpu(entries: Iterable[LedgerEntry], shape: GradientShape) -> float:
    """Return how many gradients a GPU reduces in a step."""
    reductions = (one for one in entries if one.operation not in RENEWS_WEIGHTS)
    reduced = math.fsum(entry.bytes * entry.count_per_step for entry in reductions)
    return reduced / shape.reduced_bytes


def run_report(job: Job, priced: PricedPlan) -> RunReport:
    """Return how long the run of the job's spec takes on a plan, and what it costs."""
    run = PlannedRun(job.at(priced.plan.precision), priced)
    lost = failures(run)
    known = lost.goodput if lost else None
    useful = 1.0 if known is None else known
    tokens = _tokens(run, useful)
    days = _days(run, tokens, useful)
    hours = days.real * 24 if days else None
    return RunReport.model_validate(
        {
            **_state_size(run),
            **_work(run, tokens),
            **_money(run, hours, useful),
            "ideal_days": days.ideal if days else None,
            "days": days.real if days else None,
            "deadline": _deadline(run, days, useful),
            "chinchilla": _compute_optimal(run, tokens),
            "failures": over_days(lost, days) if lost else None,
            "compression": tuple(compression_savings(run, hours)),
            "straggler": straggler_price(run, hours),
        }
    )


def _tokens(run: PlannedRun, useful: float) -> float | None:
    """Return the tokens of the run: as asked, affordable, or until the deadline.

    `useful` is the share of the time that failures leave.
    """
    asked = run.asked
    if asked.tokens is not None:
        return asked.tokens
    if asked.budget_flops is not None:
        return affordable_tokens(run.active_params, asked.budget_flops)
    if not asked.deadline:
        return None
    return asked.deadline * DAY_S * run.tokens_per_s * useful


def _days(run: PlannedRun, tokens: float | None, useful: float) -> Days | None:
    """Return the days of the run; None if it has no known or no possible end."""
    if not tokens or not useful:
        return None
    ideal = tokens / run.tokens_per_s / DAY_S
    return Days(ideal, ideal / useful)


def _state_size(run: PlannedRun) -> dict[str, Any]:
    """Return the size of the model and its state, and the GPUs that hold the state."""
    state = state_size(run.job.spec)
    usable = run.job.spec.usable_gib * GIB
    return {
        "params": run.params,
        "active_params": run.active_params,
        "state_gb": state / 1e9,
        "least_gpus": math.ceil(state / usable),
    }


def _work(run: PlannedRun, tokens: float | None) -> dict[str, Any]:
    """Return the tokens, steps and FLOPs of the run, its utilisation and throughput.

    MFU counts the FLOPs of the model, HFU also those that are recomputed (Chowdhery et
    al. 2022, PaLM, section 4.1).
    """
    steps = tokens / run.tokens_per_step if tokens else None
    recomputed = run.recomputed_flops / run.step_flops
    return {
        "tokens": tokens,
        "steps": steps,
        "flops_6nd": six_nd(run.active_params, tokens) if tokens else None,
        "flops_exact": run.step_flops * steps if steps else None,
        "mfu": run.priced.mfu,
        "hfu": run.priced.mfu * (1 + recomputed),
        "tokens_per_s": run.tokens_per_s,
    }


def _money(run: PlannedRun, hours: float | None, useful: float) -> dict[str, Any]:
    """Return the GPU hours, cost and energy of a run of this length."""
    price, power = run.usd_per_hour, watts(run.job.spec.cluster)
    useful_per_s = run.tokens_per_s * useful
    return {
        "gpu_hours": hours * run.plan.world_size if hours else None,
        "cost_usd": price * hours if price is not None and hours else None,
        "usd_per_mtoken": per_mtoken(price, useful_per_s) if price and useful else None,
        "energy_mwh": power * hours / 1e6 if power is not None and hours else None,
    }


def _deadline(
    run: PlannedRun, days: Days | None, useful: float
) -> DeadlineCheck | None:
    asked = run.asked.deadline
    if asked is None:
        return None
    return DeadlineCheck(
        days=asked,
        tokens=asked * DAY_S * run.tokens_per_s * useful,
        is_met=days.real <= asked * (1 + 1e-9) if days else None,
        rate_needed=days.real / asked if days else None,
    )


def _compute_optimal(run: PlannedRun, tokens: float | None) -> Chinchilla | None:
    """Return the compute-optimal model of the budget, or of the FLOPs of the run."""
    flops = run.asked.budget_flops
    if flops is None and tokens:
        flops = six_nd(run.active_params, tokens)
    return chinchilla(run.active_params, flops) if flops else None


def straggler_price(run: PlannedRun, hours: float | None) -> StragglerPrice:
    """Return the price of slow GPUs, since every step waits for the slowest.

    Of n GPUs whose compute times are normally distributed, the slowest is expected at
    the quantile (n - 0.375) / (n + 0.25) (Blom 1958, equation 6.10.3). `hours` is the
    length of the run, None if it is not known.
    """
    asked, gpus = run.asked.straggler, run.plan.world_size
    one_slow_s = asked.slowdown * run.compute_s
    slowest = NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25)) if gpus > 1 else 0.0
    more_hours = hours * one_slow_s / run.priced.step_s if hours else None
    return StragglerPrice(
        slowdown=asked.slowdown,
        one_slow_s=one_slow_s,
        one_slow_usd=run.usd(more_hours),
        jitter=asked.jitter,
        jitter_s=asked.jitter * slowest * run.compute_s,
    )


DAY_S = 86_400.0

FLOPS_PER_PARAM_AND_TOKEN = 6
"""Two forward, four backward (Kaplan et al. 2020, section 2.1)."""

TOKENS_PER_PARAM = 20
"""Hoffmann et al. 2022 (Chinchilla), table 3: 20 to 21 for 10B to 175B parameters."""


def six_nd(params: float, tokens: float) -> float:
    """Return the model FLOPs of a run by C = 6 N D."""
    return FLOPS_PER_PARAM_AND_TOKEN * params * tokens


def affordable_tokens(params: float, flops: float) -> float:
    """Return the number of tokens on which a budget of FLOPs trains a model."""
    return flops / (FLOPS_PER_PARAM_AND_TOKEN * params)


def chinchilla(params: float, flops: float) -> Chinchilla:
    """Return the compute-optimal model of a budget, and how far a model is from it.

    C = 6 N D with D = 20 N gives N = sqrt(C / 120).
    """
    best_params = math.sqrt(flops / (FLOPS_PER_PARAM_AND_TOKEN * TOKENS_PER_PARAM))
    best_tokens = TOKENS_PER_PARAM * best_params
    tokens = affordable_tokens(params, flops)
    return Chinchilla(
        budget_flops=flops,
        params=best_params,
        tokens=best_tokens,
        overtrained=tokens / best_tokens,
        tokens_per_param=tokens / params,
    )
