"""What makers publish for a model on GPUs: `python -m benchmarks.published`.

Writes the plans, and the highest MFU of each GPU, precision and kind of framework, that
`solve` names beside its answer. Plans are those of benchmarks/experts, and of the runs
in benchmarks/runs that a vendor tuned: of those for the same model, sequence, precision
and GPUs, the one with the highest measured throughput. Adapters are other jobs than
training, and their MFUs are left out; so is training without fp32 weights, whose plans
need half the memory. Takes a minute of two cores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import meshwright as mw
from benchmarks import without_options
from benchmarks.experts.read import Configuration, configurations, exceptions
from benchmarks.runs_of import STRONG, UNFITTED, all_runs, launched_by, timed
from meshwright.cost.profile import PATH
from meshwright.cost.whole_model import job_flops, stated_params
from meshwright.evidence.price import Priced
from meshwright.frameworks.base.registry import framework
from meshwright.results.outcome_parts import HighestMfu
from meshwright.spec.base import SpecModel
from meshwright.spec.run_before import PlanOfMaker

PUBLICATIONS = {
    "dgxc_gb200": "NVIDIA/dgxc-benchmarking",
    "dgxc_h100": "NVIDIA/dgxc-benchmarking",
    "internevo": "InternLM/InternEvo",
    "korthikanti22": "arXiv 2205.05198",
    "llm_foundry": "mosaicml/llm-foundry",
    "mbridge": "NVIDIA-NeMo/Megatron-Bridge",
    "megatron_h100": "NVIDIA/Megatron-LM",
    "narayanan21": "arXiv 2104.04473",
    "nemo_2407": "NVIDIA/NeMo",
    "nemo_launcher": "NVIDIA/NeMo-Framework-Launcher",
    "nemo_longseq": "NVIDIA/NeMo",
    "primus": "AMD-AGI/Primus",
    "vtrain": "arXiv 2312.12391",
}
"""Publications of runs that do not name theirs, by their source."""

NO_FP32 = "none"
"""`training.master_weights` of runs that keep weights in 16 bits alone."""

FEWEST_RUNS = 10
"""Runs of a GPU, precision and kind whose highest MFU says what can be reached."""


def main() -> None:
    """Collect and write."""
    runs = [
        one
        for folder in (STRONG, UNFITTED)
        for one in timed(all_runs(folder).priced)
        if one.spec.training.lora or one.spec.training.master_weights != NO_FP32
    ]
    plans = fastest([*of_runs(runs), *of_configurations()])
    highest = highest_mfu([one for one in runs if one.spec.training.lora is None])
    parts = ",\n".join((lines("plans", plans), lines("highest_mfu", highest)))
    PATH.write_text(f"{{\n{parts}\n}}\n", encoding="utf-8")
    print(f"wrote {len(plans)} plans and {len(highest)} MFUs to {PATH}")


def lines(name: str, rows: Sequence[SpecModel]) -> str:
    """Return a named list in JSON with a line for each row."""
    told = (one.model_dump_json(exclude_none=True) for one in rows)
    return f'"{name}": [\n' + ",\n".join(told) + "\n]"


def of_runs(runs: list[Priced]) -> Iterator[PlanOfMaker]:
    """Yield the plans of runs that vendors tuned."""
    for one in runs:
        if one.run.config.tuned != "vendor" or one.run.measured.fits is False:
            continue
        batch, step_s = one.spec.training.global_batch, one.run.step_s
        assert step_s is not None
        yield plan_of(
            one.spec,
            launched_by(one),
            fields_of(one),
            publication(one),
            batch * one.spec.training.seq_len / step_s / one.plan.world_size,
        )


def publication(one: Priced) -> str:
    """Return where a run is published, and its name there."""
    where = PUBLICATIONS.get(one.run.source_id) or one.run.source
    return f"{where.split('@')[0] or one.run.source_id}, {one.run.id}"


def fields_of(one: Priced) -> dict[str, Any]:
    """Return what is published of a run's plan, as pins; data parallelism is left."""
    names = ("tp", "pp", "vpp", "cp", "ep", "zero", "micro_batch", "offload")
    fields = {name: getattr(one.plan, name) for name in names}
    if one.run.config.recompute is None:
        return fields
    fields["recompute"] = one.plan.recompute
    if any(stage.recompute_layers != stage.layers for stage in one.plan.stages):
        fields["recompute_layers"] = "any"
    return fields if fields["recompute"] != "none" else _without_layers(fields)


