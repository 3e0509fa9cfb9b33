"""The declarations that every kind of file makes to be imported.

A kind is one module. Its folder says what the file provides. Its name is the word that
users write: `meshwright import nvidia_smi FILE`, `cluster: {nvidia_smi: FILE}`. Its
`IMPORTER` says how the text is recognised and read:

    imports/machines/NAME.py    MachineImporter    the inside of a machine
    imports/fabrics/NAME.py     FabricImporter     the switches that join machines
    imports/facts/NAME.py       FactsImporter      hosts, GPUs or ports, not joined
    imports/logs/NAME.py        LogImporter        how long collectives took
    imports/launches/NAME.py    LaunchImporter     a plan, and some of the job
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from meshwright.imports.settings.setting import MOST_CHARACTERS

if TYPE_CHECKING:
    from meshwright.imports.imported import Imported
    from meshwright.spec.gpu import Gpu

Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Importer(Generic[Facts]):
    """A kind of file."""

    sign: str
    """A pattern that matches the start of files of this kind, and of no other."""
    parse: Callable[..., Facts]
    """Reads the facts of a text, given its name for messages: `parse(text, name)`."""

    takes: ClassVar[tuple[str, ...]] = ()
    """Options of `meshwright import` for this kind; the first one must be given."""
    why: ClassVar[str] = ""
    """Why the first option must be given, and what it may be."""


@dataclass(frozen=True)
class MachineImporter(Importer[Facts]):
    """A kind of file that has the inside of a machine."""

    to_topology: Callable[[Facts, Gpu, str], Imported]
    """Makes nodes and links, given the GPU of the machine and its name."""
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
class FactsImporter(Importer[Facts]):
    """A kind of file that lists what there is, and not how it is joined."""


@dataclass(frozen=True)
class LogImporter(Importer[Facts]):
    """A kind of log that says how long collectives of several sizes took.

    Its `parse(text, name, op, ranks)` also takes the operation and the number of ranks,
    "" and 0 where the user trusts the log.
    """

    takes: ClassVar[tuple[str, ...]] = ("onto", "op", "ranks")
    why: ClassVar[str] = (
        "the log says how fast links are, not what they join; expected a bundled "
        "topology or machine, such as dgx-a100, or a file"
    )


@dataclass(frozen=True)
class LaunchImporter(Importer[Facts]):
    """A kind of file that starts a training framework: its facts are a `Launch`."""

    most_characters: ClassVar[int] = MOST_CHARACTERS


@dataclass(frozen=True)
class ModelImporter(Importer[Facts]):
    """A kind of file that says the shape of a model: `fields` of ours, and `notes`."""
