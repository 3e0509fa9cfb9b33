"""The kinds of files that can be imported, and how a module declares one.

A kind is a name that users write: `meshwright import nvidia_smi FILE`,
`cluster: {nvidia_smi: FILE}`. `KINDS` names the module of each, so that an error or a
spec can list kinds without importing any. The module has `IMPORTERS`: by kind, how its
text is recognised and read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from meshwright.imports.text import (
    MAX_CHARS,
    check_length,
    read_lines,
    without_colours,
)

if TYPE_CHECKING:
    from meshwright.imports.machines.facts import MachineFacts
    from meshwright.spec.gpu import Gpu

Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Imported:
    """Fields of a topology in the form of its YAML, without `gpu` and `name`."""

    fields: dict[str, Any]
    notes: tuple[str, ...] = ()
    """One sentence for each value that the file does not have."""
    guess: str = ""
    """The note on assumed uplinks; it is dropped where the machine has uplinks."""
    are_rates_guessed: bool = False
    """Whether the file has no bandwidth of the levels."""


def unique(notes: list[str]) -> tuple[str, ...]:
    """Return the notes in order, each once."""
    return tuple(dict.fromkeys(notes))


@dataclass(frozen=True)
class Importer(Generic[Facts]):
    """A kind of file."""

    sign: str
    """A pattern that matches the start of files of this kind, and of no other."""
    parse: Callable[..., Facts]
    """Reads the facts of a text, given its name for messages: `parse(text, name)`."""

    most_characters: int = field(default=MAX_CHARS, kw_only=True)
    """Most characters of a text that is read; `parse` refuses longer ones."""

    takes: ClassVar[tuple[str, ...]] = ()
    """Options of `meshwright import` for this kind; the first one must be given."""
    why: ClassVar[str] = ""
    """Why the first option must be given, and what it may be."""

    def __post_init__(self) -> None:
        """Let `parse` look at the length of a text first."""
        read, most = self.parse, self.most_characters

        def parse(text: str, name: str, *given: Any) -> Facts:
            check_length(text, name, most)
            return read(text, name, *given)

        object.__setattr__(self, "parse", parse)


@dataclass(frozen=True)
class MachineImporter(Importer[Facts]):
    """A kind of file that has the inside of a machine."""

    to_machine: Callable[[Facts, Gpu], MachineFacts]
    """Returns the devices and what joins them, given the GPU of the machine."""
    has_machine: Callable[[Facts], bool] | None = None
    """Returns whether facts describe a machine; None if those of all files do."""
    gpu_name: Callable[[Facts], str] | None = None
    """Returns the name of the GPUs, or nothing; None if no file of the kind has it."""

    takes: ClassVar[tuple[str, ...]] = ("gpu",)
    why: ClassVar[str] = (
        "the file does not say which GPU it is; expected a bundled name, such as "
        "A100-SXM4-80GB, or a file"
    )


@dataclass(frozen=True)
class FabricImporter(Importer[Facts]):
    """A kind of file that has the levels of switches above machines."""

    to_levels: Callable[[Facts], Imported]

    takes: ClassVar[tuple[str, ...]] = ("machine",)
    why: ClassVar[str] = (
        "the file says what joins machines, not what is in them; expected a bundled "
        "name, such as dgx-h100, or a file"
    )


@dataclass(frozen=True)
class LogImporter(Importer[Facts]):
    """A kind of log with the times of collectives of several sizes.

    Its `parse(text, name, op, ranks)` also takes the operation and the number of ranks,
    "" and 0 where the user trusts the log.
    """

    takes: ClassVar[tuple[str, ...]] = ("onto", "op", "ranks")
    why: ClassVar[str] = (
        "the log says how fast links are, not what they join; expected a bundled "
        "topology or machine, such as dgx-a100, or a file"
    )


MOST_OF_LAUNCH = 1_000_000
"""Most characters of a configuration or a script that starts training."""


@dataclass(frozen=True)
class LaunchImporter(Importer[Facts]):
    """A kind of file that starts a training framework: its facts are a `Launch`."""

    most_characters: int = field(default=MOST_OF_LAUNCH, kw_only=True)


MOST_OF_LOG = 50_000_000
"""Most characters of the log of a training run."""


@dataclass(frozen=True)
class TrainingLogImporter(Importer[Facts]):
    """A kind of log of a training run: its facts are a `TrainingLog`.

    Its sign may stand anywhere in the log: see `detect_log`.
    """

    most_characters: int = field(default=MOST_OF_LOG, kw_only=True)


CLASSES: Mapping[str, type[Importer[Any]]] = {
    "machines": MachineImporter,
    "fabrics": FabricImporter,
    "facts": Importer,
    "logs": LogImporter,
    "launches": LaunchImporter,
    "training_logs": TrainingLogImporter,
    "models": Importer,
}
"""The class of importers by what the files provide.

