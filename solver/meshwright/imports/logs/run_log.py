"""The steps that readers of all kinds of logs share, from the text to its facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from meshwright.errors import SpecError
from meshwright.imports.launches.launch import Launch
from meshwright.imports.launches.settings import Setting, canonical
from meshwright.imports.logs.deaths import find_death
from meshwright.imports.logs.log_text import LogLine, StepTimes, log_lines
from meshwright.imports.logs.out_of_memory import find_out_of_memory
from meshwright.imports.logs.training_log import (
    PartOf,
    Peak,
    TrainingLog,
    missing,
    most,
)
from meshwright.imports.registry import TrainingLogImporter, detect, importer
from meshwright.imports.text import data_in, whole

MOST_REPAIRS = 8
"""Most settings that are left open because their values are not known."""

MOST_RETRIES = 3
"""Most tries to read a configuration, each without the line that stopped the last."""

MOST_BRACES = 20
"""Most configurations that are looked at in one log: the first ones."""

MOST_OF_JSON = 20_000
"""Most lines of a configuration in JSON: torchtitan prints 120 for each layer."""

MOST_DEPTH = 8
"""Deepest nesting of a configuration in JSON."""

MOST_ABOVE = 100_000
"""Lines above a configuration up to which its lines keep their numbers."""

MOST_OF_SHELL = 3_000
"""Lines from the start in which the command of the run may stand."""

MOST_COMMANDS = 20
"""Lines that look like a command of which the first that is one counts."""

FEWEST_OPTIONS = 4
"""Options by which a command is told from other lines."""

_NO_COMMAND = re.compile(r"^(?:\+{1,3}[ ]|\$[ ]|[\w ]{0,20}[ ]?=[ ]|[ ]+)")
"""Words that a shell or a launcher puts before a command."""

MOST_RANKS = 100_000
"""Ranks whose peaks are kept."""

_GPU = re.compile(
    r"(?:CUDA|ROCm|HIP) capacity:[ ](.{3,60}?)[ ]with[ ][\d.]{1,12}GiB"
    r"|\bGPU[ ]=[ ](.{3,60}?)\.[ ](?:Num GPUs|Max memory)"
    r"|\|[ ]{1,4}\d{1,3}[ ]{1,4}((?:NVIDIA|Tesla|GeForce)[ ][\w./-]{1,20}"
    r"(?:[ ][\w./-]{1,20}){0,4})[ ]{2,}"
    r"|\[\d{1,3}\][ ](NVIDIA[ ][\w-]{1,20}(?:[ ][\w-]{1,20}){0,4})[ ]\|"
    r"|(?:GPU|[Dd]evice|gpu_name|device_name|GPU [Tt]ype|GPU [Mm]odel)"
    r"(?:[ ]\d{1,3}|[ ]name)?[:=][ ]{0,3}['\"]?"
    r"((?:NVIDIA|Tesla|AMD Instinct)[ ][\w-]{1,20}(?:[ ][\w-]{1,20}){0,4})"
)
"""Lines in which programs name the GPU."""


class LogReading:
    """A log while it is read: its lines, and what they told so far."""

    def __init__(self, text: str, name: str, kind: str, title: str) -> None:
        """Split the text into lines."""
        self.text, self.name, self.kind, self.title = text, name, kind, title
        self.lines: list[LogLine] = log_lines(text, name)
        self.steps = StepTimes()
        self.notes: list[str] = []
        self.gpu = ""
        self._peaks: dict[int | None, Peak] = {}
        self._braces = 0

    def keep_peak(
        self,
        rank: int | None,
        allocated: float | None = None,
        reserved: float | None = None,
        device: float | None = None,
    ) -> None:
        """Keep the highest peaks of a rank, in GiB."""
        before = self._peaks.get(rank, Peak(rank))
        if rank in self._peaks or len(self._peaks) < MOST_RANKS:
            self._peaks[rank] = Peak(
                rank,
                most(allocated, before.allocated_gib),
                most(reserved, before.reserved_gib),
                most(device, before.device_gib),
            )

    def new_launch(self, framework: str = "") -> Launch:
        """Return a launch of the program that wrote the log, without values."""
        return Launch(self.kind, self.title, framework, self.name)

    def until_closed(self, index: int, start: str) -> list[LogLine]:
        """Return lines of a rank up to the brace that closes the first one of `start`.

        A log in which ever more braces open has nothing behind the first of them.
        """
        self._braces += 1
        if self._braces > MOST_BRACES:
            return []
        first, depth = self.lines[index], start.count("{") - start.count("}")
        rows = [first._replace(text=start)]
        for line in self.lines[index + 1 : index + MOST_OF_JSON]:
            if depth <= 0:
                break
            if line.rank == first.rank:
                rows.append(line)
                depth += line.text.count("{") - line.text.count("}")
        return rows

    def launch(
        self, read: Callable[[list[Setting]], Launch], kept: list[Setting]
    ) -> Launch:
        """Return the launch of settings; those that cannot be read are noted.

        A run that has a log has started: a value that is not known is left open.
        """
        for _ in range(MOST_REPAIRS):
            try:
                return read(kept)
            except SpecError as error:
                told = str(error)
                refused = next(
                    (
                        setting
                        for setting in kept
                        if told.startswith(f"{setting.where}: {setting}:")
                    ),
                    None,
                )
                if refused is None:
                    break
                self.notes.append(f"{error}; left open")
                kept = [setting for setting in kept if setting is not refused]
        self.notes.append(f"{self.name}: the configuration cannot be read: left open")
        return read([])

    def parsed(
        self, parse: Callable[[str, str], Launch], rows: Sequence[LogLine]
    ) -> Launch | None:
        """Return the launch of a configuration that stands in lines of the log.

        Lines that cannot be read are noted and left out; None where too many are.
        """
        self._braces += 1
        if self._braces > MOST_BRACES:
            return None
        start = rows[0].number if rows and rows[0].number < MOST_ABOVE else 1
        texts = {row.number - rows[0].number + start: row.text for row in rows}
        for _ in range(MOST_RETRIES):
            last = max(texts, default=0)
            text = "\n".join(texts.get(at, "") for at in range(1, last + 1))
            try:
                launch = parse(text, self.name)
            except SpecError as error:
                found = re.match(rf"{re.escape(self.name)}:(\d{{1,9}}): ", str(error))
                self.notes.append(f"{error}; left open")
                if found is None or texts.pop(int(found[1]), None) is None:
                    return None
                continue
            launch.files.clear()
            for told in (launch.idle, launch.ignored, launch.unknown):
                told.clear()  # A dump has the options that nobody gave, too.
            return launch
        return None

    def log(self, launch: Launch, timers: Mapping[str, PartOf]) -> TrainingLog:
        """Return what the log told."""
        steps, name = self.steps, self.name
        batch = steps.value("batch")
        if batch and "training.global_batch" not in launch.values:
            launch.set("training.global_batch", int(batch))
        if not launch.values.keys() - {"training.global_batch", "gpus"}:
            self._read_command(launch)
        gpu = self.gpu or self._find_gpu()
        if steps.restarts:
            count = steps.restarts
            times = "once" if count == 1 else f"{count} times"
            self.notes.append(
                f"{name}: the run starts again {times}; times are those of the last "
                "start with steps"
            )
        order = sorted(self._peaks, key=lambda rank: -1 if rank is None else rank)
        out_of_memory = find_out_of_memory(self.lines, steps)
        if out_of_memory is not None and PAIRS.search(self.text):
            out_of_memory = replace(out_of_memory, each=2)
        died = ""
        if out_of_memory is None:
            died = find_death(self.lines, steps.last_line)
        return TrainingLog(
            self.kind,
            self.title,
            launch,
            gpu=gpu,
            steps=steps.result(),
            peaks=tuple(self._peaks[rank] for rank in order),
            tokens_per_s_per_gpu=steps.value("tokens_per_s"),
            tflops_per_gpu=steps.value("tflops"),
            parts=steps.parts(timers),
            out_of_memory=out_of_memory,
            died=died,
            notes=tuple(self.notes),
            unknown=missing(launch, gpu),
        ).checked()

    def _read_command(self, launch: Launch) -> None:
        """Read the command that started the run, where a shell has printed it."""
        able = (
            line
            for line in self.lines[:MOST_OF_SHELL]
            if line.text.count(" --") >= FEWEST_OPTIONS
        )
        for line in islice(able, MOST_COMMANDS):
            text = _NO_COMMAND.sub("", line.text)
            kind = detect(text, "launches")
            if kind is None:
                continue
            found = self.parsed(importer(kind).parse, [line._replace(text=text)])
            if found is not None:
                launch.values = found.values | launch.values
                launch.framework = launch.framework or found.framework
                launch.unset += found.unset
                launch.auto += found.auto
                return

    def _find_gpu(self) -> str:
        """Return the name of the GPUs where a line has it."""
        for line in self.lines:
            text = line.text
            is_near = "GPU" in text or "NVIDIA" in text or "capacity" in text
            if is_near and (found := _GPU.search(text)):
                names = (str(name) for name in found.groups() if name)
                return next(names, "").strip()
        return ""


def json_settings(rows: Sequence[LogLine]) -> Iterator[Setting]:
    """Yield the fields of lines of JSON with dotted names; none if it is not JSON."""
    data = data_in("\n".join(row.text for row in rows))
    todo: list[tuple[str, Any]] = [("", data)]
    while todo:
        name, value = todo.pop()
        if isinstance(value, dict) and value and name.count(".") < MOST_DEPTH:
            todo += [
                (f"{name}.{key}" if name else str(key), inner)
                for key, inner in reversed(value.items())
            ]
        elif name:
            yield Setting(canonical(name), value, rows[0].where, name[:200])


def count_of(text: str) -> int | None:
    """Return the whole number that a text is, with `,` between thousands, or None."""
    return whole(text.strip().replace(",", ""))


@dataclass(frozen=True)
class LogKind:
    """A program whose logs are read."""

    kind: str
    title: str
    sign: str
    """A pattern that its logs have somewhere, and those of no later kind."""
    read: Callable[[LogReading], Launch]
    """Reads the lines: keeps times and peaks, and returns the configuration."""
    timers: Mapping[str, PartOf] = field(default_factory=dict)
    """The parts of a step by the names of its timers."""

    def parse(self, text: str, name: str) -> TrainingLog:
        """Return what a log tells.

        Raises:
            SpecError: the text is too long, or tells nothing of a run.
        """
        engine = ENGINES.search(text) if self.kind == "torch_error" else None
        title = f"{self.title} of {engine[0]}" if engine else self.title
        reading = LogReading(text, name, self.kind, title)
        return reading.log(self.read(reading), self.timers)


PAIRS = re.compile(
    r"rewards/chosen|concatenated_forward|\b(?:dpo|cpo|orpo|reward)_trainer\b"
)
"""What logs say of trainings on pairs of answers, which run both at once
(trl trainer/dpo_trainer.py, reward_trainer.py, experimental/orpo, experimental/cpo)."""

ENGINES = re.compile(r"(?i:\b(?:vllm|sglang))")
"""What logs of engines say that serve a model."""


def importers(*kinds: LogKind) -> dict[str, TrainingLogImporter[TrainingLog]]:
    """Return how the registry finds and reads logs, by their kinds."""
    return {one.kind: TrainingLogImporter(one.sign, one.parse) for one in kinds}


IMPORTERS = importers(
    LogKind(
        "torch_error",
        "PyTorch",
        r"out of memory\b.{0,80}?Tried to allocate",
        LogReading.new_launch,  # It has nothing but PyTorch's message.
    )
)
