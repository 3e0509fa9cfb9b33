"""Prices a measured run as `solve` prices its plan."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from meshwright.check.check import predict
from meshwright.cost.job import Efficiency, make_job
from meshwright.cost.memory import memory_costs
from meshwright.cost.profile import Profile
from meshwright.cost.state import loss_chunks, loss_peak
from meshwright.errors import SpecError
from meshwright.evidence.candidate_plans import (
    candidates,
    data_parallel,
    is_offloading_activations,
    keeps_inputs_on_host,
    with_degrees,
)
from meshwright.evidence.published_numerics import (
    at_peak_of,
    casts_logits,
    loss_bytes_of,
    loss_chunks_of,
    precision_of,
    state_of,
)
from meshwright.evidence.published_spec import find_cluster, model_of, with_named_shape
from meshwright.evidence.published_terms import (
    FRAMEWORK_FIELD,
    VOCABULARY,
    Assumptions,
    Unpriced,
    attention_of,
    checked,
    class_on_gpu,
    context_exchange_of,
    cuda_graphs_of,
    dispatch_of,
    expands_segments,
    expert_imbalance_of,
    framework_of,
    fused_of,
    is_compiled,
    is_of,
    overlap_of,
    refuse,
    said_by,
    tuned_of,
)
from meshwright.evidence.runs import Run, RunConfig, RunHardware, RunModel
from meshwright.explanations.decisions import with_pins
from meshwright.frameworks.base.registry import GENERIC, as_launched
from meshwright.frameworks.base.registry import framework_of as spec_framework
from meshwright.frameworks.base.switches import said_switches
from meshwright.loading.load import load_spec
from meshwright.loading.plan_text import pins_of_answer, read_plan
from meshwright.planner.options import Options
from meshwright.planner.solve import asked_plan
from meshwright.plans.plan import Plan
from meshwright.plans.skeletons import to_unplaced_row
from meshwright.reading.document import Document, Where, validated
from meshwright.reading.yaml_and_csv import is_file
from meshwright.results.priced_plan import StageMemory
from meshwright.spec.goals import card_gib
from meshwright.spec.plan_fields import Pins
from meshwright.spec.spec import Spec
from meshwright.spec.training import Training
from meshwright.spec.units import GIB

USUALLY_RESERVED = 1.10
"""Memory that PyTorch has reserved at its peak, over what is allocated then: 1.08 to
1.14 in runs that print one and imply the other. The allocator frees about half of the
difference before it fails, so that readings include more than plans need: see
`spec.goals`."""

RESERVED_FOR_PASSING = 1.12
"""The same of what comes and goes, where PyTorch's optimizers update weights as they
were loaded, which leave no holes: 1.06 to 1.19 where logits are never whole."""

SPLIT_LOGIT_BYTES = 6
"""Bytes per logit of blocks that no later step can use whole, where logits are there in
16 bits and in fp32: small tensors have split them (c10/cuda/CUDACachingAllocator.cpp).
5 to 7 in runs with Transformers that print allocated and reserved memory."""


@dataclass(frozen=True)
class Priced:
    """A run with the prediction for it."""

    run: Run
    """The run, with an assumed batch where none is published."""
    spec: Spec
    plan: Plan
    step_s: float
    peak_gib: float
    allocated_gib: float
    """Memory of the fullest stage without CUDA context and communication buffers."""
    assumed: dict[str, object]
    said: frozenset[str] = frozenset()
    """Switches that the run says itself; others are as usual in its code base."""
    slowest_s: float | None = None
    """Step time of the leanest plan that the run may have used, where its publication
    leaves open which; `step_s` is that of the fastest one that fits."""
    least_gib: float | None = None
    """Peak memory of that leanest plan."""
    lasting_gib: float | None = None
    """Memory of weights and optimizer, where these leave no holes."""
    beside_gib: float = 0.0
    """Memory that PyTorch keeps for tensors that are gone at the peak."""
    holes_gib: float = 0.0
    """Memory of `peak_gib` that PyTorch's allocator cannot use."""

    @property
    def reserved_gib(self) -> float:
        """Return the memory that PyTorch is expected to reserve at its peak."""
        whole_gib = self.allocated_gib + self.beside_gib
        if self.lasting_gib is None:
            return USUALLY_RESERVED * whole_gib
        passing_gib = whole_gib - self.lasting_gib
        return self.lasting_gib + RESERVED_FOR_PASSING * passing_gib

    @property
    def device_gib(self) -> float:
        """Return the memory that nvidia-smi is expected to show, at most the card's."""
        overhead_gib = self.peak_gib - self.holes_gib - self.allocated_gib
        whole_gib = self.spec.cluster.topology.gpu.memory_gib
        return min(overhead_gib + self.reserved_gib, card_gib(whole_gib))

    @property
    def has_profile(self) -> bool:
        """Return whether some framework is like the code base of the run."""
        return FRAMEWORK_FIELD not in self.assumed

    @property
    def needed_gib(self) -> float:
        """Return the peak memory of the leanest plan that the run may have used."""
        return self.peak_gib if self.least_gib is None else self.least_gib

    @property
    def fits(self) -> bool:
        """Return whether a plan that the run may have used fits at the spec's risk."""
        return self.needed_gib <= self.spec.usable_gib

    @property
    def fit_probability(self) -> float:
        """Return how likely the leanest plan that the run may have used fits."""
        return self.spec.fit_probability(self.needed_gib)

    def off_by(self, error: float) -> Priced:
        """Return the run as if ln(predicted / measured) of its step were another."""
        return replace(self, step_s=(self.run.step_s or 0.0) * math.exp(error))


