"""The worth of slightly better hardware and of more requests, by solving again."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.explanations.changed_spec import with_memory, with_topology
from meshwright.results.serving_explanation import MarginalValue
from meshwright.serving.solve import solve_serving
from meshwright.spec.gpu import Gpu, PeakTflops
from meshwright.spec.serving import ServingSpec

MORE = 1.1
"""Factor by which hardware is improved."""


def marginal_values(spec: ServingSpec) -> Iterator[MarginalValue]:
    """Yield the best plan on hardware a tenth better, and with doubled requests."""
    for change, changed in (*_hardware(spec), *_requests(spec)):
        yield MarginalValue(change=change, best=solve_serving(changed).best)


def _hardware(spec: ServingSpec) -> Iterator[tuple[str, ServingSpec]]:
    yield "memory +10 %", with_memory(spec, spec.usable_gib * MORE)
    topology = spec.cluster.topology
    gpu, peaks = topology.gpu, topology.gpu.peak_tflops
    wider = {"memory_gb_s": gpu.memory_gb_s * MORE}
    yield "memory bandwidth +10 %", _with_gpu(spec, gpu.model_copy(update=wider))
    known = {name: getattr(peaks, name) * MORE for name in peaks.known}
    quicker = {"peak_tflops": PeakTflops(**known)}
    yield "matmul peak +10 %", _with_gpu(spec, gpu.model_copy(update=quicker))
    for index, level in enumerate(topology.levels):
        levels = list(topology.levels)
        levels[index] = level.model_copy(update={"gb_s": level.gb_s * MORE})
        changed = topology.model_copy(update={"levels": tuple(levels)})
        yield f"{level.name} +10 %", with_topology(spec, changed)
        levels[index] = level.model_copy(update={"latency_us": level.latency_us / MORE})
        changed = topology.model_copy(update={"levels": tuple(levels)})
        yield f"{level.name} latency / 1.1", with_topology(spec, changed)


def _with_gpu(spec: ServingSpec, gpu: Gpu) -> ServingSpec:
    return with_topology(spec, spec.cluster.topology.model_copy(update={"gpu": gpu}))


def _requests(spec: ServingSpec) -> Iterator[tuple[str, ServingSpec]]:
    positions, inference = spec.model.learned_positions, spec.inference
    for name in ("batch", "prompt_len"):
        twice = inference.model_copy(update={name: 2 * getattr(inference, name)})
        if not positions or twice.context <= positions:
            yield f"{name} x 2", spec.model_copy(update={"inference": twice})
