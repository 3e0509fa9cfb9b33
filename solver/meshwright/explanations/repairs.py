"""Repairs: edits after which a plan exists, each solved again, with its price.

What to give up of the plan follows from the conflict. All other edits are found by the
functions of `TABLE`: each yields the least of its kind with which a plan exists.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import combinations
from typing import NamedTuple, get_args

from pydantic import ValidationError

from meshwright import catalog
from meshwright.explanations.conflict import HasPlan, Infeasibility
from meshwright.explanations.decisions import (
    HOST_MEMORY,
    MEMORY,
    edit_to_plan,
    keeps_stages,
    with_count,
    with_memory,
    with_scale_out,
    with_topology,
    without_decisions,
)
from meshwright.explanations.levers import is_valid, lever_sets
from meshwright.frameworks.base.registry import framework_of
from meshwright.loading.load import load_gpu
from meshwright.results.outcome import Outcome
from meshwright.results.outcome_parts import Changes, Repair
from meshwright.results.priced_plan import PricedPlan
from meshwright.spec.base import MOST_RISK
from meshwright.spec.gpu import Gpu
from meshwright.spec.spec import Spec, with_risk
from meshwright.spec.topology import Host, ScaleOut
from meshwright.spec.training import Lora

Solve = Callable[[Spec], Outcome]


class Edited(NamedTuple):
    """A spec after some edits, and what kind of change they are."""

    edits: tuple[str, ...]
    spec: Spec
    changes: Changes
    note: str | Callable[[PricedPlan], str] = ""
    """A remark on the edits, which may depend on the best plan then."""


Find = Callable[[Spec, float | None, HasPlan], Iterator[Edited]]
"""Finds the repairs of one kind."""

CHANGES: tuple[Changes, ...] = get_args(Changes)
"""Kinds of repairs, in the order of what they ask of a person."""

MOST_GIVEN_UP = 2
"""Most decisions given up together where the correction sets are not all known."""

SIZES_GIB = (
    *(32, 64, 96, 128, 192, 256, 384, 512, 768),
    *(1024, 1536, 2048, 3072, 4096),
)
"""Memory that hosts are sold with: modules of 16 to 128 GB, 2 to 32 of them."""

HOST_GB_S = 200.0
"""Bandwidth of the host that is assumed where the spec names none: eight channels of
DDR4-3200 (JEDEC JESD79-4)."""

OTHER_SOFTWARE = {"mi": r"mi\d", "gaudi": "gaudi"}
"""Forms of GPUs that do not run CUDA, AMD's and Intel's, and how their names start."""

TIMES = (2, 4, 8, 16)
"""Multiples of the cluster's machines that are tried."""

MOST_COUNTED = 32
"""Largest number of machines below which every number is tried."""

NIC = ScaleOut(name="nic", gb_s=12.5, latency_us=2.5, uplink="shared")
"""The network assumed for machines without one: an adapter of 100 Gbit/s on each host,
with the latency of `topologies/a100-pod-100g.yaml`."""


def repairs(
    spec: Spec,
    needed_gib: float | None,
    solve: Solve,
    has_plan: HasPlan,
    table: Iterable[Find] | None = None,
) -> Iterator[Repair]:
    """Yield the repairs of a table, which change more than the plan.

    `needed_gib` is what the plan that comes closest needs on its fullest GPU. The table
    is that of memory if there is none.
    """
    for find in TABLE if table is None else table:
        for found in find(spec, needed_gib, has_plan):
            best = solve(found.spec).best
            if best is not None:
                told = found.note if isinstance(found.note, str) else found.note(best)
                yield unpriced_repair(found.edits, best, found.changes, told)


def plan_repairs(
    spec: Spec,
    infeasibility: Infeasibility,
    solve: Solve,
    keep: Iterable[str] = (),
) -> list[Repair]:
    """Return the repairs that give up the fewest decisions, the shortest step first.

    Every set of that many decisions is tried, except those that leave the conflict
    whole. Capacities are not given up here; see `hardware_repairs`. Neither are the
    decisions to `keep`.
    """
    decisions = infeasibility.decisions
    kept = decisions.bits([MEMORY, HOST_MEMORY, *keep])
    for sets in _sets_to_give_up(infeasibility, kept):
        found = []
        for names in map(decisions.names_of, sets):
            best = solve(without_decisions(spec, names)).best
            if best is not None:
                edits = tuple(
                    edit_to_plan(spec, name, best.plan)
                    for name in names
                    if not keeps_stages(spec, name, best.plan)
                )
                found.append(unpriced_repair(edits, best))
        if found:
            return sorted(found, key=lambda repair: repair.step_s)
    return []


