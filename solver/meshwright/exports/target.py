"""Targets: a plan as the files of one, with those that start it on every host."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

from meshwright.errors import SpecError
from meshwright.exports import LAUNCHERS, TARGETS
from meshwright.exports.files import (
    TEXTS,
    Export,
    ExportedFile,
    NotLaunchableError,
    Refusal,
    rule_refusals,
)
from meshwright.exports.launch import MASTER_PORT, Seats
from meshwright.plans.plan import Plan
from meshwright.plans.ranks import RankMap, rank_map, rankfile, ranks_csv
from meshwright.spec.cluster import Cluster
from meshwright.spec.spec import Spec


@dataclass(frozen=True)
class Target:
    """One program that plans are written for."""

    title: str
    version: str
    """Name and version of the packages whose checks accept the files."""
    framework: str
    """The framework whose plans it launches, by the name that specs give it."""
    refusals: Callable[[Spec, Plan], Iterator[Refusal]]
    """Yields what of a plan the program cannot be told."""
    files: Callable[[Spec, Plan], list[ExportedFile]]
    """Writes a plan that is not refused."""
    also: tuple[str, ...] = ()
    """Other frameworks whose plans it launches."""
    is_by_ray: bool = False
    """Whether Ray starts its ranks, so that no launcher does."""


def target(name: str) -> Target:
    """Return the target of a name."""
    if name not in TARGETS:
        known = ", ".join(TARGETS)
        raise SpecError(f"to: {name!r} is no target; accepted: {known}")
    module = import_module(f"meshwright.exports.{_MODULES.get(name, name)}")
    found = module.TARGETS[name] if hasattr(module, "TARGETS") else module.TARGET
    assert isinstance(found, Target)
    return found


_MODULES = {
    "megatron-bridge": "megatron_bridge",
    **dict.fromkeys(("axolotl", "llama-factory", "trl"), "hf_trainers"),
    **dict.fromkeys(("verl", "slime"), "reinforcement"),
}
"""The modules of targets, where they have other names."""


def target_of(framework: str) -> str:
    """Return the target that plans of a framework are written for unless told."""
    for name in TARGETS:
        if target(name).framework == framework:
            return name
    frameworks = ", ".join(dict.fromkeys(target(name).framework for name in TARGETS))
    sentence = f"plans of {framework} cannot be exported; those of {frameworks} can"
    raise SpecError(f"framework: {sentence}")


def export_plan(
    spec: Spec, plan: Plan, to: str, launcher: str = LAUNCHERS[0]
) -> Export:
    """Return a plan as files, with those of a launcher.

    Raises:
        NotLaunchableError: the target cannot be told all of the plan.
        SpecError: the plan is one of another framework.
    """
    if launcher not in LAUNCHERS:
        known = ", ".join(LAUNCHERS)
        raise SpecError(f"launcher: {launcher!r} is none; accepted: {known}")
    program, ranks = _target_for(spec, to), rank_map(spec.cluster, plan)
    refused = [*rule_refusals(spec, plan), *program.refusals(spec, plan)]
    if program.is_by_ray and launcher != LAUNCHERS[0]:
        raise SpecError(f"launcher: {launcher}; {program.title} starts ranks by Ray")
    if refused := [*refused, *launcher_refusals(ranks, launcher)]:
        raise NotLaunchableError(program.title, refused)
    files = tuple(program.files(spec, plan))
    exported = Export(target=to, version=program.version, files=files)
    if program.is_by_ray:
        return exported
    return with_launcher(exported, spec, ranks, launcher)


def _target_for(spec: Spec, to: str) -> Target:
    launcher = target(to)
    accepted = (launcher.framework, *launcher.also)
    if spec.framework not in accepted:
        sentence = f"launches plans of {' and '.join(accepted)}, and the spec's are of "
        raise SpecError(f"to: {to} {sentence}{spec.framework}")
    return launcher


def recomputed_layers(plan: Plan) -> list[int]:
    """Return the recomputed layers of each stage."""
    return [stage.recompute_layers for stage in plan.stages]


def layers(plan: Plan) -> list[int]:
    """Return the layers of each stage."""
    return [stage.layers for stage in plan.stages]


def rounds_text(plan: Plan) -> str:
    """Return how many micro-batches a step has, in words."""
    many = "es" * (plan.microbatches > 1)
    return f"{plan.microbatches:,} micro-batch{many} per step"


def listed(numbers: list[int]) -> str:
    """Return numbers as text, one for all of them where they are equal."""
    return ", ".join(map(str, numbers if len({*numbers}) > 1 else numbers[:1]))


def recomputed_text(plan: Plan) -> str:
    """Return how many layers of each stage are recomputed, in words."""
    return f"{listed(recomputed_layers(plan))} of {listed(layers(plan))} layers"


def all_or_no_layers(plan: Plan, check: str) -> Iterator[Refusal]:
    """Yield a refusal unless a plan recomputes every whole layer, or none."""
    if plan.recompute == "selective":
        sentence = f"selective on {recomputed_text(plan)}: it recomputes whole layers"
        yield Refusal("recompute", sentence, check)
    elif plan.recomputes_some_layers:
        text = recomputed_text(plan)
        sentence = f"full on {text}: it recomputes every layer, or none"
        yield Refusal("recompute", sentence, check)


def with_launcher(exported: Export, spec: Spec, ranks: RankMap, name: str) -> Export:
    """Return an export with the files of a launcher.

    `torchrun` is the one that a person starts on every host; of several hosts it has
    what Slurm needs, too.
    """
    seats = Seats(ranks)
    more: list[ExportedFile] = []
    if name == "sbatch" or (name == "torchrun" and len(seats.hosts) > 1):
        more = _slurm_files(seats)
    elif name == "kubernetes":
        more = [ExportedFile(name="job.yaml", text=_kubernetes(spec.cluster, seats))]
    elif name == "skypilot":
        more = [ExportedFile(name="sky.yaml", text=_skypilot(spec.cluster, seats))]
    return exported.model_copy(update={"files": (*exported.files, *more)})


def launcher_refusals(ranks: RankMap, name: str) -> Iterator[Refusal]:
    """Yield where ranks cannot be placed as a plan wants them."""
    if name in ("kubernetes", "skypilot") and not Seats(ranks).is_in_order:
        sentence = f"does not fill equal hosts one after the other, as {name} does"
        yield Refusal("mesh", sentence, "Meshwright's exports: use --launcher sbatch")


_RANK = "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID"

_NODE = (
    "NODE_RANK=$(awk -v n=$((SLURM_PROCID + 1)) "
    '"!(\\$1 in at) {at[\\$1] = k++} NR == n {print at[\\$1]}" hosts)'
)
"""The place of a rank's host among the hosts."""


