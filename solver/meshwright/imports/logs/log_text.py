"""Lines of a log without colours, prefixes and progress bars; its steady steps."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from meshwright.imports.logs.training_log import LeftOutBecause, Part, PartOf, Steps
from meshwright.imports.text import CONTROLS, number_in, without_colours
from meshwright.reading.document import Where

LONGEST_LINE = 20_000
"""Most characters of a line that are read: the rest is data, or one line of JSON."""

MOST_SAMPLES = 500_000
"""Most lines with a time of a step that are kept."""

_RANK = re.compile(
    r"[ ]{0,16}\[(?:rank|(default|trainer)|RANK )[ ]?(\d{1,6})\]:?[ ]?"
    r"|\[\d{1,3},(\d{1,6})\]<std(?:out|err)>:[ ]?"
    r"|[ ]{0,6}(\d{1,6}):[ ]"
    r"|\[rank-(\d{1,6})/\d{1,6}\]\[[A-Z]{4,8}[ ]{0,9}\][ ]{0,9}"
    r"\[-{0,80}[\w.]{1,80}:\d{1,6}\][ ]:[ ]"
)
"""The prefix that torchrun, mpirun, `srun --label` and Primus put before lines of a
rank; torchrun counts the ranks of each host by itself."""

_TIME = re.compile(
    r"[ ]{0,16}\[?(\d{4}-?\d\d-?\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](\d{1,6})\d{0,3})?"
    r"(?:Z|[+-]\d\d:?\d\d)?\]?[ ]?"
)
"""The time, which a container, a scheduler or the program itself puts there."""

_TAG = re.compile(
    r"[ ]{0,16}\[(?:pod|job)/[^\]\s]{1,200}\][ ]?|[ ]{0,16}\[titan\][ ]?"
    r"|[ ]{0,16}\([A-Za-z_][^\s()]{0,100}[ ]pid=\d{1,9}(?:, ip=[\w.:]{1,60})?\)[ ]?"
    r"|[A-Za-z_][\w.-]{0,60}/\d{1,4}[ ]|>[ ]"
)
"""The name of a pod, a task, a worker of Ray or a program, or the mark of a
quotation."""

MOST_TAGS = 5
"""Most marks before a line."""

_HOST = re.compile(r"([\w.-]{2,80}):[ ]")
_HOSTS = re.compile(rf"(?m)(?:^[> ]{{0,16}}|\][ ]?){_HOST.pattern}")
"""The name of a host, which pdsh puts before each line, for DeepSpeed among others."""

_MIXED = re.compile(r"\d[^\d]|[^\d]\d")
"""Names of hosts have digits and other characters."""

FEWEST_OF_HOST = 20
"""Lines that begin with a name from which on it is taken for that of a host."""

_END = re.compile(r"\r\n|\r|\n")


class LogLine(NamedTuple):
    """A line of a log; what a carriage return overwrites counts as part of it."""

    number: int
    text: str
    rank: int | None = None
    time_s: float | None = None
    """Seconds since 1970, by the clock of whatever wrote the line."""
    file: str = ""
    is_local: bool = False
    """Whether the rank is counted in its host, as torchrun does."""

    @property
    def where(self) -> Where:
        """Return the place of the line, for messages."""
        return Where(self.file, self.number)


def log_lines(text: str, name: str) -> list[LogLine]:
    """Return the lines of a log that are not empty, without what stands before them."""
    text = text.replace("\xa0", " ")
    if text[:1] == " ":  # as in a block of code of a page
        text = textwrap.dedent(text)
    return [line._replace(file=name) for line in _lines(text, _hosts(text))]


def _hosts(text: str) -> frozenset[str]:
    """Return the names of hosts that lines begin with."""
    counts = Counter(found[1] for found in _HOSTS.finditer(text))
    return frozenset(
        name
        for name, count in counts.items()
        if count >= FEWEST_OF_HOST and (name == "localhost" or _MIXED.search(name))
    )


def _lines(text: str, hosts: Collection[str]) -> Iterator[LogLine]:
    number, start = 1, 0
    for end in _END.finditer(text):
        line = text[start : min(end.start(), start + LONGEST_LINE)]
        if line and not line.isspace():
            yield _without_prefix(line, number, hosts)
        start = end.end()
        number += end[0] != "\r"
    if line := text[start : start + LONGEST_LINE]:
        yield _without_prefix(line, number, hosts)


def _without_prefix(line: str, number: int, hosts: Collection[str]) -> LogLine:
    """Return a line without colours, the host, the rank and the time before it."""
    is_plain = line.isascii() and line.isprintable()
    if not is_plain or any(colour in line for colour in ("[0", "[3", "[1m")):
        line = without_colours(line.lstrip("\ufeff"))
        line = line.translate(CONTROLS)
    rank, is_local, time_s, at = None, False, None, 0
    for _ in range(MOST_TAGS):
        if found := _RANK.match(line, at):
            rank, is_local = int(found[found.lastindex or 0]), found[1] is not None
        elif found := _TIME.match(line, at):
            time_s = _seconds(found)
        elif not (found := _TAG.match(line, at) or _host(line, at, hosts)):
            break
        at = found.end()
    return LogLine(number, line[at:].rstrip(), rank, time_s, is_local=is_local)


def _host(line: str, at: int, hosts: Collection[str]) -> re.Match[str] | None:
    """Return the match of the name of a host at a place in a line; None without."""
    found = _HOST.match(line, at) if hosts else None
    return found if found is not None and found[1] in hosts else None


def _seconds(found: re.Match[str]) -> float | None:
    try:
        day = datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
    except ValueError:
        return None
    return day.timestamp() + float(f"0.{found[2] or 0}")


@dataclass
class Sample:
    """A step that a log has a time of, or several of which it has the mean."""

    step: int
    """The number of the last of them."""
    step_s: float
    steps: int
    after: LeftOutBecause | None
    """The events since the sample before."""
    is_first: bool
    """Whether the run starts with it, or goes on with it after a restart."""
    values: dict[str, float] = field(default_factory=dict)
    """Other numbers of the line."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds that timers measured."""
    fastest: dict[str, float] = field(default_factory=dict)
    """The same on the fastest rank, of timers that several ranks have."""