def _without_layers(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if "layers" not in name}


def of_configurations() -> Iterator[PlanOfMaker]:
    """Yield the plans that teams published, as far as a spec can pin them."""
    known = exceptions()
    for one in configurations():
        if one.lacks or not one.framework or one.id in known:
            continue
        spec = mw.load(one.spec, mw.Spec)
        yield plan_of(spec, spec.framework, one.plan, _source(one), _rate_of(one))


def _rate_of(one: Configuration) -> float | None:
    """Return the tokens/s of each GPU that a team measured, if it published them."""
    if one.measured_step_s is None:
        return None
    spec = mw.load(one.spec, mw.Spec)
    batch = spec.training.global_batch * spec.training.seq_len
    return batch / one.measured_step_s / spec.cluster.gpus


def _source(one: Configuration) -> str:
    return f"{one.source.get('repo') or one.runs_on}, {one.from_}".rstrip(", ")


def plan_of(
    spec: mw.Spec,
    launched: str,
    plan: dict[str, Any],
    source: str,
    rate: float | None,
) -> PlanOfMaker:
    """Return a published plan with the facts by which specs are compared."""
    return PlanOfMaker(
        model=spec.model.name,
        params=stated_params(spec.model),
        gpu=spec.cluster.topology.gpu.name,
        gpus=spec.cluster.gpus,
        framework=launched,
        precision=spec.training.precision,
        seq_len=spec.training.seq_len,
        global_batch=spec.training.global_batch,
        frozen=spec.training.lora.weights if spec.training.lora else None,
        plan=plan,
        gradients=spec.training.gradients,
        expert_dispatch=spec.training.expert_dispatch if spec.model.moe else None,
        tokens_per_s_per_gpu=rate and float(f"{rate:.4g}"),
        source=source,
    )


def fastest(plans: list[PlanOfMaker]) -> list[PlanOfMaker]:
    """Return the plan with the highest throughput for each job.

    Where one plan is that for several numbers of GPUs, it stands once, with the least.
    """
    best: dict[tuple[object, ...], PlanOfMaker] = {}
    for one in plans:
        key = (*_job(one), one.gpus)
        if key not in best or _rate(one) > _rate(best[key]):
            best[key] = one
    once: dict[tuple[object, ...], PlanOfMaker] = {}
    for one in sorted(best.values(), key=lambda one: one.gpus):
        once.setdefault((*_job(one), str(one.plan)), one)
    return sorted(once.values(), key=lambda one: (one.model.lower(), one.gpu, one.gpus))


def _job(one: PlanOfMaker) -> tuple[object, ...]:
    return (
        *(one.params, one.gpu, one.framework, one.precision, one.seq_len),
        one.frozen,
    )


def _rate(one: PlanOfMaker) -> float:
    return one.tokens_per_s_per_gpu or 0.0


def highest_mfu(runs: list[Priced]) -> list[HighestMfu]:
    """Return the run with the highest MFU of each GPU, precision and kind."""
    groups: defaultdict[tuple[Any, ...], list[Priced]] = defaultdict(list)
    for one in runs:
        gpu, kin = one.spec.cluster.topology.gpu.name, framework(one.spec.framework).kin
        key = gpu, one.plan.precision, kin, one.spec.model.moe is not None
        groups[key].append(one)
    return [
        HighestMfu(
            gpu=gpu,
            precision=precision,
            kin=kin,
            has_experts=has_experts,
            runs=len(group),
            mfu=round(max(map(mfu, group)), 4),
            source=publication(max(group, key=mfu)),
        )
        for (gpu, precision, kin, has_experts), group in sorted(groups.items())
        if kin and len(group) >= FEWEST_RUNS
    ]


def mfu(one: Priced) -> float:
    """Return the MFU that was measured, by the FLOPs that are counted for plans."""
    assert one.run.step_s is not None
    peak_flops = one.spec.at(one.plan.precision).peak_flops
    return job_flops(one.spec) / (one.plan.world_size * peak_flops * one.run.step_s)


if __name__ == "__main__":
    without_options(__doc__)
    main()
