"""The script that starts a job on its hosts, and the files of hosts beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.escape import printable
from meshwright.exports.files import ExportedFile, Setting, bash_array, bash_exports
from meshwright.plans.plan import Plan
from meshwright.plans.ranks import RankMap, rank_map, rankfile, ranks_csv
from meshwright.spec.cluster import Cluster

MASTER_PORT = 29500
"""PyTorch's default."""

_HEAD = """#!/usr/bin/env bash
# {title}
# {plan}
# {how}
set -euo pipefail
cd "$(dirname "${{BASH_SOURCE[0]}}")"
"""

_ON_ONE_HOST = "Start it on the host: bash launch.sh"
_ON_EACH_HOST = (
    "Start it on every host with NODE_RANK (the host's line in `hosts`, from 0) and "
    "MASTER_ADDR (the first host), or under Slurm: bash srun.sh"
)
_ON_EACH_GPU = (
    "Ranks do not fill hosts one after the other, so each GPU is a task of Slurm: "
    "bash srun.sh"
)

_NODE_RANK = '"${NODE_RANK:?the line of this host in the file hosts, from 0}"'
_MASTER = '"${MASTER_ADDR:?the name of the first host}"'

_SRUN = """#!/usr/bin/env bash
# Put the names of your hosts into `hosts` first, in its order: {what}.
set -euo pipefail
cd "$(dirname "${{BASH_SOURCE[0]}}")"
export SLURM_HOSTFILE="$PWD/hosts"  # srun places tasks by its lines
MASTER_ADDR="$(head -n 1 hosts)"
export MASTER_ADDR MASTER_PORT={port}
srun --ntasks {tasks} --distribution arbitrary \\
  bash -c '{variables} exec bash launch.sh "$@"' launch "$@"
"""


@dataclass(frozen=True)
class Seats:
    """How the ranks of a job are spread over hosts and GPUs."""

    ranks: RankMap

    @property
    def counts(self) -> list[int]:
        """Return the ranks of each host that has any."""
        counts: list[int] = np.bincount(self.ranks.host).tolist()
        return [count for count in counts if count]

    @property
    def is_in_order(self) -> bool:
        """Return whether equal hosts are filled in turn, as torchrun does."""
        host = self.ranks.host
        return len({*self.counts}) == 1 and bool((np.diff(host) >= 0).all())

    @property
    def hosts(self) -> list[str]:
        """Return the names of the hosts in the order of their first ranks."""
        first = dict.fromkeys(self.ranks.host.tolist())
        return [self.ranks.hosts[host] for host in first]

    @property
    def devices(self) -> list[list[int]]:
        """Return the GPUs of each host, by the host's place in `hosts`."""
        first = dict.fromkeys(self.ranks.host.tolist())
        return [self.ranks.devices_of(host) for host in first]

    @property
    def has_plain_devices(self) -> bool:
        """Return whether each host's ranks sit on its GPUs in their own order."""
        return all(gpus == list(range(len(gpus))) for gpus in self.devices)


@dataclass(frozen=True)
class Launcher:
    """A command that starts the ranks of one host, and its options."""

    words: str
    alone: str
    """The words that stand for the rest where there is one host."""
    counts: tuple[str, str] | None
    """Options for the hosts and for the ranks of each; None if a file has them."""
    rank: str
    address: str
    port: str


TORCHRUN = Launcher(
    words="torchrun",
    alone=" --standalone",
    counts=("--nnodes", "--nproc-per-node"),
    rank="--node-rank",
    address="--master-addr",
    port="--master-port",
)


@dataclass(frozen=True)
class Program:
    """The program to launch; hosts are given separately."""

    title: str
    plan: Plan
    command: Sequence[str]
    """Words of bash after the launcher; `$` means what it means to bash."""
    arguments: Sequence[Setting] = ()
    environment: Sequence[Setting] = ()
    launcher: Launcher = TORCHRUN
    needs: str = ""
    """Comment lines on what is the user's to give, behind the arguments."""