def price_runs(
    runs: list[Run], profile: Profile | None = None
) -> tuple[list[Priced], list[tuple[Run, str]]]:
    """Return the priced runs, and those that cannot be priced, with the reason."""
    priced, unpriced = [], []
    for run in runs:
        try:
            priced.append(price_run(run, profile))
        except Unpriced as reason:
            unpriced.append((run, str(reason)))
    return priced, unpriced


def price_run(run: Run, profile: Profile | None = None) -> Priced:
    """Return the prediction for a run, at the efficiency of a profile if one is given.

    Of several candidate plans the first that fits is priced.

    Raises:
        Unpriced: a field is missing, or its value is not modelled.
    """
    if run.spec is not None:
        return _price_spec_run(run, profile)
    assumed = Assumptions()
    run = with_degrees(with_named_shape(run, assumed), assumed)
    refuse(run)
    run = _with_batch(run, assumed)
    spec, said = _spec(run, assumed), said_by(run)
    if profile is not None:
        spec = profile.applied_to(spec, said)
    job = make_job(spec, _efficiency(run, spec, profile))
    whole_gib = spec.cluster.topology.gpu.memory_gib
    able = list(candidates(run, spec, assumed))
    for candidate in able:
        step_s, stages = predict(job, candidate.plan)
        fullest = max(stages, key=lambda stage: stage.total_gib)
        if fullest.total_gib <= card_gib(whole_gib):
            break
    noted = {**assumed.fields, **candidate.noted}
    found = _priced(run, spec, candidate.plan, step_s, fullest, noted, said)
    if candidate is able[-1]:
        return found
    slowest_s, leanest = predict(job, able[-1].plan)
    return replace(
        found,
        slowest_s=max(step_s, slowest_s),
        least_gib=min(found.peak_gib, max(stage.total_gib for stage in leanest)),
    )


def _price_spec_run(run: Run, profile: Profile | None) -> Priced:
    """Return the prediction for a run of a spec and a plan."""
    asked = spec_of(run)
    said = said_switches(asked)
    if profile is not None:
        asked = profile.applied_to(asked, said)
    plan = plan_of(asked)
    run, spec = with_published_fields(run, asked, plan), asked.at(plan.precision)
    step_s, stages = predict(make_job(spec, _efficiency(run, spec, profile)), plan)
    fullest = max(stages, key=lambda stage: stage.total_gib)
    is_generic = spec.framework == GENERIC
    assumed: dict[str, object] = {FRAMEWORK_FIELD: GENERIC} if is_generic else {}
    return _priced(run, spec, plan, step_s, fullest, assumed, said)


