"""Ctrl-C and time limits: the best plan so far with its gap, and nothing half said."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ortools.sat.python import cp_model

import meshwright as mw
from meshwright import DEFAULT_PROFILE
from meshwright.cli.errors import KILLED, UNDECIDED
from meshwright.cost.profile import load_profile
from meshwright.cpsat.ortools import CpModel, solve_until
from meshwright.deadline import Deadline, Interrupt
from meshwright.planner.options import Options
from meshwright.planner.solve import solve
from meshwright.spec.goals import Limits
from tests.helpers.command import run

AT_ONCE = (
    "from meshwright.cli import output; output.DELAY_S = 0.0\n"
    "from meshwright.cli import main; main()"
)
"""Runs a command that says from the first moment on what it does."""

LARGE = "llama3-405b-16384xh100"

LIMITED = """\
model: gpt-1.3b
cluster: {machine: dgx-1v, count: 2}
training: {seq_len: 2048, global_batch: 32, precision: fp16, optimizer: adamw}
pins: {tp: 4}
limits: {max_link_utilisation: 0.2}
"""
"""CP-SAT takes seconds for it."""


@contextmanager
def started(moment: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a command that has just said what it does."""
    with subprocess.Popen(
        [sys.executable, "-c", AT_ONCE, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert any(moment in line for line in process.stderr)
        yield process


def interrupted(moment: str, *words: str, after_s: float = 0.0) -> tuple[str, str]:
    """Return what a command says on stdout and stderr that gets Ctrl-C at a moment."""
    with started(moment, *words) as process:
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == UNDECIDED, stderr
    assert "Traceback" not in stderr
    return stdout, stderr


@pytest.fixture
def limited(tmp_path: Path) -> str:
    path = tmp_path / "limited.yaml"
    path.write_text(LIMITED)
    return str(path)


def test_while_rows_are_listed_nothing_was_found_yet() -> None:
    stdout, stderr = interrupted("listing the legal plans", "solve", LARGE)
    assert stdout == ""
    assert stderr.endswith("stopped: nothing was found yet\n")


def test_while_rows_are_bounded_there_is_a_plan_and_a_gap() -> None:
    stdout, stderr = interrupted(
        "groups of plans to bound", "solve", LARGE, "--format", "json"
    )
    told = json.loads(stdout)
    assert told["status"] == "feasible"
    fastest_s = (told["fastest"] or told)["step_s"]
    assert 0 < told["bound_s"] < fastest_s
    assert told["gap"] == pytest.approx(1 - told["bound_s"] / fastest_s)
    assert stderr.endswith("note: stopped by Ctrl-C\n")


@pytest.mark.slow
def test_while_plans_are_proven_what_there_is_is_said(limited: str) -> None:
    """No plan that keeps the limit takes less than the best one without it."""
    spec = mw.load(limited, mw.Spec)
    spec = spec.model_copy(update={"limits": Limits()})
    best = solve(spec, Options(profile=load_profile(DEFAULT_PROFILE))).best
    assert best is not None
    moment = "proving among 2"
    stdout, stderr = interrupted(moment, "solve", limited, "-v", after_s=0.5)
    told = re.findall(r"Not proven: no plan takes less than (\S+) s", stdout)
    if not told:
        assert "Undecided: no plan was found, and not all were looked at." in stdout
    else:  # the answer has few digits, its certificate below six
        assert float(told[-1]) == pytest.approx(best.step_s, abs=1e-6)
    assert stderr.endswith("note: stopped by Ctrl-C\n")


@pytest.mark.slow
def test_an_explanation_keeps_the_plan_and_leaves_the_rest_out() -> None:
    """The proof takes a second, what is near the plan many times as long."""
    spec = "llama3-70b-128xa100"
    stdout, stderr = interrupted("comparing", "explain", spec, "--format", "json")
    told = json.loads(stdout)
    assert told["fits"]
    assert told["is_stopped"]
    assert told["plan"]["step_s"] > 0
    assert told["marginal_values"] == []
    assert "note: stopped by Ctrl-C" in stderr


def test_a_second_time_ends_at_once(limited: str) -> None:
    with started("groups of plans to bound", "solve", limited) as process:
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=10)
    assert (process.returncode, stdout) == (KILLED, "")
    assert "Traceback" not in stderr


def test_a_time_limit_that_leaves_a_gap_is_undecided() -> None:
    spec = "llama3-70b-128xa100"
    result = run("solve", spec, "--time-limit", "0", "--format", "json")
    told = json.loads(result.stdout)
    assert told["status"] == "feasible"
    assert told["gap"] > 0
    assert result.code == UNDECIDED


def test_cp_sat_ends_soon_after_it_is_asked_to() -> None:
    """Seventeen pigeons in sixteen holes, whom no clause but all of them keeps out."""
    model, interrupt = CpModel(), Interrupt()
    sits = [[model.new_bool_var("") for _ in range(16)] for _ in range(17)]
    for sit in sits:
        model.add_bool_or(sit)
    for hole in zip(*sits, strict=True):
        for one in range(17):
            for other in range(one):
                model.add_bool_or(~hole[one], ~hole[other])
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.cp_model_presolve = False
    solver.parameters.max_time_in_seconds = 60.0
    threading.Timer(0.3, setattr, (interrupt, "is_asked", True)).start()
    start_s = time.monotonic()
    status = solve_until(Deadline(interrupt=interrupt), solver, model)
    assert status == cp_model.UNKNOWN
    assert time.monotonic() - start_s < 10.0


def test_work_that_is_asked_to_end_has_a_stand_in() -> None:
    interrupt = Interrupt()

    def end() -> str:
        assert not interrupt.is_heeded
        interrupt.is_asked = True
        raise KeyboardInterrupt

    interrupt.is_heeded = True
    assert interrupt.unless_asked(lambda: "whole", "part") == "whole"
    assert interrupt.unless_asked(end, "part") == "part"
    assert interrupt.unless_asked(lambda: "whole", "part") == "part"
    assert interrupt.is_heeded


def test_without_a_wish_to_see_more_an_interrupt_goes_through() -> None:
    def end() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Interrupt().unless_asked(end, "part")


def test_of_unlike_parts_the_ways_that_were_looked_at_are_told() -> None:
    """Asked to end in the midst of the first way, the others stay open."""
    interrupt = Interrupt()

    def say(text: str) -> None:
        interrupt.is_asked |= "proving among" in text

    spec = mw.load("llama2-13b-8xh100-8xa100", mw.Spec)
    outcome = solve(spec, Options(on_progress=say, interrupt=interrupt))
    assert outcome.status == "feasible"
    assert len(outcome.arrangements) == 1
    assert outcome.certificate is not None
    assert outcome.certificate.bound_s == 0.0
    assert outcome.certificate.left_open
