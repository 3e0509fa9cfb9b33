"""Traces of one rank in the form of PyTorch's profiler (Kineto).

`python -m tests.helpers.kineto` writes the two in `tests/data`: one of a training step
on a CPU, measured (it needs torch), and one of a GPU, which nobody measured: the
modelled step of a plan with the kernel names of a real one, sends three times as long
and compute a tenth longer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"

GPU_PLAN = ("tp=2", "pp=2", "micro_batch=1", "recompute=none")
"""Pins of the plan whose step the GPU's trace is of, on `llama2-13b-8xa100`."""

SLOWER = {"pp": 3.0, "compute": 1.1}

KERNELS = {
    "compute": "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "recompute": "void at::native::vectorized_elementwise_kernel<4, GeluFunctor>",
    "tp": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "dp": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
    "zero": "ncclDevKernel_AllGather_RING_LL",
    "cp": "ncclDevKernel_SendRecv",
    "pp": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "ep": "ncclDevKernel_SendRecv",
    "optimizer": "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>",
    "offload": "Memcpy HtoD (Pinned -> Device)",
}

Event = dict[str, Any]


def as_kineto(
    trace: Mapping[str, Any],
    stage: int,
    slower: Mapping[str, float] | None = None,
    steps: int = 1,
) -> dict[str, Any]:
    """Return a modelled trace of a stage as a profiler would show it.

    Parts of tasks that are `slower` push all that follows them on the GPU back.
    """
    events: list[Event] = []
    mine = [
        e
        for e in trace["traceEvents"]
        if e["ph"] == "X" and e["pid"] == stage and e["cat"] in KERNELS
    ]
    ends = (e["ts"] + e["dur"] for e in trace["traceEvents"] if e["ph"] == "X")
    whole, at = max(ends), 0.0
    for step in range(steps):
        late = 0.0
        for e in sorted(mine, key=lambda given: float(given["ts"])):
            takes = e["dur"] * (slower or {}).get(e["cat"], 1.0)
            events.append(_kernel(e["cat"], at + e["ts"] + late, takes))
            late += takes - e["dur"]
        events.append(_annotation(f"ProfilerStep#{step}", at, whole + late))
        at += whole + late
    return {"schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": events}


def _kernel(part: str, start: float, takes: float) -> Event:
    about: Event = {"device": 0, "stream": 7}
    if part == "ep":
        about["Collective name"] = "all_to_allv"
    category = "gpu_memcpy" if part == "offload" else "kernel"
    return _event(KERNELS[part], category, start, takes, about)


def _annotation(name: str, start: float, takes: float) -> Event:
    return _event(name, "gpu_user_annotation", start, takes, {})


def _event(name: str, category: str, start: float, takes: float, about: Event) -> Event:
    times = {"ts": round(start, 3), "dur": round(takes, 3)}
    where = {"pid": 0, "tid": 7}
    return {"ph": "X", "cat": category, "name": name, **where, **times, "args": about}


def text_of(events: Iterable[Event]) -> str:
    """Return a trace of events, one a line."""
    lines = ",\n".join(map(json.dumps, events))
    return f'{{"schemaVersion": 1, "traceEvents": [\n{lines}\n]}}\n'


def measured_on_cpu() -> list[Event]:
    """Return what PyTorch's profiler sees of two steps of a small layer, trimmed."""
    import tempfile

    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    tokens = torch.randn(8, 32, 64)
    found: list[Event] = []

    def keep(done: Any) -> None:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            done.export_chrome_trace(file.name)
            found.extend(json.loads(Path(file.name).read_bytes())["traceEvents"])

    waits = schedule(wait=0, warmup=2, active=2)
    only_cpu = [ProfilerActivity.CPU]
    with profile(activities=only_cpu, schedule=waits, on_trace_ready=keep) as profiler:
        for _ in range(4):
            layer(tokens).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    return trimmed(found)


def trimmed(events: list[Event]) -> list[Event]:
    """Return the operators and annotations of a trace, without what is not read."""
    kept = [e for e in events if e.get("cat") in {"cpu_op", "user_annotation"}]
    start, process = min(e["ts"] for e in kept), kept[0]["pid"]
    names = ("ph", "cat", "name", "ts", "dur", "pid", "tid")
    result = [{name: e[name] for name in names} for e in kept]
    for e in result:
        e |= {"ts": round(e["ts"] - start, 3), "pid": 0, "tid": e["tid"] - process}
    return sorted(result, key=lambda e: (e["ts"], -e["dur"]))


def _main() -> None:
    import meshwright as mw
    from meshwright.api.price import timeline
    from meshwright.report.simulation import trace_text

    spec = mw.load("llama2-13b-8xa100", pins=list(GPU_PLAN))
    assert isinstance(spec, mw.Spec)
    best = mw.solve(spec, by_kind=False, safety=False, repair=False).best
    assert best is not None
    modelled = json.loads(trace_text(timeline(spec, best.plan)))
    on_gpu = as_kineto(modelled, 0, SLOWER)["traceEvents"]
    (DATA / "kineto-gpu.json").write_text(text_of(on_gpu), encoding="utf-8")
    on_cpu = measured_on_cpu()
    (DATA / "kineto-cpu.json").write_text(text_of(on_cpu), encoding="utf-8")


if __name__ == "__main__":
    _main()
