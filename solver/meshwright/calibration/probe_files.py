"""Probes as files: the spec, a plan for each run, and the runs to fill in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from meshwright.calibration.probe import Probe, Probes
from meshwright.loading.plan_text import pins_of_answer

SPEC, RUNS = "spec.yaml", "runs.yaml"

RUNS_HEAD = """\
# Launch each plan for some tens of steps, and fill in what you measure. `fits: false`
# for a run out of memory is as good as a time. Then:
#   meshwright calibrate runs.yaml -o profile.yaml
"""


class File(NamedTuple):
    """A file to write, by its plain name."""

    name: str
    text: str


def plan_name(number: int) -> str:
    """Return the name of the plan file of a probe."""
    return f"probe-{number}.yaml"


def probe_files(found: Probes) -> Iterator[File]:
    """Yield the spec, the plans and the runs file."""
    data = found.spec.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True
    )
    yield File(SPEC, f"# {found.spec.title}\n" + _text(data))
    for number, probe in enumerate(found.runs, start=1):
        fields = pins_of_answer(probe.plan.model_dump(mode="json"))
        yield File(plan_name(number), f"# {probe.plan}\n" + _text(fields))
    yield File(RUNS, RUNS_HEAD + "".join(_runs(found)))


def _runs(found: Probes) -> Iterator[str]:
    for number, probe in enumerate(found.runs, start=1):
        yield _run(number, probe)


def _run(number: int, probe: Probe) -> str:
    """Return a run with its measured values left out."""
    return f"""
# predicted: {probe.step_s:.3g} s a step, {probe.peak_gib:.1f} GiB
- id: probe-{number}
  source_id: probes
  spec: {SPEC}
  plan: {plan_name(number)}
  measured:
    step_time_s: null        # seconds of a step, once it is steady
    peak_memory_gb: null     # GiB of the fullest GPU
    peak_memory_kind: device # nvidia-smi; or of PyTorch: allocated, reserved
    fits: null               # true, or false: out of memory
"""


def _text(data: dict[str, Any]) -> str:
    return str(yaml.safe_dump(data, sort_keys=False, default_flow_style=None))
