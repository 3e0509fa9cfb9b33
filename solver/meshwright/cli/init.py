"""`meshwright init`: five questions, and a commented spec of the answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from meshwright.cli.output import tell, write
from meshwright.errors import SpecError
from meshwright.escape import printable
from meshwright.writing import unwritten

if TYPE_CHECKING:
    from meshwright.loading.asked import Asked
    from meshwright.spec.cluster import Cluster


T = TypeVar("T")

MOST_TRIES = 5

USUAL = ("bf16", "fp16", "tf32", "fp32", "fp8")
"""Precisions, those first that are written where the GPU has a peak for them."""

OPEN = {
    "gpu": "Its GPU (a name such as h100-sxm-80gb)",
    "machine": "The machines that it joins (a name such as dgx-h100)",
}
"""By option, the question on what a file of a cluster may leave open."""

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
  precision: {precision}  # or {others}or a list to choose from
# What is already decided, and what plans must keep; see meshwright schema spec.
# pins: {{tp: 8, zero: 1}}
# limits: {{oom_risk: 0.01}}
"""


def init(output: Path = Path("spec.yaml")) -> None:
    """Ask five questions, and write a commented spec."""
    try:
        is_there = output.exists()
    except OSError as error:
        raise unwritten(output, "--output", error) from None
    if is_there:
        raise SpecError(f"--output {output}: is there already; name another file")
    from meshwright.loading.asked import in_one_line, seen_from
    from meshwright.loading.load import cluster_of_fields, load_question
    from meshwright.spec.spec import Spec, framework_names

    model = _asked("Model (a name such as llama3-8b, or a config.json)", _model)
    fields = _asked_cluster()
    precision, *others = _precisions(cluster_of_fields(fields))
    names, usual = framework_names(), Spec.model_fields["framework"].default
    framework = _asked(f"Framework ({', '.join(names)})", _one_of(names), usual)
    lengths = _asked("Tokens per sequence, and sequences per step", _pair, "4096 256")

    def text_at(path: Path) -> str:
        return TEXT.format(
            model=_scalar(seen_from(path, model)),
            cluster=in_one_line(path, fields),
            framework=framework,
            seq_len=lengths[0],
            batch=lengths[1],
            precision=precision,
            others="".join(f"{name}, " for name in others),
        )

    load_question(text_at(Path("spec.yaml")))
    write(text_at(output), output)
    tell([f"wrote {output}; next: meshwright solve {output}"])


def _asked_cluster() -> dict[str, Any]:
    """Return the section `cluster` of a spec, asked for part by part."""
    from meshwright.loading.asked import Asked, cluster_of

    place = _asked("Machine or topology (a name such as dgx-h100, or a file)", _place)
    asked = Asked(cluster=place, count=_asked("How many of them", _whole, "1"))
    for option, question in OPEN.items():
        if _is_missing(asked, option):
            asked = _asked(question, partial(_with, asked, option))
    return cluster_of(asked)


def _place(name: str) -> str:
    """Return the name of a cluster, whose file may leave a part open."""
    from meshwright.loading.asked import Asked

    asked = Asked(cluster=name)
    if not any(_is_missing(asked, option) for option in OPEN):
        _with(asked, "cluster", name)
    return name


def _is_missing(asked: Asked, option: str) -> bool:
    """Return whether the file of a cluster leaves a part open."""
    from meshwright.loading.asked import cluster_of

    try:
        cluster_of(asked)
    except SpecError as error:
        return str(error).startswith(f"--{option}: missing")
    return False


def _with(asked: Asked, option: str, name: str) -> Asked:
    """Return what is asked with one part more.

    Raises:
        SpecError: the cluster is none, or a part is still missing.
    """
    from meshwright.loading.asked import cluster_of
    from meshwright.loading.load import cluster_of_fields

    part: dict[str, Any] = {option: name}
    more = replace(asked, **part)
    cluster_of_fields(cluster_of(more))
    return more


def _precisions(cluster: Cluster) -> list[str]:
    """Return the precisions that all GPUs have, the usual one first."""
    gpus = [part.topology.gpu for part in cluster.parts] or [cluster.topology.gpu]
    known = [gpu.peak_tflops.known for gpu in gpus]
    return [name for name in USUAL if all(name in peaks for peaks in known)]


def _scalar(text: str) -> str:
    """Return text as YAML writes it inside a line."""
    import yaml

    written = yaml.safe_dump(text, width=float("inf"), allow_unicode=True)
    return str(written).removesuffix("\n").removesuffix("\n...")


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
            if not (given := answer.strip() or usual):
                raise ValueError("expected an answer")
            return read(given)
        except (SpecError, ValueError) as error:
            print(printable(str(error)), file=sys.stderr)
    raise SpecError(f"{question}: missing; no spec was written")


def _model(name: str) -> str:
    from meshwright.catalog import MODELS, locate
    from meshwright.reading.yaml_and_csv import is_file

    if not is_file(name):
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