def launch_files(
    cluster: Cluster, program: Program, more: Iterable[str] = ()
) -> list[ExportedFile]:
    """Return launch.sh, and where there are several hosts srun.sh and its hosts.

    Args:
        cluster: The cluster of the plan.
        program: What is started.
        more: Lines of bash before the program starts.
    """
    seats = Seats(rank_map(cluster, program.plan))
    parts = [_head(program, seats), bash_exports(program.environment)]
    parts += [*_devices(seats), *more]
    parts += [bash_array("ARGUMENTS", program.arguments)] if program.arguments else []
    parts += [program.needs, _start(seats, program)]
    text = "\n".join(part for part in parts if part)
    files = [ExportedFile(name="launch.sh", text=text)]
    if len(seats.hosts) > 1:
        files += _files_of_hosts(seats)
    return files


def _head(program: Program, seats: Seats) -> str:
    is_single = len(seats.hosts) == 1
    spread = _ON_EACH_HOST if seats.is_in_order else _ON_EACH_GPU
    how = _ON_ONE_HOST if is_single else spread
    title, plan = printable(program.title), str(program.plan)
    return _HEAD.format(title=title, plan=plan, how=how)


def _devices(seats: Seats) -> list[str]:
    """Return the lines of bash that give each host's ranks their GPUs."""
    if seats.has_plain_devices:
        return []
    devices = [",".join(map(str, gpus)) for gpus in seats.devices]
    comment = "# Local rank i sits on the ith of these GPUs: the plan's seats.\n"
    if len({*devices}) == 1:
        return [f"{comment}export CUDA_VISIBLE_DEVICES={devices[0]}\n"]
    names = [*map(str, range(len(devices)))] if seats.is_in_order else seats.hosts
    host = _NODE_RANK if seats.is_in_order else '"$SLURMD_NODENAME"'
    cases = "".join(
        f"  {name}) export CUDA_VISIBLE_DEVICES={gpus} ;;\n"
        for name, gpus in zip(names, devices, strict=True)
    )
    return [f"{comment}case {host} in\n{cases}esac\n"]


def _start(seats: Seats, program: Program) -> str:
    words = " ".join([*program.command, *_rest(program)])
    if not seats.is_in_order:
        return f"exec python {words}\n"
    launcher, hosts = program.launcher, len(seats.hosts)
    options = []
    if launcher.counts:
        options += [f"{launcher.counts[0]} {hosts}"] if hosts > 1 else []
        options += [f"{launcher.counts[1]} {seats.counts[0]}"]
    if hosts > 1:
        options += [f"{launcher.rank} {_NODE_RANK}", f"{launcher.address} {_MASTER}"]
        options += [f'{launcher.port} "${{MASTER_PORT:-{MASTER_PORT}}}"']
    start = launcher.words + (launcher.alone if hosts == 1 else "")
    return "exec " + " \\\n  ".join([start, *options, words]) + "\n"


def _rest(program: Program) -> list[str]:
    return ['"${ARGUMENTS[@]}"', '"$@"'] if program.arguments else ['"$@"']


def _files_of_hosts(seats: Seats) -> list[ExportedFile]:
    ranks = seats.ranks
    if seats.is_in_order:
        tasks, names, what = len(seats.hosts), seats.hosts, "a host per line"
        variables = "NODE_RANK=$SLURM_PROCID"
    else:
        tasks, what = len(ranks.host), "the host of each rank"
        names = [ranks.hosts[host] for host in ranks.host.tolist()]
        variables = (
            "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID"
        )
    srun = _SRUN.format(what=what, port=MASTER_PORT, tasks=tasks, variables=variables)
    files = {"srun.sh": srun, "hosts": "".join(f"{name}\n" for name in names)}
    if not seats.is_in_order:
        files |= {"ranks.csv": ranks_csv(ranks), "rankfile": rankfile(ranks)}
    return [ExportedFile(name=name, text=text) for name, text in files.items()]