def _slurm_files(seats: Seats) -> list[ExportedFile]:
    """Return the script of a batch job, and the hosts of its tasks."""
    ranks = seats.ranks
    if seats.is_in_order:
        names, per_host, what = seats.hosts, 1, "a host per line"
        variables = "NODE_RANK=$SLURM_PROCID"
    else:
        names = [ranks.hosts[host] for host in ranks.host.tolist()]
        per_host, what = max(seats.counts), "the host of each rank"
        variables = _RANK if seats.has_plain_devices else f"{_RANK} {_NODE}"
    srun = TEXTS["srun"].format(
        hosts=len(seats.hosts),
        per_host=per_host,
        gpus=max(seats.counts),
        what=what,
        port=MASTER_PORT,
        tasks=len(names),
        variables=variables,
    )
    files = {"srun.sh": srun, "hosts": "".join(f"{name}\n" for name in names)}
    if not seats.is_in_order:
        files |= {"ranks.csv": ranks_csv(ranks), "rankfile": rankfile(ranks)}
    return [ExportedFile(name=name, text=text) for name, text in files.items()]


def _kubernetes(cluster: Cluster, seats: Seats) -> str:
    gpus, hosts = seats.counts[0], len(seats.hosts)
    is_amd = accelerator(cluster).startswith("MI")
    resource = "amd.com/gpu" if is_amd else "nvidia.com/gpu"

    def pod(replicas: int) -> str:
        return TEXTS["pod"].format(replicas=replicas, resource=resource, gpus=gpus)

    text = TEXTS["job"].format(gpus=gpus, master=pod(1))
    return text + (TEXTS["workers"].format(workers=pod(hosts - 1)) if hosts > 1 else "")


def _skypilot(cluster: Cluster, seats: Seats) -> str:
    gpus, hosts = seats.counts[0], len(seats.hosts)
    return TEXTS["sky"].format(hosts=hosts, accelerator=accelerator(cluster), gpus=gpus)


_GPU = re.compile(r"((?:rtx-)?(?:pro-)?[a-z]+\d+[a-z]*)(?:-[a-z]+)?(?:-(\d+gb))?")


def accelerator(cluster: Cluster) -> str:
    """Return a GPU as SkyPilot names it: `H100`, `A100-80GB`, `RTX4090`."""
    name = cluster.topology.gpu.name.lower()
    found = _GPU.match(name)
    short = (found[1] if found else name).replace("-", "").upper()
    has_sizes = short == "A100" and found is not None and found[2] == "80gb"
    return f"{short}-80GB" if has_sizes else short
