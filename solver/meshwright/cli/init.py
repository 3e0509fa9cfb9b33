"""`meshwright init`: five questions, and a commented spec of the answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from meshwright.cli.options import check_writable, tell, write
from meshwright.errors import SpecError
from meshwright.escape import printable

T = TypeVar("T")

MOST_TRIES = 5

TEXT = """\
# What is trained: a bundled name, a name of the hub, or a config.json.
model: {model}
# Where: a machine or topology by name, or a file of nvidia-smi topo -m and others.
cluster: {cluster}
# What runs it: plans are those that it can launch, at the speed of its kernels.
framework: {framework}
training:
  seq_len: {seq_len}  # tokens
  global_batch: {batch}  # sequences per step
  precision: bf16  # or fp8, fp16, tf32, fp32, or a list to choose from
# What is already decided, and what plans must keep; see meshwright schema spec.
# pins: {{tp: 8, zero: 1}}
# limits: {{oom_risk: 0.01}}
"""


def init(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where to write the spec.")
    ] = Path("spec.yaml"),
) -> None:
    """Ask five questions, and write a commented spec."""
    check_writable(output)
    if output.exists():
        raise SpecError(f"--output {output}: is there already; name another file")
    from meshwright.loading.asked import Asked, cluster_of
    from meshwright.loading.saved_question import in_one_line, seen_from
    from meshwright.spec.framework_names import framework_names
    from meshwright.spec.spec import Spec

    model = _asked("Model (a name such as llama3-8b, or a config.json)", _model)
    place = _asked("Machine or topology (a name such as dgx-h100, or a file)", str)
    count = _asked("How many of them", _whole, "1")
    gpu = None
    try:
        cluster = cluster_of(Asked(cluster=place, count=count))
    except SpecError as error:
        if not str(error).startswith("--gpu"):
            raise
        gpu = _asked("Its GPU (a name such as h100-sxm-80gb)", str)
        cluster = cluster_of(Asked(cluster=place, count=count, gpu=gpu))
    names, usual = framework_names(), Spec.model_fields["framework"].default
    framework = _asked(f"Framework ({', '.join(names)})", _one_of(names), usual)
    lengths = _asked("Tokens per sequence, and sequences per step", _pair, "4096 256")
    text = TEXT.format(
        model=seen_from(output, model),
        cluster=in_one_line(output, cluster),
        framework=framework,
        seq_len=lengths[0],
        batch=lengths[1],
    )
    write(text, output)
    tell([f"wrote {output}; next: meshwright solve {output}"])


def _asked(question: str, read: Callable[[str], T], usual: str | None = None) -> T:
    """Return an answer, asked for again while it cannot be read.

    Raises:
        SpecError: there is no answer, or none that can be read in a few tries.
    """
    for _ in range(MOST_TRIES):
        told = f"{question} [{usual}]: " if usual else f"{question}: "
        print(told, end="", file=sys.stderr, flush=True)
        if not (answer := sys.stdin.readline()):
            break
        try:
            return read(answer.strip() or usual or "")
        except (SpecError, ValueError) as error:
            print(printable(str(error)), file=sys.stderr)
    raise SpecError(f"{question}: no answer")


def _model(name: str) -> str:
    from meshwright.catalog import MODELS, locate

    if not Path(name).exists():
        locate(MODELS, name, Path())
    return name


def _whole(text: str) -> int:
    try:
        count = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        count = 0
    if count < 1:
        raise ValueError(f"{text!r}: expected a whole number above 0")
    return count


def _pair(text: str) -> tuple[int, int]:
    first, *rest = text.split() or [""]
    if len(rest) != 1:
        raise ValueError(f"{text!r}: expected two whole numbers, such as 4096 256")
    return _whole(first), _whole(rest[0])


def _one_of(names: list[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r}: expected one of {', '.join(names)}")
        return text

    return read