def _priced(
    run: Run,
    spec: Spec,
    plan: Plan,
    step_s: float,
    fullest: StageMemory,
    assumed: dict[str, object],
    said: frozenset[str],
) -> Priced:
    lasting_gib = fullest.parts["weights"] + fullest.parts["optimizer"]
    is_loaded = spec_framework(spec).makes_gradients_late
    return Priced(
        run=run,
        spec=spec,
        plan=plan,
        step_s=step_s,
        peak_gib=fullest.total_gib,
        allocated_gib=fullest.allocated_gib,
        assumed=assumed,
        said=said,
        lasting_gib=lasting_gib if is_loaded else None,
        holes_gib=fullest.parts.get("fragments", 0.0),
        beside_gib=_beside_gib(run, spec, plan, fullest),
    )


def _beside_gib(run: Run, spec: Spec, plan: Plan, fullest: StageMemory) -> float:
    """Return the memory that PyTorch keeps for tensors gone at the peak, GiB.

    PyTorch's optimizers make their moments in the first update, out of what activations
    have left, which need room again in the second step beside gradients and update. And
    blocks of logits may not serve twice. The larger of both counts.
    """
    if run.measured.peak_memory_gb is None:
        return 0.0
    fixed, split_gib = memory_costs(make_job(spec), to_unplaced_row(plan)).fixed, 0.0
    turns_gib = -float((fixed["gradients"] + fixed["optimizer"])[0]) / GIB
    if casts_logits(run) and loss_chunks(spec) == 1:
        kept = loss_peak(spec).whole + SPLIT_LOGIT_BYTES
        _, stages = predict(make_job(spec.having("training", loss_bytes=kept)), plan)
        split_gib = max(stage.allocated_gib for stage in stages)
        split_gib -= fullest.allocated_gib
    return max(split_gib, turns_gib)


def _efficiency(run: Run, spec: Spec, profile: Profile | None) -> Efficiency | None:
    if profile is None:
        return None
    gpu = spec.cluster.topology.gpu.name
    run_class = class_on_gpu(run, gpu, spec.framework)
    return profile.efficiency_of(run_class, spec.training.tuned)


def _with_batch(run: Run, assumed: Assumptions) -> Run:
    """Return the run with a batch: if unpublished, one micro-batch per rank."""
    config = run.config
    if config.global_batch is not None:
        return run
    if config.micro_batch is None or config.pp != 1:
        raise Unpriced("config.global_batch: not published")
    batch = config.micro_batch * data_parallel(run)
    assumed.value("config.global_batch", batch)
    changed = config.model_copy(update={"global_batch": batch})
    return run.model_copy(update={"config": changed})


def _spec(run: Run, assumed: Assumptions) -> Spec:
    is_on_host = run.config.offload not in (None, "none")
    cluster = find_cluster(run.hardware, assumed, is_on_host)
    topology = cluster.topology
    gpu = at_peak_of(run.config, topology.gpu)
    topology = topology.model_copy(update={"gpu": gpu})
    cluster = cluster.model_copy(update={"topology": topology})
    framework, tuned = framework_of(run, assumed), tuned_of(run, assumed)
    training = {
        "seq_len": run.model.seq_len,
        "global_batch": run.config.global_batch,
        "document_tokens": run.model.document_tokens,
        "text_loops": run.config.text_loops,
        "precision": precision_of(run.config, cluster.topology.gpu, assumed),
        "attention": attention_of(run, assumed),
        "expert_dispatch": dispatch_of(run, assumed),
        "fused": fused_of(run, framework),
        "compile": is_compiled(run),
        "reentrant": is_of(run.config, VOCABULARY.frameworks.reentrant),
        "expandable_segments": expands_segments(run),
        "cuda_graphs": cuda_graphs_of(run),
        "overlap": overlap_of(run, framework, assumed),
        "tuned": tuned,
        "expert_imbalance": expert_imbalance_of(run, tuned),
        **state_of(run, framework, assumed),
        "indexer_loss": run.config.indexer_loss,
        "fp8_activation_inputs": run.config.fp8_activation_inputs,
        "loss_bytes": loss_bytes_of(run, framework, assumed),
        "loss_chunks": loss_chunks_of(run),
        "loss_parallel": run.config.loss_parallel,
        "mlp_chunks": run.config.mlp_chunks or 1,
        "context_exchange": context_exchange_of(run.config),
    }
    if is_offloading_activations(run) and not keeps_inputs_on_host(run, framework):
        layers = run.model.n_layers or 1
        is_half = "half" in (run.config.offload or "")
        training["offload_activations"] = layers // 2 if is_half else layers - 1
    spec = {
        "model": model_of(run, assumed),
        "cluster": cluster,
        "framework": framework,
        "training": checked(Training, "training", training),
    }
    return checked(Spec, "", spec)


