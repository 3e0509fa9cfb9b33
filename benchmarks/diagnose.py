"""Plants faults into logs and counts how often `diagnose` finds them.

    python -m benchmarks.diagnose

Every fault of `diagnose.yaml` is planted with noise of the size that the profile states
for such runs: one error of the whole step, and one of each part. The size of a fault is
none of the sizes that hypotheses have.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks import without_options
from meshwright.cost.profile import Profile, load_profile
from meshwright.diagnosis.diagnose import diagnosis
from meshwright.diagnosis.faults import Case, Fault, PartName, Run, faults, slower_links
from meshwright.diagnosis.hypotheses import (
    Hypothesis,
    Modelled,
    judged,
    modelled,
    noise_of,
)
from meshwright.explanations.decisions import with_pins
from meshwright.imports.launches.launch import Launch
from meshwright.imports.logs.out_of_memory import phase_of
from meshwright.imports.logs.training_log import (
    OutOfMemory,
    Part,
    PartOf,
    Peak,
    Steps,
    TrainingLog,
)
from meshwright.loading.load import load_spec
from meshwright.loading.plan_text import read_plan
from meshwright.planner.options import Options
from meshwright.planner.solve import asked_plan
from meshwright.report.tables import Lines, Section, Table, sections_as_text
from meshwright.spec.plan_fields import Pins

CASES = Path(__file__).with_name("diagnose.yaml")

SEEDS = range(10)
"""Draws of the noise of every fault."""

PARTS: dict[str, dict[PartName, PartOf]] = {
    "megatron": {
        "forward": "forward",
        "backward": "backward",
        "gradients": "gradient reduction",
        "gathers": "parameter gather",
        "optimizer": "optimizer",
        "pipeline": "pipeline",
        "input": "input",
    },
    "passes": {"forward": "forward", "backward": "backward"},
    "torchtitan": {"input": "input"},
    "memory": {},
}
"""By kind of log, the parts of a step that it tells; all tell the peak of memory."""


@dataclass(frozen=True)
class Planted:
    """A run as it was asked for, and the fault that is planted into it."""

    name: str
    run: Run
    """As it was asked for, with a log that tells nothing yet."""
    key: str
    case: Case
    timers: str


def planted(profile: Profile, keys: Collection[str] | None = None) -> Iterator[Planted]:
    """Yield the faults of the file, those of some keys alone if any are given."""
    for one in yaml.safe_load(CASES.read_text("utf-8"))["planted"]:
        if keys is not None and not {*one["fault"]} & {*keys}:
            continue
        spec = profile.applied_to(load_spec(one["spec"]))
        pins = read_plan(one["plan"], spec)
        plan = asked_plan(with_pins(spec, pins), Options(profile=profile))
        launch = Launch("megatron_log", one["name"], spec.framework, one["name"])
        run = Run(spec, plan, TrainingLog("megatron_log", one["name"], launch))
        ((key, size),) = one["fault"].items()
        yield Planted(one["name"], run, key, _case(run, key, size), one["timers"])


def _case(run: Run, key: str, size: Any) -> Case:
    """Return the run with a fault of a size that hypotheses need not have."""
    base = Case("", run.spec, run.plan)
    known: Mapping[str, Fault] = {fault.key: fault for fault in faults(run)}
    if key == "network":
        return replace(base, spec=slower_links(run.spec, size))
    if key == "straggler":
        return replace(base, slow=size)
    if key == "clocks":
        return replace(base, clocks=size)
    if key == "host":
        return replace(base, host=size)
    if key == "input":
        return replace(base, waits=size)
    return known[key].cases[-1]


def log_of(one: Planted, profile: Profile, seed: int | None) -> TrainingLog:
    """Return the log of a run with its fault, with noise as the profile states it.

    Without a seed there is none: it is the log that says most of the fault.
    """
    told, noise = modelled(one.case, profile), noise_of(one.run, profile)
    rng = np.random.default_rng(seed)

    def error(sd: float) -> float:
        return math.exp(sd * float(rng.standard_normal() if seed is not None else 0))

    whole = error(noise.step_sd)
    parts: dict[PartName, float] = {
        name: seconds * error(noise.step_sd)
        for name, seconds in told.parts.items()
        if name != "forward and backward"
    }
    step_s = _with_parts(told, parts) * whole
    kept = PARTS[one.timers]
    peak = told.allocated_gib * math.exp(noise.memory_bias) * error(noise.memory_sd)
    return replace(
        one.run.log,
        steps=Steps(step_s, 0.99 * step_s, 1.01 * step_s, 50),
        parts=tuple(
            Part(
                name,
                kept[name],
                seconds * whole,
                _fastest_s(one, told, name, seconds * whole),
            )
            for name, seconds in parts.items()
            if name in kept
        ),
        peaks=(Peak(allocated_gib=peak),),
    )


def _fastest_s(
    one: Planted, told: Modelled, name: PartName, seconds: float
) -> float | None:
    """Return the seconds of a pass on the fastest rank, where the log has them."""
    is_pass = name in ("forward", "backward") and one.timers == "megatron"
    return seconds / told.spread if is_pass else None


def _with_parts(told: Modelled, parts: Mapping[PartName, float]) -> float:
    """Return the step in which parts take so long."""
    before = math.fsum(told.parts[name] for name in parts)
    return told.step_s + math.fsum(parts.values()) - before


def rank(one: Planted, found: tuple[Hypothesis, ...]) -> int:
    """Return the place of the planted fault, from 1."""
    keys = [hypothesis.fault.key for hypothesis in found]
    return keys.index(one.key) + 1


@dataclass(frozen=True)
class Published:
    """A message that memory ran out, and the part that a reader takes it for."""

    thread: str
    run: Run
    part: str


def published(profile: Profile) -> Iterator[Published]:
    """Yield the messages of the file."""
    for one in yaml.safe_load(CASES.read_text("utf-8"))["out_of_memory"]:
        spec = profile.applied_to(load_spec(_spec_of(one)))
        plain = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "offload": "none"}
        if one["plan"]["zero"]:
            plain["dp_replicate"] = 1
        pins = Pins.model_validate(plain | one["plan"])
        plan = asked_plan(with_pins(spec, pins), Options(profile=profile))
        launch = Launch("torch_error", "PyTorch", spec.framework, one["thread"])
        frames = tuple(one.get("frames", ()))
        told = {"phase": phase_of(frames)} | one["message"]
        event = OutOfMemory(1, **told, frames=frames)
        log = TrainingLog("torch_error", "PyTorch", launch, out_of_memory=event)
        yield Published(one["thread"], Run(spec, plan, log), one["part"])


def _spec_of(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a message: GPUs of one host, or eight to a host."""
    count = one["count"]
    inside = {"name": "inside", "size": min(count, 8), "gb_s": 100, "latency_us": 2}
    gpu = one["gpu"]
    topology: dict[str, Any] = {"name": "published", "gpu": gpu, "levels": [inside]}
    topology["host"] = {"memory_gib": 1024, "pcie_gb_s": 25, "memory_gb_s": 200}
    if count > 8:
        net = {"name": "net", "gb_s": 25, "latency_us": 3, "uplink": "per_gpu"}
        topology["scale_out"] = net
    of_rank = math.lcm(8, one["plan"]["micro_batch"])
    training = {"seq_len": one["seq_len"], "global_batch": of_rank * count}
    for name in ("precision", "lora", "attention"):
        if name in one:
            training[name] = one[name]
    limits = {"memory_gib": one["memory_gib"]} if "memory_gib" in one else {}
    return {
        "model": one["model"],
        "cluster": {"topology": topology, "count": max(count // 8, 1)},
        "framework": one["framework"],
        "training": training,
        "limits": limits,
    }


def memory_table(profile: Profile) -> list[Section]:
    """Return what is said of the published messages."""
    rows, right, mended = [], 0, 0
    for one in published(profile):
        told = diagnosis(one.run, Options(profile=profile)).out_of_memory
        assert told is not None
        right += told.part == one.part
        mended += bool(told.repairs)
        rows.append(
            (
                one.thread,
                f"{told.tried_gib:.2f}",
                one.part,
                told.part,
                told.suspects[0].name,
                "yes" if told.is_fragmented else "",
                ", ".join(told.repairs[0].edits) if told.repairs else "none",
            )
        )
    heading = ("thread", "GiB", "part", "told", "tensor", "fragments", "first change")
    count = f"Part named in {right} of {len(rows)}; a change that fits in {mended}."
    return [Table("Out of memory", heading, tuple(rows)), Lines("All", (count,))]


def main() -> None:
    """Print the tables of planted faults and of published messages."""
    profile = load_profile("measured")
    sections = [*fault_table(profile), *memory_table(profile)]
    sys.stdout.write(sections_as_text(sections, 160))


def fault_table(profile: Profile) -> list[Section]:
    """Return how often planted faults are found."""
    rows, first, second = [], 0, 0
    for one in planted(profile):
        places, probabilities = [], []
        for seed in SEEDS:
            run = replace(one.run, log=log_of(one, profile, seed))
            found = judged(run, profile)
            places.append(rank(one, found))
            probabilities.append(found[places[-1] - 1].probability)
        slower = modelled(one.case, profile).step_s
        slower /= modelled(Case("", one.run.spec, one.run.plan), profile).step_s
        likely = found[0].fault.key
        clear = judged(replace(one.run, log=log_of(one, profile, None)), profile)
        median = sorted(places)[len(places) // 2]
        first, second = first + (median == 1), second + (median <= 2)
        rows.append(
            (
                one.name,
                one.key,
                f"{slower - 1:+.0%}",
                f"{places.count(1)} of {len(places)}",
                str(sum(place <= 2 for place in places)),
                f"{np.mean(probabilities):.2f}",
                likely,
                f"{clear[rank(one, clear) - 1].probability:.2f}",
            )
        )
    heading = (
        *("run", "fault", "step", "first", "in two", "probability", "last likely"),
        "without noise",
    )
    told = f"First in {first} of {len(rows)}, among the first two in {second}."
    return [Table("Planted faults", heading, tuple(rows)), Lines("All", (told,))]


if __name__ == "__main__":
    without_options(__doc__)
    main()
