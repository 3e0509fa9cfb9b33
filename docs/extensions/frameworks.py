"""The `frameworks` directive: tables of what frameworks launch, hold and run.

What they launch is read off lattices of small jobs, all else off their fields, so that
no cell is written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, get_args

import numpy as np
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from meshwright.cost.job import make_job
from meshwright.cost.state import ADAMW_BYTES, FUSED_LOSS_BYTES
from meshwright.frameworks.base.framework import Framework, StateBytes
from meshwright.frameworks.base.registry import framework
from meshwright.planner.rows import build_lattice
from meshwright.plans.skeletons import Skeletons
from meshwright.results.outcome_parts import LEVER_EFFECTS
from meshwright.rules.legality import rules_of
from meshwright.spec.plan_fields import OFFLOADS, SCHEDULES
from meshwright.spec.spec import Spec, framework_names
from meshwright.spec.training import FusedOperation, Overlap, Training

MODEL: dict[str, Any] = {
    "n_layers": 16, "d_model": 1024, "n_heads": 16, "n_kv_heads": 4, "d_ff": 4096,
    "vocab": 32768, "tied_embeddings": False,
}  # fmt: skip
EXPERTS = {"moe": {"n_experts": 8, "top_k": 2, "d_ff": 1024}}
TOPOLOGY = {
    "gpu": {"memory_gib": 80, "memory_gb_s": 2000, "peak_tflops": {"bf16": 300}},
    "levels": [{"name": "node", "size": 16, "gb_s": 300, "latency_us": 5}],
    "host": {
        "memory_gib": 2048, "memory_gb_s": 200, "pcie_gb_s": 25, "nvme_gib": 8192,
        "nvme_gb_s": 20,
    },
}  # fmt: skip
TRAINING = {"seq_len": 4096, "global_batch": 32}


class Launched(NamedTuple):
    """Every skeleton of small jobs on 16 GPUs that a framework launches."""

    own: Framework
    dense: Skeletons
    experts: Skeletons
    to_drives: Skeletons


@cache
def launched(name: str) -> Launched:
    """Return what a framework launches of a dense model and of one with experts."""

    def rows(model: dict[str, Any], **training: str) -> Skeletons:
        spec: dict[str, Any] = {
            "model": MODEL | model,
            "cluster": {"topology": TOPOLOGY},
        }
        spec |= {"framework": name, "training": TRAINING | training}
        return build_lattice(make_job(Spec.model_validate(spec))).rows

    dense, experts = rows({}), rows(EXPERTS)
    return Launched(framework(name), dense, experts, rows({}, offload_to="nvme"))


def _yes(is_so: Any) -> str:
    return "yes" if np.any(is_so) else "no"


def _sequence_parallel(found: Launched) -> str:
    split = found.dense.sequence_parallel[found.dense.tp > 1]
    if not split.any():
        return "no"
    return "always" if split.all() else "optional"


def _schedules(found: Launched) -> str:
    rows = found.dense
    words = [SCHEDULES[code] for code in np.unique(rows.schedule[rows.pp > 1])]
    return ", ".join([*words, *["interleaved"] * bool((rows.vpp > 1).any())]) or "none"


def _context(found: Launched) -> str:
    return found.own.context_exchanges[0] if (found.dense.cp > 1).any() else "no"


def _stages(zero: Any) -> str:
    return ", ".join(map(str, np.unique(zero))) or "none"


def _kv_heads(found: Launched) -> str:
    widest = found.dense.tp.max()
    if widest == 1:
        return "whole"
    return "repeated" if widest > MODEL["n_kv_heads"] else "whole"


def _offloads(found: Launched) -> str:
    codes = np.unique(found.dense.offload)
    return ", ".join(OFFLOADS[code] for code in codes if code) or "none"


def _replicates(rows: Skeletons) -> Any:
    return (rows.dp_replicate > 1) & (rows.dp_shard > 1)


LAUNCH: dict[str, Callable[[Launched], str]] = {
    "tensor parallelism": lambda found: _yes(found.dense.tp > 1),
    "KV heads beside it": _kv_heads,
    "sequence parallelism": _sequence_parallel,
    "pipeline schedules": _schedules,
    "context parallelism": _context,
    "expert parallelism": lambda found: _yes(found.experts.ep > 1),
    "experts beside tensor parallelism": lambda f: _yes(f.experts.tp > 1),
    "ZeRO stages": lambda found: _stages(found.dense.zero),
    "ZeRO stages beside a pipeline": lambda f: _stages(f.dense.zero[f.dense.pp > 1]),
    "replicas of shards": lambda found: _yes(_replicates(found.dense)),
    "offload": _offloads,
    "offload to NVMe": lambda found: _yes(found.to_drives.offload > 0),
}
"""What the table of launches asks of each framework."""


def _state(own: Framework) -> StateBytes:
    training = Training.model_validate(TRAINING)
    return own.mixed_state(training, ADAMW_BYTES)


STATE: dict[str, Callable[[Framework], str]] = {
    "weights": lambda own: f"{_state(own).weights:g}",
    "gradients": lambda own: f"{_state(own).gradients:g}",
    "fp32 sums beside them, up to ZeRO-1": lambda o: f"{_state(o).main_gradients:g}",
    "optimizer": lambda own: f"{_state(own).optimizer:g}",
    "copies in the update, without such sums": lambda own: f"{_state(own).copied:g}",
    "crosses links: weights": lambda own: f"{_state(own).gathered:g}",
    "crosses links: gradients": lambda own: f"{_state(own).reduced:g}",
}
"""Bytes per parameter in bf16 with AdamW, before sharding."""


def _loss(own: Framework) -> str:
    if "loss" in own.fused:
        return f"{FUSED_LOSS_BYTES} (fused)"
    compiled = own.compiled_loss
    usual = f"{own.loss.whole:g}"
    return usual if compiled is None else f"{usual}, {compiled.whole:g} compiled"


def _gathers_ahead(own: Framework) -> str:
    few = own.prefetched_params
    return "the next layer" if math.isinf(few) else f"{few:g} parameters"


BUFFERS: dict[str, Callable[[Framework], str]] = {
    "CUDA context and communicators, GiB": lambda own: f"{own.overhead_gib:g}",
    "loss, bytes per logit": _loss,
    "one kernel each": lambda own: ", ".join(
        name for name in get_args(FusedOperation) if name in own.fused
    ),
    "hides traffic of": lambda own: ", ".join(
        kind for kind in Overlap.model_fields if kind in own.overlap
    ),
    "host time of a layer, over plain operations": lambda o: f"{o.layer_dispatch:g}",
    "CUDA graphs outside pipelines and experts": lambda own: _yes(own.has_cuda_graphs),
    "attention on GPUs newer than A100": lambda own: own.newer_attention,
    "gradient buffers beside the sums": lambda own: _yes(own.has_gradient_buffers),
    "stages keep what they sent on": lambda own: _yes(own.keeps_stage_outputs),
    "fp8 copies are kept": lambda own: _yes(own.keeps_fp8_copies),
    "ZeRO-3 gathers ahead": _gathers_ahead,
}


def table(kind: str) -> str:
    """Return a table with a column for each framework, as markdown."""
    names = framework_names()
    if kind == "launch":
        rows = {k: [ask(launched(n)) for n in names] for k, ask in LAUNCH.items()}
    else:
        asked = {"state": STATE, "buffers": BUFFERS}[kind]
        rows = {k: [ask(framework(n)) for n in names] for k, ask in asked.items()}
    heading = " | ".join(f"`{name}`" for name in names)
    lines = [f"| | {heading} |", f"| --- {'| --- ' * len(names)}|"]
    return "\n".join(lines + [f"| {k} | {' | '.join(v)} |" for k, v in rows.items()])


def rules_table(name: str) -> str:
    """Return the rules of a framework with its own words, as markdown."""
    lines = ["| rule | source | the framework says |", "| --- | --- | --- |"]
    for rule, _ in rules_of(name):
        said = f"*{rule.fails_with}*" if rule.fails_with else "nothing"
        lines.append(f"| `{rule.name}`: {rule.sentence} | {rule.source} | {said} |")
    return "\n".join(lines)


def levers_table() -> str:
    """Return the switches that frameworks offer, with their sources, as markdown."""
    lines = ["| framework | `training.` | how | the numbers | read in |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for name in framework_names():
        for lever in framework(name).levers:
            told = LEVER_EFFECTS[lever.numbers]
            how = f"`{lever.option}`"
            cells = (f"`{name}`", f"`{lever.switch}`", how, told, lever.source)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


class Frameworks(SphinxDirective):
    """Puts a table in its place.

    Launch, state, buffers or levers, or the rules of one name.
    """

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the generated text."""
        first, *rest = self.arguments[0].split()
        if first == "levers":
            return self.parse_text_to_nodes(levers_table())
        text = rules_table(rest[0]) if first == "rules" else table(first)
        return self.parse_text_to_nodes(text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("frameworks", Frameworks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
