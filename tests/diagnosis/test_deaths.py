"""Runs that died of something else than PyTorch's memory say of what."""

from pathlib import Path

import pytest

from meshwright.imports.logs.training_log import read_log
from tests.helpers.command import run

SLOW = Path("tests/data/slow_run.log")

WATCHDOG = (
    "[rank3]:[E1129 10:00:00.123456789 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog "
    "caught collective operation timeout: WorkNCCL(SeqNum=1234, OpType=ALLREDUCE, "
    "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds before "
    "timing out."
)

MESSAGES = [
    (WATCHDOG, "a rank waited 600 s in ALLREDUCE for others"),
    (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=123.0. Some of the "
        "step tasks have been OOM Killed.",
        "the memory of the host ran out",
    ),
    ("  exitcode  : -9 (pid: 2242)", "a process was killed by signal 9"),
    (
        "slurmstepd: error: *** JOB 123 ON n1 CANCELLED AT 2026-11-29T10:00:00 DUE TO "
        "TIME LIMIT ***",
        "Slurm ended the job at its limit of time",
    ),
    (
        "NVRM: Xid (PCI:0000:4e:00): 79, pid=1234, GPU has fallen off the bus.",
        "a GPU or its links failed",
    ),
    (
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "a kernel failed",
    ),
    (
        "torch.AcceleratorError: CUDA error: out of memory",
        "CUDA error: out of memory: a library found no memory beside what PyTorch",
    ),
    (
        "ncclRemoteError: A call failed possibly due to a network error or a remote "
        "process exiting prematurely.",
        "NCCL lost another rank",
    ),
]


@pytest.mark.parametrize(("message", "told"), MESSAGES)
def test_a_log_says_of_what_its_run_died(message: str, told: str) -> None:
    text = SLOW.read_text()
    log = read_log(f"{text}{message}\n", "run.log")
    assert log.died.startswith(f"line {len(text.splitlines()) + 1}: {told}")
    assert f"died: {log.died}" in log.told()
    assert not read_log(f"{message}\n{text}", "run.log").died


def test_a_death_is_told_above_what_is_slow_and_where_nothing_else_is_known(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.log"
    path.write_text(f"{SLOW.read_text()}{WATCHDOG}\n")
    told = run("diagnose", str(path), "--cluster", "dgx-h100")
    assert told.code == 0
    assert "Died: line " in told.stdout.split("Measured against modelled")[0]
    path.write_text(f"{WATCHDOG}\n")
    told = run("diagnose", str(path), "--cluster", "dgx-h100")
    assert told.code == 2
    assert "died: line 1: a rank waited 600 s in ALLREDUCE" in told.stderr