def _sets_to_give_up(infeasibility: Infeasibility, kept: int) -> Iterator[list[int]]:
    """Yield lists of sets of decisions to give up; a list has the sets of one size."""
    decisions = infeasibility.decisions
    known = [bits for bits in infeasibility.correction_sets if not bits & kept]
    sizes = sorted({bits.bit_count() for bits in known})
    by_size = {n: [bits for bits in known if bits.bit_count() == n] for n in sizes}
    if infeasibility.is_complete:
        yield from by_size.values()
        return
    names = decisions.names_of(~kept)
    for size in range(1, MOST_GIVEN_UP + 1):
        sets = [decisions.bits(chosen) for chosen in combinations(names, size)]
        yield [bits for bits in sets if bits & infeasibility.conflict]
    yield from (sets for n, sets in by_size.items() if n > MOST_GIVEN_UP)


def unpriced_repair(
    edits: Iterable[str], best: PricedPlan, changes: Changes = "plan", note: str = ""
) -> Repair:
    """Return a repair with its best plan; `with_prices` sets its price later."""
    return Repair(
        edits=tuple(edits),
        changes=changes,
        note=note,
        step_s=best.step_s,
        plan=best.plan,
    )


def with_prices(repairs: list[Repair], best_s: float | None) -> list[Repair]:
    """Return the repairs with their prices, the cheapest first.

    Kinds come in the order of `CHANGES`. Among repairs of the same kind fewer edits
    come first, then the shorter step. `best_s` is the step time of the spec's fastest
    plan, if any. Training adapters alone is other work: it is no price to compare with.
    """
    alike = [one for one in repairs if one.changes != "adapters"] or repairs
    least_s = best_s or min((repair.step_s for repair in alike), default=0.0)
    against = "the fastest plan" if best_s else "the fastest repair"

    def cost(repair: Repair) -> tuple[int, int, float]:
        return CHANGES.index(repair.changes), len(repair.edits), repair.step_s

    return [
        repair.model_copy(
            update={"price": repair.step_s / least_s - 1, "against": against}
        )
        for repair in sorted(repairs, key=cost)
    ]


def larger_gpus(present: Gpu) -> Iterator[Gpu]:
    """Yield the bundled GPUs with more memory that fit the same socket.

    Those of the same family come first, then those that are not slower, each the
    smallest first. None replaces a GPU that shares its memory with a CPU.
    """
    if present.shares_memory:
        return
    names = catalog.names("topologies/gpus")
    built = form(present.name)
    if present.name in names or built in OTHER_SOFTWARE:
        names = [name for name in names if form(name) == built]
    else:
        # A name that is not bundled does not tell how the GPU is built into a host.
        names = [name for name in names if form(name) not in OTHER_SOFTWARE]
    family = present.name.partition("-")[0]

    def rank(gpu: Gpu) -> tuple[bool, bool, float]:
        is_relative = gpu.name.partition("-")[0] == family
        return not is_relative, is_slower(gpu, present), gpu.memory_gib

    others = [_bundled(name) for name in names if name != present.name]
    parts = [gpu for gpu in others if not gpu.shares_memory]
    larger = [gpu for gpu in parts if gpu.memory_gib > present.memory_gib]
    yield from sorted(larger, key=rank)


def is_slower(gpu: Gpu, than: Gpu) -> bool:
    """Return whether a GPU has a lower peak in a precision that both have."""
    ours, other = dict(gpu.peak_tflops), dict(than.peak_tflops)
    return any(ours[name] < other[name] for name in ours if ours[name] and other[name])


def form(name: str) -> str:
    """Return how a bundled GPU is built into a host: as a card, or on which board.

    Boards of AMD and of Intel take no GPUs of others, nor do frameworks run on all.
    """
    if "-sxm" in name:
        return "sxm"
    for other, start in OTHER_SOFTWARE.items():
        if re.match(start, name):
            return other
    return "superchip" if name.startswith("gb") else "card"


@cache
def _bundled(name: str) -> Gpu:
    return load_gpu("topologies/gpus", name)


class _Growth(NamedTuple):
    """A field that counts machines, with the spec at any other count."""

    field: str
    now: int
    at: Callable[[int], Spec]
    beside: tuple[str, ...] = ()
    """Edits that more machines need beside their count."""
    note: str = ""