def spec_of(run: Run) -> Spec:
    """Return the spec of a run, with the plan that was run as its pins.

    Raises:
        SpecError: spec or plan cannot be read.
        Unpriced: it is of a kind of cluster that calibration does not know.
    """
    source = str(run.spec)
    spec = _loaded(source, os.stat(source).st_mtime_ns if is_file(source) else 0)
    if spec.cluster.parts:
        raise Unpriced("spec: its cluster has several kinds of GPU")
    spec = with_pins(spec, as_launched(_pins(run, spec), spec))
    return with_pins(spec, _left_out(spec.pins))


@lru_cache(maxsize=256)
def _loaded(source: str, _changed_ns: int) -> Spec:
    """Return a spec; a file that was changed meanwhile is read again."""
    return load_spec(source)


def _pins(run: Run, spec: Spec) -> Pins:
    """Return the plan of a run as pins; none where the spec has them all."""
    if run.plan is None:
        return Pins()
    if isinstance(run.plan, str):
        return read_plan(run.plan, spec)
    fields: dict[str, Any] = run.plan
    if "stages" in fields:
        fields = pins_of_answer(fields)
    return validated(Document(fields, {(): Where(f"{run.id}: plan")}), Pins)


def _left_out(pins: Pins) -> Pins:
    """Return pins for techniques that a launch leaves out: it uses none of them.

    If these fields stayed open, the fastest values would be chosen, for instance
    replicas of the shards of ZeRO, which need a multiple of the memory.
    """
    fields: dict[str, Any] = {"vpp": 1, "ep": 1, "offload": "none"}
    if pins.mesh is None:
        fields["cp"] = 1
        is_sharded = pins.zero is not None and not pins.zero.accepts(0)
        if is_sharded and pins.dp_shard is None:
            fields["dp_replicate"] = 1
    free = {name: fields[name] for name in fields if getattr(pins, name) is None}
    return Pins.model_validate(free)


def plan_of(spec: Spec) -> Plan:
    """Return the plan that the pins of a spec ask for, also if memory is too small.

    Raises:
        Unpriced: no plan of them is legal; names the rule.
    """
    try:
        return asked_plan(spec, Options(is_brief=True))
    except SpecError as error:
        raise Unpriced(str(error)) from None


def with_published_fields(run: Run, spec: Spec, plan: Plan) -> Run:
    """Return a run of a spec with the fields by which runs are grouped and timed."""
    model, training, topology = spec.model, spec.training, spec.cluster.topology
    fields = {
        "model": RunModel(
            name=model.name,
            n_layers=model.n_layers,
            d_model=model.d_model,
            seq_len=training.seq_len,
        ),
        "hardware": RunHardware(gpu=topology.gpu.name, n_gpus=spec.cluster.gpus),
        "config": RunConfig(
            dp=plan.dp,
            tp=plan.tp,
            pp=plan.pp,
            global_batch=training.global_batch,
            framework=spec.framework,
        ),
    }
    return run.model_copy(update=fields)
