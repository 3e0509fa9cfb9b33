"""The script that starts a job on its hosts, and the program where a user has none.

Accelerate and DeepSpeed take the program from the user. Accelerate splits neither
sequences nor layers unless the program asks; DeepSpeed splits no sequences, and ZeRO-3
no model that was built whole. What that takes is these few lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.escape import printable
from meshwright.exports.files import (
    TEXTS,
    ExportedFile,
    Setting,
    bash_array,
    bash_exports,
)
from meshwright.frameworks.base.shared import is_pure
from meshwright.plans.plan import Plan
from meshwright.plans.ranks import RankMap, rank_map
from meshwright.spec.spec import Spec

MASTER_PORT = 29500
"""PyTorch's default."""

TRIAL_STEPS = 10
"""Steps of the run that is written: enough to see the time of one."""

_ON_ONE_HOST = "Start it on the host: bash launch.sh"
_ON_EACH_HOST = (
    "Start it on every host with NODE_RANK (the host's line in `hosts`, from 0) and "
    "MASTER_ADDR (the first host), or under Slurm: sbatch srun.sh"
)
_ON_EACH_GPU = (
    "Ranks do not fill hosts one after the other, so each GPU is a task of Slurm: "
    "sbatch srun.sh"
)

_BY_RAY = "Start it where Ray runs on all hosts: ray job submit -- bash launch.sh"

_NODE_RANK = '"${NODE_RANK:?the line of this host in the file hosts, from 0}"'
_MASTER = '"${MASTER_ADDR:?the name of the first host}"'


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

RAY = Launcher(words="python", alone="", counts=None, rank="", address="", port="")
"""A driver of Ray, which starts ranks on hosts itself."""


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
    spec: Spec, program: Program, more: Iterable[str] = ()
) -> list[ExportedFile]:
    """Return launch.sh, which starts the ranks of a host.

    Args:
        spec: What the plan is for.
        program: What is started.
        more: Lines of bash before the program starts.
    """
    seats = Seats(rank_map(spec.cluster, program.plan))
    parts = [
        _head(program, seats),
        bash_exports([*_environment(spec, program.launcher), *program.environment]),
    ]
    parts += [*_devices(seats), *more]
    parts += [bash_array("ARGUMENTS", program.arguments)] if program.arguments else []
    parts += [program.needs, _start(seats, program)]
    text = "\n".join(part for part in parts if part)
    return [ExportedFile(name="launch.sh", text=text)]


def _environment(spec: Spec, launcher: Launcher) -> list[Setting]:
    """Return the variables of PyTorch that every job on NVIDIA's GPUs gains by.

    Trainers by Ray let segments grow while the actor learns alone: engines that sleep
    beside it refuse the variable.
    """
    is_theirs = not spec.cluster.topology.gpu.name.startswith(("mi", "gaudi"))
    if launcher is RAY or not (is_theirs and spec.training.expandable_segments):
        return []
    why = "freed memory is used again, whatever its size was"
    name = "PYTORCH_CUDA_ALLOC_CONF"
    return [Setting(name, "expandable_segments:True", why)]


def _head(program: Program, seats: Seats) -> str:
    is_single = len(seats.hosts) == 1
    spread = _ON_EACH_HOST if seats.is_in_order else _ON_EACH_GPU
    how = _ON_ONE_HOST if is_single else spread
    how = _BY_RAY if program.launcher is RAY else how
    title, plan = printable(program.title), str(program.plan)
    return TEXTS["launch_head"].format(title=title, plan=plan, how=how)


def _devices(seats: Seats) -> list[str]:
    """Return the lines of bash that give each host's ranks their GPUs."""
    if seats.has_plain_devices:
        return []
    devices = [",".join(map(str, gpus)) for gpus in seats.devices]
    comment = "# Local rank i sits on the ith of these GPUs: the plan's seats.\n"
    if len({*devices}) == 1:
        return [f"{comment}export CUDA_VISIBLE_DEVICES={devices[0]}\n"]
    cases = "".join(
        f"  {number}) export CUDA_VISIBLE_DEVICES={gpus} ;;\n"
        for number, gpus in enumerate(devices)
    )
    return [f"{comment}case {_NODE_RANK} in\n{cases}esac\n"]


def _start(seats: Seats, program: Program) -> str:
    words = " ".join([*program.command, *_rest(program)])
    if not seats.is_in_order:
        return f"exec python {words}\n"
    launcher, hosts = program.launcher, len(seats.hosts)
    options = []
    if launcher.counts:
        options += [f"{launcher.counts[0]} {hosts}"] if hosts > 1 else []
        options += [f"{launcher.counts[1]} {seats.counts[0]}"]
    if hosts > 1 and launcher.rank:
        options += [f"{launcher.rank} {_NODE_RANK}", f"{launcher.address} {_MASTER}"]
        options += [f'{launcher.port} "${{MASTER_PORT:-{MASTER_PORT}}}"']
    start = launcher.words + (launcher.alone if hosts == 1 else "")
    return "exec " + " \\\n  ".join([start, *options, words]) + "\n"


