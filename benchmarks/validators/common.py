"""What the validators share: launches from stdin, one process each, verdicts to stdout.

This runs under the frameworks' Python and imports nothing of Meshwright.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import traceback
import typing
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_SECONDS = 300
"""Time for one launch, of which most take a tenth."""


@dataclass(frozen=True)
class Launch:
    """What a script of an export started, caught before it ran."""

    folder: Path
    words: list[str]
    """The command, `torchrun` or `accelerate` first."""
    environment: dict[str, str]
    gpus: int
    facts: dict[str, Any]
    """What Meshwright says of the plan, to compare with what the framework read."""

    def program_words(self) -> list[str]:
        """Return the words of the program behind torchrun, whose own are checked."""
        launcher, *words = self.words
        if launcher == "python":
            return words
        from torch.distributed.run import get_args_parser

        parsed = get_args_parser().parse_args(words)
        most = str(parsed.nnodes).split(":")[-1]  # 1:1 where it is not given
        world = int(most) * int(parsed.nproc_per_node)
        expect(
            world == self.gpus, f"torchrun starts {world} ranks for {self.gpus} GPUs"
        )
        return [parsed.training_script, *parsed.training_script_args]


UNAVAILABLE = os.EX_UNAVAILABLE
"""Exit status where the sources that a validator needs are not there."""


class MissingError(Exception):
    """Sources of a framework that are on no registry, and not on this machine."""


def expect(is_so: bool, otherwise: str) -> None:
    """Refuse what is not so."""
    if not is_so:
        raise AssertionError(otherwise)


def same(what: str, read: Any, meant: Any) -> None:
    """Refuse what the framework read otherwise than it was meant."""
    expect(read == meant, f"{what}: the framework reads {read}, the plan says {meant}")


def mark_overrides() -> None:
    """Let Python 3.11 have the one name of 3.12 that Megatron Core imports, a mark."""
    if sys.version_info < (3, 12):
        typing.override = lambda function: function


FUSED = (
    "fused_permute", "fused_permute_with_probs", "fused_sort_chunks_by_index",
    "fused_sort_chunks_by_index_with_probs", "fused_unpermute",
)  # fmt: skip


def stand_in_for_kernels() -> None:
    """Let Megatron Core find the kernels that sort tokens, which need a GPU."""
    from megatron.core.transformer.moe import moe_utils

    for name in FUSED:
        setattr(moe_utils, name, getattr(moe_utils, name) or object())


def main(check: Callable[[Launch], None], prepare: Callable[[], None]) -> None:
    """Check all launches of stdin, each in a process of its own, after imports."""
    jobs = [Launch(Path(job.pop("folder")), **job) for job in json.load(sys.stdin)]
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115
    try:
        with nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            prepare()
    except MissingError as error:
        print(error, file=sys.stderr)
        raise SystemExit(UNAVAILABLE) from None
    verdicts = [_verdict(check, job) for job in jobs]
    print(json.dumps(verdicts))


def _verdict(check: Callable[[Launch], None], job: Launch) -> str:
    """Return what is wrong, empty where nothing is."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_checked, args=(check, job, theirs))
    process.start()
    theirs.close()
    try:
        has_ended = ours.poll(MOST_SECONDS)
        verdict = str(ours.recv()) if has_ended else f"no end after {MOST_SECONDS} s"
    except EOFError:
        verdict = "the process died"
    process.kill()
    process.join()
    return verdict


def _checked(check: Callable[[Launch], None], job: Launch, verdict: Any) -> None:
    said = Path(os.devnull).open("w")  # noqa: SIM115
    os.environ.update(job.environment)
    os.chdir(job.folder)
    sys.stdout = sys.stderr = said
    try:
        check(job)
    except SystemExit as error:
        verdict.send(f"exit {error.code}" if error.code else "")
    except BaseException as error:
        where = traceback.format_exc()
        verdict.send(f"{type(error).__name__}: {error}\n{where}")
    else:
        verdict.send("")
    os._exit(0)