def _growth(spec: Spec) -> _Growth | None:
    """Return how to add hosts to a cluster; None where no field counts them.

    No host gets more GPUs than it has.
    """
    cluster, topology = spec.cluster, spec.cluster.topology
    if topology.scale_out is not None:
        return _Growth("cluster.count", cluster.count, partial(with_count, spec))
    if not cluster.is_tree:
        return None
    if cluster.gpus > cluster.gpus_per_host:
        return _level_growth(spec)
    nic = f"{{name: {NIC.name}, gb_s: {NIC.gb_s:g}, latency_us: {NIC.latency_us:g}, "
    scale_out = f"cluster.topology.scale_out: null -> {nic}uplink: {NIC.uplink}}}"
    return _Growth(
        "cluster.count",
        1,
        partial(with_scale_out, spec, NIC),
        (scale_out,),
        "; a 100 Gbit/s adapter on each host is assumed",
    )


def _level_growth(spec: Spec) -> _Growth:
    """Return how to add hosts to the outermost level of a topology."""
    topology = spec.cluster.topology
    last = topology.levels[-1]

    def at(size: int) -> Spec:
        levels = (*topology.levels[:-1], last.model_copy(update={"size": size}))
        return with_topology(spec, topology.model_copy(update={"levels": levels}))

    index = len(topology.levels) - 1
    return _Growth(f"cluster.topology.levels[{index}].size", last.size, at)


def lighter_training(
    spec: Spec, _needed_gib: float | None, has_plan: HasPlan
) -> Iterator[Edited]:
    """Yield the smallest sets of switches of the framework that are enough."""
    for levers in lever_sets(spec, has_plan):
        is_exact = all(one.lever.numbers == "nothing" for one in levers)
        edits = tuple(one.edit for one in levers)
        notes = [one.note if len(levers) == 1 else one.told for one in levers]
        changes: Changes = "flag" if is_exact else "training"
        yield Edited(edits, levers[-1].spec, changes, "; ".join(notes))


def more_machines(
    spec: Spec, _needed_gib: float | None, has_plan: HasPlan
) -> Iterator[Edited]:
    """Yield the fewest machines of the same kind, if more of them allow a plan.

    Multiples of the machines are tried first; where the first that is enough is small,
    every number below it is tried too.
    """
    growth = None if spec.cluster.parts else _growth(spec)
    if growth is None:
        return

    def is_enough(count: int) -> bool:
        try:
            return has_plan(growth.at(count))
        except ValidationError:
            return False  # Hosts do not divide that many GPUs.

    now = growth.now
    enough = next(filter(is_enough, (now * times for times in TIMES)), None)
    if enough is None:
        return
    is_counted = enough <= MOST_COUNTED
    if is_counted:
        enough = next(filter(is_enough, range(now + 1, enough)), enough)
    larger = growth.at(enough)
    gpus = f"{larger.cluster.gpus:,} GPUs of this kind"
    each = larger.cluster.gpus // larger.cluster.count
    if growth.field == "cluster.count" and each > 1:  # A spec may count GPUs alone.
        gpus += f", {each:,} in each machine"
    note = f"needs at least {gpus}" if is_counted else gpus
    edits = (*growth.beside, f"{growth.field}: {now} -> {enough}")
    yield Edited(edits, larger, "machines", note + growth.note)


def other_batch(
    spec: Spec, _needed_gib: float | None, has_plan: HasPlan
) -> Iterator[Edited]:
    """Yield the nearest batch that all GPUs divide, if it allows a plan."""
    gpus, now = spec.cluster.gpus, spec.training.global_batch
    less = now // gpus * gpus
    for batch in sorted({less, less + gpus}, key=lambda batch: abs(batch - now)):
        changed = spec.having("training", global_batch=batch) if batch else spec
        if batch not in (0, now) and has_plan(changed):
            edit = f"training.global_batch: {now} -> {batch}"
            yield Edited((edit,), changed, "training", "other steps of training")
            return


def fewer_machines(
    spec: Spec, _needed_gib: float | None, has_plan: HasPlan
) -> Iterator[Edited]:
    """Yield the most machines, fewer than there are, that allow a plan."""
    growth = None if spec.cluster.parts else _growth(spec)
    if growth is None:
        return
    for count in range(growth.now - 1, max(0, growth.now - 1 - MOST_COUNTED), -1):
        try:
            fewer = growth.at(count)
        except ValidationError:
            continue  # Hosts do not divide that many GPUs.
        if has_plan(fewer):
            edit = f"{growth.field}: {growth.now} -> {count}"
            note = f"{fewer.cluster.gpus:,} of the {spec.cluster.gpus:,} GPUs"
            yield Edited((edit,), fewer, "machines", note)
            return


