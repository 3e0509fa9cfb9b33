"""Targets: a plan as the files of one, with those that start it on every host."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

from meshwright.errors import SpecError
from meshwright.exports import LAUNCHERS, TARGETS
from meshwright.exports.files import (
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


def listed(numbers: list[int]) -> str:
    """Return numbers as text, one for all of them where they are equal."""
    return ", ".join(map(str, numbers if len({*numbers}) > 1 else numbers[:1]))


def recomputed_text(plan: Plan) -> str:
    """Return how many layers of each stage are recomputed, in words."""
    return f"{listed(recomputed_layers(plan))} of {listed(layers(plan))} layers"


def all_or_no_layers(plan: Plan, check: str) -> Iterator[Refusal]:
    """Yield what of a plan's recomputation is not of every whole layer, or of none."""
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


_SRUN = """#!/usr/bin/env bash
#SBATCH --job-name=meshwright
#SBATCH --nodes={hosts}
#SBATCH --ntasks-per-node={per_host}
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive
# Start it: sbatch srun.sh, or bash srun.sh in an allocation; account, partition and
# time are yours, as options of sbatch. The file `hosts` has {what};
# names in it that are not in the allocation stand for its hosts in Slurm's order.
set -euo pipefail
folder="$(dirname "${{BASH_SOURCE[0]}}")"
if [[ ! -f "$folder/launch.sh" ]]; then  # sbatch runs a copy of this file elsewhere
  folder="${{SLURM_SUBMIT_DIR:?start it from its folder}}"
fi
cd "$folder"
names="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | xargs)"
export SLURM_HOSTFILE="$PWD/hosts.$SLURM_JOB_ID"  # srun places tasks by its lines
awk -v names="$names" '
  BEGIN {{ n = split(names, given, " "); for (i = 1; i <= n; i++) is_given[given[i]] }}
  !($1 in host) {{ host[$1] = $1 in is_given ? $1 : given[++used] }}
  {{ print host[$1] }}' hosts > "$SLURM_HOSTFILE"
MASTER_ADDR="$(head -n 1 "$SLURM_HOSTFILE")"
export MASTER_ADDR MASTER_PORT={port}
srun --ntasks {tasks} --distribution arbitrary --gpus-per-node {gpus} \\
  --cpus-per-task "$((SLURM_CPUS_ON_NODE / {per_host}))" \\
  bash -c '{variables} exec bash launch.sh "$@"' launch "$@"
"""


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
    srun = _SRUN.format(
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


_POD = """      replicas: {replicas}
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: pytorch  # the name that the operator looks for
              image: YOUR_IMAGE  # with the framework of launch.sh
              command:
                - bash
                - -c
                - >-
                  cp -rL /plan /tmp/plan && cd /tmp/plan &&
                  NODE_RANK="${{PET_NODE_RANK:-$RANK}}" exec bash launch.sh
              resources:
                limits: {{{resource}: {gpus}}}
              volumeMounts:
                - {{name: plan, mountPath: /plan}}
                - {{name: shared-memory, mountPath: /dev/shm}}
          volumes:
            - name: plan
              configMap: {{name: meshwright-plan}}
            - name: shared-memory
              emptyDir: {{medium: Memory}}
"""

_JOB = """# A PyTorchJob of Kubeflow's training operator. Once, in this folder:
#   kubectl create configmap meshwright-plan --from-file=.
#   kubectl create -f job.yaml
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  generateName: meshwright-
  labels:
    kueue.x-k8s.io/queue-name: user-queue  # yours; without Kueue it has no effect
spec:
  runPolicy: {{cleanPodPolicy: None}}  # pods stay, for their logs
  nprocPerNode: "{gpus}"
  pytorchReplicaSpecs:
    Master:
{master}"""

_WORKERS = """    Worker:
{workers}"""


def _kubernetes(cluster: Cluster, seats: Seats) -> str:
    gpus, hosts = seats.counts[0], len(seats.hosts)
    is_amd = accelerator(cluster).startswith("MI")
    resource = "amd.com/gpu" if is_amd else "nvidia.com/gpu"

    def pod(replicas: int) -> str:
        return _POD.format(replicas=replicas, resource=resource, gpus=gpus)

    text = _JOB.format(gpus=gpus, master=pod(1))
    return text + (_WORKERS.format(workers=pod(hosts - 1)) if hosts > 1 else "")


_SKY = """# A task of SkyPilot: sky launch sky.yaml
name: meshwright
num_nodes: {hosts}
resources:
  accelerators: {accelerator}:{gpus}
workdir: .
setup: |
  echo "install the framework of launch.sh here"
run: |
  export MASTER_ADDR="$(head -n 1 <<< "$SKYPILOT_NODE_IPS")"
  NODE_RANK="$SKYPILOT_NODE_RANK" exec bash launch.sh
"""


def _skypilot(cluster: Cluster, seats: Seats) -> str:
    gpus, hosts = seats.counts[0], len(seats.hosts)
    return _SKY.format(hosts=hosts, accelerator=accelerator(cluster), gpus=gpus)


_GPU = re.compile(r"((?:rtx-)?(?:pro-)?[a-z]+\d+[a-z]*)(?:-[a-z]+)?(?:-(\d+gb))?")


def accelerator(cluster: Cluster) -> str:
    """Return a GPU as SkyPilot names it: `H100`, `A100-80GB`, `RTX4090`."""
    name = cluster.topology.gpu.name.lower()
    found = _GPU.match(name)
    short = (found[1] if found else name).replace("-", "").upper()
    has_sizes = short == "A100" and found is not None and found[2] == "80gb"
    return f"{short}-80GB" if has_sizes else short