Those of facts list what there is, and not how it is joined; those of models have the
`fields` of ours, and `notes`.
"""

KINDS: Mapping[str, dict[str, str]] = {
    "machines": {
        "amd_smi": "machines.rocm_smi",
        "hwloc": "machines.hwloc",
        "lspci": "machines.lspci",
        "nccl_xml": "machines.nccl_xml",
        "nvidia_smi": "machines.nvidia_smi",
        "nvidia_smi_q": "machines.nvidia_smi",
        "rocm_smi": "machines.rocm_smi",
        "slurm_gres": "slurm_nodes",
    },
    "fabrics": {
        "ibnetdiscover": "infiniband",
        "slurm": "slurm_topology",
    },
    "facts": {
        "hostfile": "hostfile",
        "ibstat": "infiniband",
        "kubernetes": "orchestrators",
        "ray": "orchestrators",
        "scontrol": "slurm_nodes",
        "sinfo": "slurm_nodes",
    },
    "logs": {
        "nccl_tests": "nccl_tests",
    },
    "training_logs": {
        "torch_snapshot": "logs.out_of_memory",
        "megatron_bridge_log": "logs.megatron",
        "lightning_log": "logs.metric_lines",
        "mlperf_log": "logs.metric_lines",
        "nanotron_log": "logs.metric_lines",
        "litgpt_log": "logs.metric_lines",
        "nanogpt_log": "logs.metric_lines",
        "torchtune_log": "logs.metric_lines",
        "verl_log": "logs.metric_lines",
        "torchtitan_log": "logs.torchtitan",
        "deepspeed_log": "logs.deepspeed",
        "megatron_log": "logs.megatron",
        "json_lines": "logs.tables",
        "hf_trainer_log": "logs.hf_trainers",
        "wandb_csv": "logs.tables",
        "nvidia_smi_dmon": "logs.tables",
        "torch_error": "logs.run_log",
    },
    "launches": {
        "accelerate": "launches.accelerate",
        "automodel": "launches.nemo",
        "axolotl": "launches.hf_trainers",
        "openrlhf": "launches.reinforcement",
        "deepspeed": "launches.deepspeed",
        "litgpt": "launches.recipes",
        "llama_factory": "launches.hf_trainers",
        "llm_foundry": "launches.recipes",
        "megatron": "launches.megatron",
        "megatron_bridge": "launches.nemo",
        "torchtitan_yaml": "launches.torchtitan",
        "megatron_yaml": "launches.megatron",
        "nanotron": "launches.nanotron",
        "nemo_rl": "launches.reinforcement",
        "torchtitan": "launches.torchtitan",
        "torchtitan_toml": "launches.torchtitan",
        "torchtune": "launches.recipes",
        "trl": "launches.hf_trainers",
        "verl": "launches.reinforcement",
    },
    "models": {
        "hf": "hf",
    },
}
"""By what files provide and by kind, the module below `meshwright.imports`.

A text is of the first kind whose sign it has, in this order: logs repeat the options
of launches, and no launch has steps.
"""

READ = 20_000
"""Characters from the start of a text by which its kind is guessed."""


def kinds(*provided: str) -> tuple[str, ...]:
    """Return the kinds that provide something, such as machines; without it, all."""
    return tuple(kind for name in provided or KINDS for kind in KINDS[name])


def importer(kind: str) -> Importer[Any]:
    """Return the importer of a kind.

    Raises:
        KeyError: there is no such kind.
        TypeError: the module of the kind declares none, or one of another class.
    """
    provided = next((name for name in KINDS if kind in KINDS[name]), None)
    if provided is None:
        raise KeyError(kind)
    module = import_module(f"meshwright.imports.{KINDS[provided][kind]}")
    found = getattr(module, "IMPORTERS", {}).get(kind)
    if not isinstance(found, CLASSES[provided]):
        expected = f'IMPORTERS["{kind}"] = {CLASSES[provided].__name__}(...)'
        raise TypeError(f"{module.__file__}: expected {expected}")
    return found


def detect(text: str, *provided: str) -> str | None:
    """Return the kind that a text looks like, or None; see `kinds` for `provided`."""
    lines = read_lines(text[:READ], "text")
    start = "\n".join(line.text for line in lines)
    fitting = (
        kind for kind in kinds(*provided) if re.search(importer(kind).sign, start)
    )
    return next(fitting, None)


def detect_log(text: str) -> str | None:
    """Return the kind of log of a training run that a text is, or None.

    What starts a run prints warnings by the thousand, so all of the text counts.
    """
    start = without_colours(text[:MOST_OF_LOG].replace("\xa0", " "))
    names = kinds("training_logs")
    return next((name for name in names if re.search(importer(name).sign, start)), None)
