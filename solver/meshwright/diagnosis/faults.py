"""The faults that a run may have, each as the job that would run with it.

A fault is a change of the spec, of the plan, or of a few factors on what hosts and GPUs
do, so that it is priced as any plan is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from meshwright.calibration.responses import DEPARTURE, RARE
from meshwright.explanations.decisions import with_topology
from meshwright.frameworks.base.framework import Setting
from meshwright.frameworks.base.registry import framework_of
from meshwright.frameworks.base.switches import SWITCH, SWITCHES, Switch
from meshwright.imports.logs.training_log import PartOf, TrainingLog
from meshwright.plans.plan import Plan
from meshwright.results.diagnosis import FaultKind
from meshwright.spec.gpu import Precision
from meshwright.spec.spec import Spec
from meshwright.spec.topology import Topology

PartName = Literal[
    "forward", "backward", "forward and backward", "gradients", "gathers", "optimizer",
    "pipeline", "input",
]  # fmt: skip
"""A part of a step that logs time and that we model."""

TIMED: Mapping[PartOf, PartName] = {
    "forward": "forward",
    "backward": "backward",
    "forward and backward": "forward and backward",
    "gradient reduction": "gradients",
    "parameter gather": "gathers",
    "optimizer": "optimizer",
    "pipeline": "pipeline",
    "input": "input",
}
"""Our names of the parts that timers of logs measure; gathers are those of updated
weights, as far as nothing hides them."""


@dataclass(frozen=True)
class Run:
    """A run to diagnose: what it was asked to do, and what its log measured."""

    spec: Spec
    """With the switches of the profile."""
    plan: Plan
    log: TrainingLog
    said: frozenset[str] = frozenset()
    """Switches of `training`, and fields of the plan, that log or launch say."""

    @property
    def step_s(self) -> float:
        """Return the measured seconds of a step.

        Raises:
            ValueError: the log has none.
        """
        if self.log.steps is None:
            raise ValueError("no step was measured")
        return self.log.steps.step_s

    @property
    def parts(self) -> dict[PartName, float]:
        """Return the measured seconds of a step by part, without what others hold."""
        parts: dict[PartName, float] = {}
        for part in self.log.parts:
            if part.of in TIMED:
                name = TIMED[part.of]
                parts[name] = parts.get(name, 0.0) + part.seconds
        if {"forward", "backward"} <= parts.keys():
            parts.pop("forward and backward", None)
        return parts

    @property
    def spread(self) -> float | None:
        """Return the compute of the slowest rank over that of the fastest.

        None where the log does not tell both.
        """
        passes = [part for part in self.log.parts if part.of in ("forward", "backward")]
        fastest = [part.fastest_s for part in passes if part.fastest_s]
        if not fastest or len(fastest) < len(passes):
            return None
        return math.fsum(part.seconds for part in passes) / math.fsum(fastest)


@dataclass(frozen=True)
class Case:
    """A run with one fault of one size, as a job that can be priced."""

    size: str
    """How large the fault is, as '1/2 of its rate'; empty where it has one size."""
    spec: Spec
    plan: Plan
    host: float = 1.0
    """Factor on the seconds that the host takes."""
    clocks: float = 1.0
    """Factor on the rate of all kernels."""
    slow: float = 1.0
    """Factor on the compute of one node, for which all others wait."""
    waits: float = 0.0
    """Seconds that a step waits for its input, as a share of a step that does not."""


@dataclass(frozen=True, eq=False)
class Fault:
    """One fault, of one of several sizes."""

    name: str
    """As an answer prints it."""
    kind: FaultKind
    prior: float
    source: str
    """Where the prior comes from."""
    cases: tuple[Case, ...]
    key: str
    """Names it in data: the switch, the field of the plan, or a word."""


OURS = "an estimate of ours"

CALIBRATED = "the prior of `meshwright calibrate`"

SAID = 0.02
"""Prior probability that a switch or a field that log or launch say is not in effect:
another option overrules it, or the build lacks it. An estimate."""

SHARES = (1 / 2, 1 / 3, 1 / 6)
"""Shares of their rate at which the network is tried: one of two ports, a bad route,
TCP in the place of RDMA."""

ASTRAY = (1 / 10, 1 / 16, 1 / 25, 1 / 40, 1 / 64, 1 / 100)
"""The same where the traffic takes another interface, of a VPN or of management: NCCL
does so where NCCL_SOCKET_IFNAME names it or nothing else is up."""

INSIDE = (1 / 2, 1 / 4, 1 / 8)
"""Shares of their rate at which links inside a host are tried: half of the NVLinks,
PCIe, copies over host memory."""


def faults(run: Run) -> Iterator[Fault]:
    """Yield the faults that a run may have; sizes of one share its prior."""
    yield from _switch_faults(run)
    yield from _plan_faults(run)
    yield from _network_faults(run)
    yield from _machine_faults(run)


def _switch_faults(run: Run) -> Iterator[Fault]:
    """Yield every other position of every switch that a launch can set."""
    hidden = framework_of(run.spec).always_hides.get(run.plan.zero, ())
    fixed = {"tuned", *(f"overlap.{kind}" for kind in hidden)}
    for switch in SWITCHES:
        now = switch.of(run.spec)
        if switch.name in fixed or now is None:
            continue
        is_said = switch.name in run.said
        prior = SAID if is_said else RARE.get(switch.name, DEPARTURE)
        source = OURS if is_said else CALIBRATED
        for setting in switch.allowed(run.spec):
            if setting != now:
                cases = tuple(_switch_cases(run, switch, setting))
                name = _switch_name(switch, setting)
                yield Fault(name, "switch", prior, source, cases, switch.name)


def _switch_cases(run: Run, switch: Switch, setting: Setting) -> Iterator[Case]:
    """Yield a run with a switch set otherwise; alone, and with one that goes with it.

    Frameworks that hide traffic only if asked to often are asked for neither.
    """
    spec = switch.at(run.spec, setting)
    yield Case("", spec, run.plan)
    beside = SWITCH["overlap.parameters"]
    if switch.name == "overlap.gradients" and not setting and beside.of(spec):
        yield Case("nor weights", beside.at(spec, False), run.plan)


_OFF = {
    "overlap.gradients": "gradients do not hide behind the backward",
    "overlap.parameters": "gathers of weights do not hide behind compute",
    "overlap.tp": "tensor-parallel messages do not hide behind matmuls",
    "overlap.ep": "messages of experts do not hide behind compute",
    "overlap.pp": "sends between stages do not hide behind compute",
    "fused.norm": "norms are several kernels",
    "fused.rope": "rotary positions are several kernels",
    "fused.activation": "gated activations are several kernels",
    "fused.softmax": "the softmax of attention is several kernels",
    "fused.loss": "the loss is not fused",
    "fused.dropout": "dropout is several kernels",
    "compile": "the model is not compiled",
    "cuda_graphs": "no CUDA graphs",
    "loss_parallel": "the loss is not parallel over the vocabulary",
}
"""The meaning of a switch that is off."""


def _switch_name(switch: Switch, setting: Setting) -> str:
    """Return what a switch in a position means."""
    if setting is False and switch.name in _OFF:
        return _OFF[switch.name]
    if switch.name == "attention":
        return f"attention is {setting}, not a fused kernel"
    return f"training.{switch.name} is {str(setting).lower()}"


def _plan_faults(run: Run) -> Iterator[Fault]:
    """Yield the fields of a plan whose values people often have wrong."""
    plan, spec = run.plan, run.spec
    if not plan.repeats_layers:
        yield _plan_fault(
            run, "recompute", "every layer is recomputed", recomputing(plan, "full")
        )
    if plan.recompute != "none":
        kept = recomputing(plan, "none")
        yield _plan_fault(run, "recompute", "nothing is recomputed", kept)
    smaller = [_with_micro_batch(plan, n) for n in (2, 4) if plan.micro_batch % n == 0]
    if smaller:
        yield _plan_fault(
            run,
            "micro_batch",
            "micro-batches are smaller than told",
            *smaller,
            sizes=[f"{one.micro_batch} of {plan.micro_batch}" for one in smaller],
        )
    if plan.precision in WIDER:
        precision = WIDER[plan.precision]
        if precision in spec.cluster.topology.gpu.peak_tflops.known:
            at = plan.model_copy(update={"precision": precision})
            name = f"matmuls run in {precision}, not {plan.precision}"
            yield _plan_fault(run, "precision", name, at)


WIDER: Mapping[Precision, Precision] = {"bf16": "tf32", "fp16": "tf32", "fp8": "bf16"}
"""The precision in which matmuls run where a launch does not set the one it means."""


def _plan_fault(
    run: Run, field: str, name: str, *plans: Plan, sizes: Iterable[str] = ("",)
) -> Fault:
    is_said = field in run.said
    cases = tuple(
        Case(size, _in_precision(run.spec, plan), plan)
        for size, plan in zip(sizes, plans, strict=True)
    )
    prior, source = (SAID, OURS) if is_said else (DEPARTURE, CALIBRATED)
    return Fault(name, "plan", prior, source, cases, field)


def _in_precision(spec: Spec, plan: Plan) -> Spec:
    if plan.precision in spec.training.precisions:
        return spec
    return spec.at(plan.precision)


def recomputing(plan: Plan, mode: Literal["none", "full"]) -> Plan:
    """Return a plan that recomputes every layer, or none."""
    stages = tuple(
        stage.model_copy(
            update={"recompute_layers": stage.layers if mode == "full" else 0}
        )
        for stage in plan.stages
    )
    plain = {"recompute_modules": "", "recompute_segment": 1}
    return plan.model_copy(update={"recompute": mode, "stages": stages, **plain})


def _with_micro_batch(plan: Plan, part: int) -> Plan:
    """Return a plan whose micro-batches are split into so many parts."""
    update = {
        "micro_batch": plan.micro_batch // part,
        "microbatches": plan.microbatches * part,
    }
    return plan.model_copy(update=update)


SLOW_NETWORK, WRONG_NETWORK, SLOW_BUS, WRONG_SOCKET = 0.1, 0.02, 0.05, 0.05
SLOW_NODE, SLOW_GPUS, SLOW_HOST, SLOW_INPUT = 0.1, 0.05, 0.1, 0.1
"""Prior probabilities of what is wrong with machines. Estimates: of the reports on
large runs, Llama 3's (arXiv 2407.21783, table 5) lays 8 % of its stops to switches and
cables and 59 % to GPUs and their memory, and that of ByteDance (arXiv 2505.05713) finds
four jobs in ten held up by slow ranks."""


def _network_faults(run: Run) -> Iterator[Fault]:
    """Yield links at a share of their rate: between hosts, and inside one."""
    cluster, plan = run.spec.cluster, run.plan
    if cluster.parts:
        return
    is_joined = cluster.gpus > cluster.gpus_per_host
    if is_joined:
        slow = "the network between hosts is slow"
        wrong = "hosts talk over another network: VPN, management"
        for name, shares, prior, key in (
            (slow, SHARES, SLOW_NETWORK, "network"),
            (wrong, ASTRAY, WRONG_NETWORK, "other network"),
        ):
            cases = [
                Case(_part(share), slower_links(run.spec, share), plan)
                for share in shares
            ]
            yield Fault(name, "network", prior, OURS, tuple(cases), key)
    if cluster.gpus_per_host > 1:
        cases = [
            Case(_part(share), slower_links(run.spec, share, is_inside=True), plan)
            for share in INSIDE
        ]
        name = "links inside a host are slow: no NVLink, no P2P"
        yield Fault(name, "network", SLOW_BUS, OURS, tuple(cases), "bus")
    host = cluster.topology.host
    topology = cluster.topology
    if host is not None:
        halves = {
            "pcie_gb_s": host.pcie_gb_s / 2,
            "memory_gb_s": host.memory_gb_s / 2,
        }
        half = host.model_copy(update=halves)
        topology = topology.model_copy(update={"host": half})
    near = with_topology(run.spec, topology)
    far = slower_links(near, 0.6) if is_joined else near
    name = "ranks run on the wrong socket (NUMA)"
    case = Case("", far, plan, host=1.5)
    yield Fault(name, "host", WRONG_SOCKET, OURS, (case,), "numa")


def _part(share: float) -> str:
    return f"1/{round(1 / share)} of its rate"


def slower_links(spec: Spec, share: float, *, is_inside: bool = False) -> Spec:
    """Return a spec whose links between hosts, or inside them, have less bandwidth."""
    return with_topology(spec, _slower(spec, share, is_inside))


def _slower(spec: Spec, share: float, is_inside: bool) -> Topology:
    topology, per_host = spec.cluster.topology, spec.cluster.gpus_per_host
    links = tuple(
        link.model_copy(update={"gb_s": link.gb_s * share}) if is_inside else link
        for link in topology.links
    )
    levels, gpus = [], 1
    for level in topology.levels:
        gpus *= level.size
        is_within = not topology.nodes and gpus <= per_host
        factor = share if is_within == is_inside else 1.0
        levels.append(level.model_copy(update={"gb_s": level.gb_s * factor}))
    out = topology.scale_out
    if out is not None and not is_inside:
        out = out.model_copy(update={"gb_s": out.gb_s * share})
    update = {"links": links, "levels": tuple(levels), "scale_out": out}
    return topology.model_copy(update=update)


CLOCKS = (0.85, 0.7, 0.58, 0.48)
"""Shares of their rate at which all GPUs are tried. A power cap takes some; where the
power brake or the heat limit of the board sets in, clocks fall to half or less (NVIDIA,
nvidia-smi manual, `clocks_event_reasons.hw_slowdown`)."""

HOSTS = (1.5, 2, 2.7, 3.6)
"""Factors on the time of the host, as dense as the errors of a step."""


def _machine_faults(run: Run) -> Iterator[Fault]:
    """Yield what slows down a node, all GPUs, or the host."""
    spec, plan = run.spec, run.plan
    if spec.cluster.gpus > 1:
        cases = [
            Case(f"{slow - 1:.0%} slower", spec, plan, slow=slow)
            for slow in (1.15, 1.3, 1.6)
        ]
        one = "node" if spec.cluster.gpus > spec.cluster.gpus_per_host else "GPU"
        name = f"one {one} is slow, and all others wait for it"
        yield Fault(name, "GPUs", SLOW_NODE, OURS, tuple(cases), "straggler")
    cases = [
        Case(f"at {rate:.0%} of their rate", spec, plan, clocks=rate) for rate in CLOCKS
    ]
    name = "all GPUs are slow: power cap, heat, other jobs"
    yield Fault(name, "GPUs", SLOW_GPUS, OURS, tuple(cases), "clocks")
    cases = [
        Case(f"{factor:g} times as long", spec, plan, host=factor) for factor in HOSTS
    ]
    name = "the host is slow to launch kernels"
    yield Fault(name, "host", SLOW_HOST, OURS, tuple(cases), "host")
    cases = [
        Case(f"{waits:.0%} of the step", spec, plan, waits=waits)
        for waits in (0.15, 0.35, 0.8)
    ]
    name = "steps wait for their input"
    yield Fault(name, "host", SLOW_INPUT, OURS, tuple(cases), "input")