def larger_gpu(
    spec: Spec, _needed_gib: float | None, has_plan: HasPlan
) -> Iterator[Edited]:
    """Yield the smallest bundled GPU with more memory, first of the same family.

    It has the same form: a PCIe card does not fit on an NVLink board, nor a board
    module into a slot.
    """
    present = spec.cluster.topology.gpu
    if spec.limits.memory_gib is not None or spec.cluster.parts:
        return
    for gpu in larger_gpus(present):
        if not set(spec.training.precisions) <= set(gpu.peak_tflops.known):
            continue
        topology = spec.cluster.topology.model_copy(update={"gpu": gpu})
        changed = with_topology(spec, topology)
        if has_plan(changed):
            edit = f"cluster.topology.gpu: {present.name} -> {gpu.name}"
            note = f"{gpu.memory_gib:.0f} GiB of memory, on the same links"
            yield Edited((edit,), changed, "hardware", note)
            return


def larger_host(
    spec: Spec, _needed_gib: float | None, has_plan: HasPlan
) -> Iterator[Edited]:
    """Yield the host with the least memory that allows a plan by offloading.

    Where the spec names no host, one is assumed behind the GPU's port.
    """
    topology, to_cpu = spec.cluster.topology, spec.training.offload_to == "cpu"
    if spec.cluster.parts or not framework_of(spec).offloads or not to_cpu:
        return
    host, pcie_gb_s = topology.host, topology.gpu.pcie_gb_s
    if topology.gpu.shares_memory or (host is None and pcie_gb_s is None):
        return
    assumed = host or Host(memory_gib=1, pcie_gb_s=pcie_gb_s, memory_gb_s=HOST_GB_S)

    def on(gib: int) -> Spec:
        sized = assumed.model_copy(update={"memory_gib": float(gib)})
        return with_topology(spec, topology.model_copy(update={"host": sized}))

    sizes = [gib for gib in SIZES_GIB if gib > assumed.memory_gib]
    if not sizes or not has_plan(on(sizes[-1])):
        return
    gib = next(size for size in sizes if has_plan(on(size)))
    if host is not None:
        edit = f"cluster.topology.host.memory_gib: {host.memory_gib:g} -> {gib}"
    else:
        edit = (
            f"cluster.topology.host: null -> {{memory_gib: {gib}, pcie_gb_s: "
            f"{pcie_gb_s:g}, memory_gb_s: {HOST_GB_S:g}}}"
        )
    beside = "" if host else "; the bandwidths are assumed"

    def note(best: PricedPlan) -> str:
        return f"offloads {best.plan.offload}{beside}"

    yield Edited((edit,), on(gib), "hardware", note)


def adapters_alone(
    spec: Spec, needed_gib: float | None, has_plan: HasPlan
) -> Iterator[Edited]:
    """Yield LoRA, in 16 bits or else in 4, where training all weights has no memory."""
    formats = framework_of(spec).frozen_weights
    if needed_gib is None or spec.training.lora is not None:
        return
    for weights, value in (("bf16", "{rank: 16}"), ("nf4", "{rank: 16, weights: nf4}")):
        changed = spec.having("training", lora=Lora(weights=weights))
        if weights in formats and is_valid(changed) and has_plan(changed):
            edit = f"training.lora: null -> {value}"
            told = "trains adapters alone, the weights stay as they are"
            yield Edited((edit,), changed, "adapters", told)
            return


def less_safety(
    spec: Spec, needed_gib: float | None, _has_plan: HasPlan
) -> Iterator[Edited]:
    """Yield the risk, or the limit, at which the closest plan fits, if it may."""
    if needed_gib is None or needed_gib <= spec.usable_gib or spec.cluster.parts:
        return
    fits = spec.fit_probability(needed_gib)
    note = f"the plan that comes closest fits with probability {fits:.2f}"
    if spec.limits.is_by_risk:
        oom_risk = math.ceil((1 - fits) * 100) / 100
        if oom_risk <= MOST_RISK:
            edit = f"limits.oom_risk: {spec.limits.risk:g} -> {oom_risk:g}"
            yield Edited((edit,), with_risk(spec, oom_risk), "safety", note)
        return
    enough_gib = math.ceil(needed_gib * 100) / 100
    if enough_gib <= spec.cluster.topology.gpu.memory_gib:
        edit = f"limits.memory_gib: {spec.usable_gib:.2f} -> {enough_gib}"
        yield Edited((edit,), with_memory(spec, enough_gib), "safety", note)


TABLE: tuple[Find, ...] = (
    lighter_training,
    more_machines,
    larger_gpu,
    larger_host,
    adapters_alone,
    less_safety,
)
"""Fields of a spec that may be edited beside the plan."""

OF_NUMBERS: tuple[Find, ...] = (other_batch, fewer_machines)
"""The same where numbers do not divide each other."""