WARM = 0.1
"""Steps at the start are warm-up until one is no more than this above the median."""

FEWEST = 3
"""Samples of a start without which those of the start before it count."""

PAUSE = 1.5
"""A step that takes more than this many medians has paused for something."""


class StepTimes:
    """Collects the times of steps, over all ranks and restarts of a log."""

    def __init__(self) -> None:
        """Start without samples."""
        self.samples: list[Sample] = []
        self.restarts = 0
        self.pending: dict[str, float] = {}
        """Timers that stand before the line of their step."""
        self.pending_values: dict[str, float] = {}
        """Other numbers that stand before the line of their step."""
        self._lines: list[tuple[int, int]] = []
        self._after: LeftOutBecause | None = None
        self._starts = True
        self._newest: dict[int, Sample] = {}

    def add(
        self,
        line: LogLine,
        step: int,
        step_s: float,
        steps: int = 1,
        values: Mapping[str, float] | None = None,
    ) -> None:
        """Keep the time of a step; of a step on several ranks, the longest.

        A step far below the last one is a restart.
        """
        step_s = round(step_s, 6)
        if not (0 < step_s < 1e7 and 0 < steps <= 10**9 and 0 <= step <= 10**12):
            return
        if self.samples and self.samples[-1].step - step > 2 * steps:
            self.restart()
        before = self._newest.get(step)
        if before is not None:
            before.step_s = max(before.step_s, step_s)
            for key, value in (values or {}).items():
                before.values.setdefault(key, value)
            return
        if len(self.samples) >= MOST_SAMPLES:
            return
        sample = Sample(
            step, step_s, steps, self._after, self._starts, dict(values or {})
        )
        sample.parts, self.pending = self.pending, {}
        sample.values = self.pending_values | sample.values
        self.pending_values = {}
        self.samples.append(sample)
        self._newest[step] = sample
        if len(self._newest) > 8:
            del self._newest[next(iter(self._newest))]
        self.seen(line, step)
        self._after, self._starts = None, False

    def seen(self, line: LogLine, step: int) -> None:
        """Note that a step is complete at a line, whatever time it took."""
        if len(self._lines) < MOST_SAMPLES:
            self._lines.append((line.number, step))

    def add_part(
        self, name: str, seconds: float, fastest_s: float | None = None
    ) -> None:
        """Keep a timer of the last step; of several ranks, the slowest and fastest."""
        if not self.samples or not 0 <= seconds < 1e7:
            return
        sample = self.samples[-1]
        before = sample.parts.get(name)
        if before is None and len(sample.parts) >= 100:
            return
        sample.parts[name] = max(seconds, before or 0.0)
        others = (fastest_s, before and sample.fastest.get(name, before))
        if several := [other for other in others if other]:
            sample.fastest[name] = min(seconds, *several)

    def happened(self, what: LeftOutBecause) -> None:
        """Note an evaluation or a checkpoint since the last step."""
        self._after = what

    def restart(self) -> None:
        """Note that the run starts again: its next steps are warm-up again."""
        if self.samples and not self._starts:
            self.restarts += 1
        self._starts, self._after = True, None
        self._newest.clear()

    @property
    def last_line(self) -> int:
        """Return the line at which the last step is complete; 0 if none is."""
        return self._lines[-1][0] if self._lines else 0

    def done_before(self, line: int) -> int:
        """Return the number of the last step that is complete at a line; 0 if none."""
        before = [step for at, step in self._lines if at < line]
        return before[-1] if before else 0

    @property
    def _counted(self) -> list[Sample]:
        """Return the samples since the last start that has some, else the longest."""
        starts = [at for at, sample in enumerate(self.samples) if sample.is_first]
        ends = [*starts[1:], len(self.samples)]
        runs = [
            self.samples[start:end] for start, end in zip(starts, ends, strict=True)
        ]
        enough = [run for run in runs if len(run) >= FEWEST]
        return enough[-1] if enough else max(runs, key=len, default=[])

    def _judged(self) -> list[tuple[Sample, LeftOutBecause | None]]:
        """Return the samples, each with the reason why it is not steady."""
        samples = self._counted
        middle = _median(
            [
                (sample.step_s, sample.steps)
                for sample in samples[len(samples) // 2 :] or samples
            ]
        )
        judged: list[tuple[Sample, LeftOutBecause | None]] = []
        is_warm = False
        for sample in samples:
            reason = sample.after
            if not is_warm:
                is_slow = sample.step_s > (1 + WARM) * middle
                reason = "warm-up" if sample.is_first or is_slow else reason
                is_warm = not is_slow
            elif reason is None and sample.step_s > PAUSE * middle:
                reason = "pause"
            judged.append((sample, reason))
        return judged

    def steady(self) -> tuple[list[Sample], dict[LeftOutBecause, tuple[int, ...]]]:
        """Return the steady samples, and the steps that are left out by reason.

        Where none is steady, those after evaluations and checkpoints count, else all.
        """
        judged = self._judged() if self.samples else []
        kept: list[Sample] = []
        for counted in ((), ("evaluation", "checkpoint"), None):
            kept = kept or [
                sample
                for sample, reason in judged
                if reason is None or counted is None or reason in counted
            ]
        ids = {id(sample) for sample in kept}
        left: dict[LeftOutBecause, list[int]] = defaultdict(list)
        for sample, reason in judged:
            if reason is not None and id(sample) not in ids:
                left[reason].append(sample.step)
        return kept, {reason: tuple(steps) for reason, steps in left.items()}

    def result(self) -> Steps | None:
        """Return the time of the steady steps; None without any."""
        kept, left = self.steady()
        if not kept:
            return None
        times = [(sample.step_s, sample.steps) for sample in kept]
        return Steps(
            _median(times),
            _quantile(times, 0.1),
            _quantile(times, 0.9),
            sum(sample.steps for sample in kept),
            left,
            is_first_alone=len(kept) == 1 and kept[0].is_first and kept[0].steps == 1,
        )

    def value(self, name: str) -> float | None:
        """Return the median of a number of the steady steps; None without any."""
        found = [
            (sample.values[name], sample.steps)
            for sample in self.steady()[0]
            if name in sample.values
        ]
        return _median(found) if found else None

    def parts(self, kinds: Mapping[str, PartOf]) -> tuple[Part, ...]:
        """Return the timers, as the medians of the steady steps."""
        steady = self.steady()[0]
        slowest = _by_timer((sample.parts, sample.steps) for sample in steady)
        fastest = _by_timer((sample.fastest, sample.steps) for sample in steady)
        return tuple(
            Part(name, kinds.get(name, "other"), seconds, fastest.get(name))
            for name, seconds in slowest.items()
        )


def _by_timer(samples: Iterable[tuple[dict[str, float], int]]) -> dict[str, float]:
    """Return the medians of timers, given those of samples and how many steps each."""
    times: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for parts, steps in samples:
        for name, seconds in parts.items():
            times[name].append((seconds, steps))
    return {name: _median(found) for name, found in times.items()}


def _median(weighted: Iterable[tuple[float, int]]) -> float:
    return _quantile(weighted, 0.5)


def _quantile(weighted: Iterable[tuple[float, int]], share: float) -> float:
    """Return the value below which a share of weighted values lies."""
    ordered = sorted(weighted)
    total = sum(weight for _, weight in ordered)
    below, before = 0, math.nan
    for value, weight in ordered:
        if below + weight > share * total:
            is_between = below == share * total and not math.isnan(before)
            return (before + value) / 2 if is_between else value
        below, before = below + weight, value
    return ordered[-1][0]


def number(text: str) -> float | None:
    """Return the number that a text is, with `,` between thousands; None for others."""
    value = number_in(text.replace(",", ""))
    return value if math.isfinite(value) else None


def compiled(patterns: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    """Return patterns by their names, ready to search."""
    return {name: re.compile(pattern) for name, pattern in patterns.items()}


def numbers_in(patterns: Mapping[str, re.Pattern[str]], text: str) -> dict[str, float]:
    """Return the numbers other than 0 that patterns find in a text, by their names."""
    found = ((name, pattern.search(text)) for name, pattern in patterns.items())
    values = (
        (name, number(next(filter(None, match.groups()))))
        for name, match in found
        if match
    )
    return {name: value for name, value in values if value}