def _rest(program: Program) -> list[str]:
    return ['"${ARGUMENTS[@]}"', '"$@"'] if program.arguments else ['"$@"']


PROGRAM_FILE = "train.py"

COMMAND = f'"${{PROGRAM:-{PROGRAM_FILE}}}"'
"""The program of the user, or else this one."""

YOURS = '"${PROGRAM:?the path of your training script}"'


def accelerate_program(spec: Spec, plan: Plan, kernel: str) -> ExportedFile | None:
    """Return the program for Accelerate: FSDP, tensor and context parallelism.

    None for adapters and for other optimizers, which are the user's to write.
    """
    if not _is_plain(spec):
        return None
    form = TEXTS["split"] if plan.tp > 1 else TEXTS["whole"]
    # FSDP's own file recomputes its layers.
    recomputes = plan.repeats_layers and plan.zero < 2
    body = TEXTS["accelerate"].format(
        sync=plan.zero >= 2,
        model=form.format(kernel=kernel),
        recompute=f"{checkpointing(plan)}\n" * recomputes,
    )
    head = _program_head(spec, plan, TEXTS["of_accelerate"], is_longer=True)
    return ExportedFile(name=PROGRAM_FILE, text=head + body)


def checkpointing(plan: Plan) -> str:
    """Return the call by which a model of `transformers` recomputes its layers."""
    where = "offload=True" if plan.recompute == "full-cpu" else ""
    return f"model.gradient_checkpointing_enable({where})"


def deepspeed_program(spec: Spec, plan: Plan, kernel: str) -> ExportedFile | None:
    """Return the program for DeepSpeed: ZeRO, AutoTP, AutoEP, Ulysses and offload.

    None where `left_to_you` says why.
    """
    if left_to_you(spec, plan):
        return None
    splits = plan.cp > 1
    optimizer = "deepspeed.ops.adam.DeepSpeedCPUAdam(model.parameters(), lr=1e-5)"
    if plan.offload == "none":
        optimizer = "torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)"
    body = TEXTS["deepspeed"].format(
        before=TEXTS["ulysses"].format(kernel=kernel, cp=plan.cp) * splits,
        model=(TEXTS["sharded"] if plan.zero == 3 else TEXTS["whole"]).format(
            kernel=kernel
        ),
        recompute="model.gradient_checkpointing_enable()\n" * plan.repeats_layers,
        optimizer=optimizer,
        engine=TEXTS["ulysses_engine"] if splits else TEXTS["engine"],
        loss=TEXTS["ulysses_loss"] if splits else TEXTS["loss"],
    )
    more = (
        TEXTS["ulysses_imports"] if splits else "from torch.utils.data import Dataset"
    )
    head = _program_head(spec, plan, TEXTS["of_deepspeed"] + more, is_longer=False)
    return ExportedFile(name=PROGRAM_FILE, text=head + body)


def left_to_you(spec: Spec, plan: Plan) -> str:
    """Return why no program is written for DeepSpeed; empty where one is."""
    reasons = {
        "its pipelines take a list of layers, and models of transformers are none": (
            plan.pp > 1
        ),
        "adapters, other optimizers than AdamW and weights without fp32 copies are "
        "made by your code": not _is_plain(spec),
        "the layers of FP8 are Transformer Engine's": plan.precision == "fp8",
        "models of transformers recompute by PyTorch's checkpoints": (
            plan.recompute == "full-cpu" or spec.training.partition_activations
        ),
    }
    return next((why for why, is_so in reasons.items() if is_so), "")


def _is_plain(spec: Spec) -> bool:
    """Return whether all weights are trained by AdamW, beside fp32 masters."""
    training = spec.training
    is_whole = training.lora is None and not is_pure(training)
    return is_whole and training.optimizer == "adamw"


def _program_head(spec: Spec, plan: Plan, imports: str, *, is_longer: bool) -> str:
    """Return the start of a program, whose samples are a token longer, or not."""
    tokens = "Random tokens, one more than a sequence: inputs and what follows them"
    return TEXTS["program_head"].format(
        imports=imports,
        tokens=tokens if is_longer else "Sequences of random tokens",
        length="SEQUENCE + 1" if is_longer else "SEQUENCE",
        model=spec.model.details.hub or "YOUR_MODEL",
        sequence=spec.training.seq_len,
        micro_batch=plan.micro_batch,
        microbatches=plan.microbatches,
        steps=TRIAL_STEPS,
    )
