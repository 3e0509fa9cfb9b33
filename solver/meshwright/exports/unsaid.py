"""Settings of a spec that change its price, and that no file of an export carries."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, get_args

from meshwright.frameworks.base.framework import Framework
from meshwright.frameworks.base.registry import framework_of
from meshwright.spec.spec import Spec
from meshwright.spec.training import FusedOperation, Overlap, Training


def unsaid(spec: Spec, title: str, said: Collection[str]) -> Iterator[str]:
    """Yield a note on each setting that is priced and that a launch is not told.

    `said` names the settings that the files carry. A setting as the framework has it
    by itself needs no telling.
    """
    usual = framework_of(spec)
    for name, value, default in _settings(spec.training, usual):
        if value not in (None, default) and name not in said:
            yield (
                f"The price counts on `training.{name}` {str(value).lower()}, which "
                f"none of these files tells {title}: your code must see to it."
            )


def _settings(training: Training, usual: Framework) -> Iterator[tuple[str, Any, Any]]:
    """Yield names of settings, what a spec says, and what its framework has."""
    yield "compile", training.compile, False
    yield "cuda_graphs", training.cuda_graphs, usual.has_cuda_graphs
    yield "loss_chunks", training.loss_chunks, usual.loss_chunks
    yield "loss_parallel", training.loss_parallel, usual.is_loss_parallel
    for kind in Overlap.model_fields:
        own = getattr(training.overlap, kind)
        yield f"overlap.{kind}", own, kind in usual.overlap
    if training.fused is not None:
        for operation in get_args(FusedOperation):
            is_fused = operation in training.fused
            yield f"fused.{operation}", is_fused, operation in usual.fused
