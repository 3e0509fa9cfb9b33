"""Progress bars of tqdm in a log: how long steps take by their clocks."""

from __future__ import annotations

import re

from meshwright.imports.logs.log_text import LogLine, StepTimes, number
from meshwright.imports.logs.training_log import LeftOutBecause

_BAR = re.compile(
    r"\|[ ]{0,2}(\d{1,9})/(\d{1,9})[ ]\[([\d:]{4,12})<[^,\]]{1,20}(?=[,\]])"
    r"(?!,[ ]{0,9}[\d.?]{1,12}[kMG]?[ ]?(?!it/s|s/it)[A-Za-z]{1,20}/)"
    r"(?:,[ ]{1,9}([\d.]{1,12})(s/it|it/s))?"
)
"""A bar as `| 12/100 [00:24<02:58, 2.03s/it`, whatever stands before and behind; none
that counts examples, files or bytes."""

_OTHER = re.compile(
    r"\b(?:Load|Map|Filter|Token|Fetch|Download|Generat|Sav|Conver|Extract|Pack|Process"
    r"|Prepar|Renam|Shard|Merg|Cast|Flatten|Truncat|Appl|Add|Creat|Running tokenizer)"
    r"[\w ()=-]{0,60}:[ ]{1,4}\d{1,3}%\|[^|]{0,200}$"
)
"""What stands before a bar of something else than training or an evaluation."""

MOST_BEFORE = 300
"""Characters before a bar that say of what it is."""

WINDOW_S = 20.0
"""Seconds over which steps are averaged: the clock of a bar shows whole seconds."""

SHORT_S = 10.0
"""Fewest seconds of a window that counts although an evaluation, or the end, cut it
short."""


class ProgressBars:
    """Collects the times of steps from the bar of training."""

    said: int = 0
    """The steps of the run, as its log says them; 0 where it does not."""

    def __init__(self) -> None:
        """Start without bars."""
        self._bars: dict[int, _Bar] = {}

    def read(self, line: LogLine) -> None:
        """Read a line, which may hold bars, also where a copy has lost its returns.

        A bar that is read over another one of more steps is an evaluation.
        """
        if "it]" not in line.text and "it/s" not in line.text and "<" not in line.text:
            return
        for found in _BAR.finditer(line.text):
            start = found.start()
            if _OTHER.search(line.text[max(start - MOST_BEFORE, 0) : start]):
                continue
            total, elapsed = int(found[2]), _seconds(found[3])
            bar = self._bars.get(total)
            if bar is None and len(self._bars) < MOST_BARS:
                bar = self._bars[total] = _Bar()
            for other, trained in self._bars.items():
                if other > total or (other == self.said and total != other):
                    trained.happened("evaluation")
            if bar is not None and elapsed is not None:
                bar.keep(line, int(found[1]), elapsed)
                if rate := found[4]:
                    value = number(rate) or 0.0
                    bar.rate_s = value if found[5] == "s/it" else 1 / (value or 1e9)

    def happened(self, what: LeftOutBecause) -> None:
        """Note an evaluation or a checkpoint."""
        for bar in self._bars.values():
            bar.happened(what)

    @property
    def total(self) -> int:
        """Return the steps of the bar that counts, of the longest if none is said."""
        return self.said if self.said in self._bars else max(self._bars, default=0)

    @property
    def steps(self) -> StepTimes:
        """Return the times of the bar that counts."""
        bar = self._bars.get(self.total)
        return StepTimes() if bar is None else bar.finished()


MOST_BARS = 100
"""Bars of different lengths that are followed."""


class _Bar:
    """A bar: where its last window began, and what came out of those before."""

    def __init__(self) -> None:
        self.steps = StepTimes()
        self.rate_s: float | None = None
        self._start: tuple[int, float] | None = None
        self._last: tuple[LogLine, int, float] | None = None
        """The first state of the newest step."""
        self._after: LeftOutBecause | None = None

    def happened(self, what: LeftOutBecause) -> None:
        """Note an evaluation or a checkpoint: the step behind it counts by itself."""
        if self._after is None:
            self._cut()
            self._after = what

    def keep(self, line: LogLine, step: int, elapsed: float) -> None:
        """Keep the state of the bar; close a window that is long enough."""
        start, last = self._start, self._last
        if start is None or last is None or step < last[1] or elapsed < last[2]:
            if start is not None:
                self.steps.restart()
            self._start, self._after = (step, elapsed), None
        elif step == last[1]:
            return
        elif self._after is not None:
            self.steps.happened(self._after)
            self._close(line, step, elapsed)
            self._after = None
        elif elapsed - start[1] >= WINDOW_S:
            self._close(line, step, elapsed)
        self._last = (line, step, elapsed)
        self.steps.seen(line, step)

    def finished(self) -> StepTimes:
        """Return the times; a bar shorter than a window has the rate that it shows."""
        if self._last is None or self._start is None:
            return self.steps
        self._cut()
        if not self.steps.samples:
            line, step, elapsed = self._last
            if step > self._start[0] and elapsed - self._start[1] >= 1:
                self._close(line, step, elapsed)
            elif step and self.rate_s:
                self.steps.add(line, step, self.rate_s, step)
        return self.steps

    def _cut(self) -> None:
        """Close the window at the newest step, if it is not too short for the clock."""
        if self._start is None or self._last is None:
            return
        line, step, elapsed = self._last
        if step > self._start[0] and elapsed - self._start[1] >= SHORT_S:
            self._close(line, step, elapsed)

    def _close(self, line: LogLine, step: int, elapsed: float) -> None:
        assert self._start is not None
        count = step - self._start[0]
        self.steps.add(line, step, (elapsed - self._start[1]) / count, count)
        self._start = (step, elapsed)


def _seconds(clock: str) -> float | None:
    """Return the seconds of a clock such as `1:02:03`."""
    parts = clock.split(":")
    if len(parts) > 3 or not all(part.isdigit() for part in parts):
        return None
    seconds = 0.0
    for part in parts:
        seconds = 60 * seconds + int(part[:6])
    return seconds
