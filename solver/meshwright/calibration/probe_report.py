"""Files and tables for a user who makes runs: probes to launch, runs to fill in."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from meshwright.calibration.calibrate import word
from meshwright.calibration.probe import Probe, Probes
from meshwright.loading.plan_text import pins_of_answer
from meshwright.report.tables import Lines, Section, Table, seconds_text
from meshwright.results.claims import probability_text

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


def probe_sections(found: Probes, folder: Path | None) -> list[Section]:
    """Return the sections of probes, with commands where they are in a folder."""
    rows = tuple(
        (str(number), *_cells(one)) for number, one in enumerate(found.runs, start=1)
    )
    heading = ("run", "plan", "step", "GiB", "fits", "nats", "tells of")
    title = (
        f"The runs that tell most, of {found.candidates} plans; {found.rivals} of the "
        "spec's may be its best"
    )
    parts: list[Section] = [
        Lines(found.spec.title, ()),
        Table(title, heading, rows),
        Lines("Reading", tuple(_reading())),
    ]
    if folder is not None:
        parts.append(Lines("To launch them", tuple(_commands(found, folder))))
    return parts


def _cells(one: Probe) -> tuple[str, ...]:
    switches = ", ".join(
        f"{name} {word(setting)}" for name, setting in one.choice.tells_of
    )
    return (
        one.plan.brief,
        seconds_text(one.step_s),
        f"{one.peak_gib:.1f}",
        probability_text(one.choice.fits),
        f"{one.choice.nats:.2f}",
        switches or "efficiencies",
    )


def _reading() -> Iterator[str]:
    yield "step, GiB: as predicted now. fits: how likely, with all switches in doubt."
    yield "nats: what the run is expected to tell beside those above it."
    yield "tells of: whether the code has this switch so; else of efficiencies alone."


def _commands(found: Probes, folder: Path) -> Iterator[str]:
    for number in range(1, len(found.runs) + 1) if found.is_exported else ():
        plan = folder / plan_name(number)
        files = _quoted(folder / plan.stem)
        yield f"mkdir -p {files}"
        yield (
            f"meshwright export {_quoted(folder / SPEC)} --plan {_quoted(plan)} "
            f"-o {files}"
        )
    runs, profile = folder / RUNS, folder / "profile.yaml"
    yield f"meshwright calibrate {_quoted(runs)} -o {_quoted(profile)}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


TEMPLATE = """\
# Runs for `meshwright calibrate RUNS -o profile.yaml`: a list, one entry a run.
# Leave out, or leave null, whatever you do not know. Five runs that differ tell more
# than fifty alike: `meshwright probe SPEC` picks them, and writes such a file.

- id: tp4                       # any name, different for each run
  source_id: ours               # one name for all runs of one cluster
  spec: llama2-13b-8xa100       # a file beside this one, or a bundled spec
  plan: tp=4,pp=1,zero=1,micro_batch=1    # or a file; all that `--plan` takes
  measured:
    step_time_s: null           # seconds of a step, once it is steady
    tokens_per_s_per_gpu: null  # instead of step_time_s
    peak_memory_gb: null        # GiB of the fullest GPU
    peak_memory_kind: device    # as nvidia-smi shows it; PyTorch: allocated, reserved
    fits: null                  # true, or false: out of memory; enough by itself

# Without a spec file, a run says model, hardware and plan field by field.
- id: tp2
  source_id: ours
  model:
    {name: llama2-13b, n_layers: 40, d_model: 5120, n_heads: 40, n_kv_heads: 40,
     d_ff: 13824, vocab: 32000, seq_len: 4096, gated_mlp: true, tied: false}
  hardware:
    gpu: A100-80GB-SXM
    n_gpus: 8
    gpus_per_node: 8
    power_limit_w: null         # where nvidia-smi shows less than the GPU's rating
  config:
    dp: 4
    tp: 2
    pp: 1
    sp: true                    # sequence parallelism
    zero_stage: 1
    micro_batch: 1
    global_batch: 64
    recompute: none             # none, selective or full
    precision: bf16
    framework: Megatron-LM
    # Switches of your code. Those left null are found, with their probabilities.
    compile: null               # torch.compile
    attention: null             # flash or plain
    fused: null                 # of norm, rope, activation, softmax, loss, dropout
    overlap: null               # none, or what hides: grad-reduce, param-gather, ...
    cuda_graphs: null
    gradients: null             # bf16 or fp32, in which they are summed
    loss_parallel: null
    loss_chunks: null           # a number
    expert_dispatch: null       # alltoall or deepep
    cp_comm_type: null          # p2p, all_gather or a2a
  measured: {step_time_s: null, peak_memory_gb: null, fits: null}
"""
