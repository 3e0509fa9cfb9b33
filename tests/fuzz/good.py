"""Good files of every format, for mutations to start from."""

from __future__ import annotations

import json
from pathlib import Path

from meshwright import catalog
from meshwright.calibration.probe_report import TEMPLATE
from meshwright.imports.registry import kinds
from meshwright.plans.plan import Plan, Stage
from meshwright.results.outcome import Certificate, Counts
from meshwright.results.priced_plan import StageMemory
from meshwright.sweeps.cases import Row
from tests.helpers.command import SPEC
from tests.helpers.searches import SWEEP

IMPORTS = {
    kind: [
        path.read_bytes().decode()
        for path in sorted(Path(__file__).parents[1].glob(f"data/*/{kind}.*"))
    ]
    for kind in kinds()
}
"""By the kind of `meshwright import`: `KIND.txt` in `tests/data`, or several."""

PRESETS = """\
model: {preset: llama3-8b, n_layers: 16}
cluster: {topology: {preset: dgx-h100, gpu: h200-sxm-141gb}, count: 4}
training: {seq_len: 4096, global_batch: 64}
limits: {memory_margin: 0.1, tp_min_link_gb_s: 100 GB/s}
pins:
  tp: [2, 4]
  recompute_layers: [1, 2]
  layers: [8, 8]
  mesh: {tp: [4, 1]}
"""

LEVELS = """\
    levels:
      - {name: nvlink, size: 8, gb_s: 300, latency_us: 1}
"""

NODES = """\
    nodes: [{name: a}, {name: b, host: 1}, {name: s, kind: switch}]
    links:
      - {between: [a, s], gb_s: 9, latency_us: 1}
      - {between: [b, s], gb_s: 9, latency_us: 1}
"""


def bundled(kind: str, name: str) -> str:
    """Return the text of a bundled file."""
    return catalog.locate(kind, name, Path()).read_text(encoding="utf-8")


SPECS = [
    SPEC,
    PRESETS,
    SPEC.replace(LEVELS, NODES),
    bundled("specs", "serve-llama3-8b-1xa100"),
    bundled("specs", "llama3-8b-512xa100-degraded"),
    bundled("specs", "mpt-30b-512xh100-90days"),
]

TOPOLOGIES = [
    bundled("clusters", "dgx-a100"),
    bundled("clusters", "p4d.24xlarge"),
    bundled("specs", "llama3-8b-512xa100-degraded"),
]

FOREIGN = "cluster: {%s: good.txt, gpu: A100-SXM4-80GB}\n" + "".join(
    line
    for line in PRESETS.splitlines(keepends=True)
    if line.startswith(("model", "training"))
)
"""A spec whose machine is in a file of another tool; it takes the kind."""

SWEEPS = [
    SWEEP,
    bundled("sweeps", "context-length"),
    bundled("sweeps", "llama3-scaling"),
]

FILTERS = [
    "training.seq_len <= 512 and cluster.count in [1, 2]",
    "not (gpus > 4 or model.d_model * 2 % 3 == 1) and framework != 'fsdp'",
    "-training.global_batch + 3.5 / 2 < 1e3",
]
"""Of a sweep."""

RULES = [
    "tp <= 8 and pp in (1, 2, 4) and recompute != 'full'",
    "max(memory_gib) <= 70 or not (zero < 1 or sequence_parallel == true)",
    "parts.dp + -parts.bubble / 2 <= 0.1 * step_s % 7 and max(layers) - layers[-1] < 3",
    "sum(host_gib) == 0 or links['gpu0 -> node0'] * max(tp, pp) >= 1e-3",
]
"""Of a spec."""

RUN = """\
- id: a
  source_id: somebody
  date: "2022-05-10"
  model: {n_layers: 8, d_model: 1024, n_heads: 16, d_ff: 4096, vocab: 51200,
    seq_len: 1024, tied: true}
  hardware: {gpu: A100-80GB-SXM, n_gpus: 16, gpus_per_node: 8,
    power_limit_w: 300, intra_node: NVLink 600 GB/s,
    inter_node: 8x HDR200 InfiniBand per node}
  config: {dp: 4, tp: 2, pp: 2, sp: false, zero_stage: 1, micro_batch: 2,
    global_batch: 64, recompute: full, precision: fp16, framework: Megatron-LM,
    layers_per_stage: [4, 4], schedule: 1f1b}
  measured: {step_time_s: 1.0, peak_memory_gb: 30, tokens_per_s_per_gpu: 4096}
  check: {derived: [tokens_per_s_per_gpu]}
"""
MORE_RUNS = """\
- id: b
  source_id: torchtitan
  date: 2024-11-01
  model: {name: llama3-8b, n_layers: 32, d_model: 4096, n_heads: 32, n_kv_heads: 8,
    d_ff: 14336, vocab: 128256, seq_len: 8192, gated_mlp: true}
  hardware: {gpu: H100 SXM, n_gpus: 128, inter_node: 400 Gb/s per GPU}
  config: {dp: 128, tp: 1, pp: 1, fsdp: hybrid (shard group 8), framework: torchtitan,
    micro_batch: 1, precision: bf16}
  measured: {tokens_per_s_per_gpu: 5762, fits: true}
- id: c
  source_id: nemo
  model: {n_layers: 32, d_model: 4096, n_heads: 32, n_kv_heads: 8, vocab: 32000,
    seq_len: 4096, gated_mlp: true, moe: {n_experts: 8, top_k: 2, expert_d_ff: 14336}}
  hardware: {gpu: H100, n_gpus: 64}
  config: {dp: 8, tp: 2, pp: 4, vp: 8, ep: 4, framework: NeMo, global_batch: 256}
  measured: {step_time_s: 1.5}
"""
OUTCOMES = """\
- id: a
  source_id: ours
  spec: llama3-8b-2xh100-nvlink
  plan: tp=2,pp=1,zero=0,micro_batch=1,recompute=full
  measured: {fits: false}
- id: b
  source_id: ours
  spec: llama3-8b-2xh100-nvlink
  plan: {tp: 1, pp: 2, micro_batch: 1}
  measured: {step_time_s: 9.5, peak_memory_gb: 61, peak_memory_kind: device}
"""

RUNS = [RUN, RUN + MORE_RUNS, OUTCOMES, TEMPLATE]

TABLES = [
    "id,source_id,date,model.n_layers,model.d_model,model.n_heads,model.d_ff,"
    "model.vocab,model.seq_len,hardware.gpu,hardware.n_gpus,hardware.gpus_per_node,"
    "hardware.inter_node,config.dp,config.tp,config.pp,config.micro_batch,"
    "config.global_batch,config.recompute,config.precision,config.framework,"
    "config.layers_per_stage,measured.step_time_s,measured.peak_memory_gb\n"
    "a,somebody,2022-05-10,8,1024,16,4096,51200,1024,A100-80GB-SXM,16,8,"
    '8x HDR200,4,2,2,2,64,full,fp16,Megatron-LM,"[4, 4]",1.0,30\n'
    'b,"some, body",2023,8,1024,16,4096,51200,1024,A100-40GB-SXM,8,8,'
    ",4,2,1,2,64,none,bf16,FSDP,,0.9,\n"
]

PROFILES = [
    "gpus:\n  h100-sxm-80gb: {gemm: 0.98, link: 1.02, latency: 4.3}\n"
    "frameworks:\n  megatron: {gemm: 1.1, launch_s: 0.5}\n"
    "switches: {megatron: {gradients: bf16, overlap.tp: true, loss_chunks: 8}}\n"
    "measured:\n- gpu: h100-sxm-80gb\n  kernels: megatron\n  framework: megatron\n"
    "  rows: 12\n"
    "  sources: {somebody: 12}\n  mape_before: 0.3\n  mape_fitted: 0.05\n"
    "  left_out: {rows: 12, mape: 0.1, median: 0.08, p90: 0.2, parts: source}\n"
    "  unidentified: [memory]\n"
    "left_out: {rows: 12, mape: 0.1, median: 0.08, p90: 0.2, parts: source}\n"
]

PLAN = Plan(
    tp=2, pp=2, dp_replicate=1, dp_shard=4, micro_batch=2, microbatches=8, zero=1,
    sequence_parallel=True, recompute="selective", schedule="1f1b",
    stages=(Stage(layers=4, recompute_layers=1), Stage(layers=4, recompute_layers=0)),
    mesh={"tp": (2, 1), "dp_shard": (4, 1), "pp": (1, 2)},
)  # fmt: skip

ANSWERS = [
    json.dumps({"status": "optimal", "plan": PLAN.model_dump(mode="json")}, indent=2),
    "tp: 2\npp: {max: 4}\nlayers: [4, 4]\nmesh: {tp: [2, 1]}\nrecompute: full\n",
]
"""Files for `--plan`."""

PLANS = [
    "tp=2,pp={max: 4},layers=[4, 4],zero=1",
    "mesh={tp: [2, 1]},recompute=[none, full],recompute_layers=all,schedule=1f1b",
]
"""Text for `--plan`."""

PINS = [
    "tp=[1, 2]",
    "pp={min: 1, max: 2}",
    "layers=[16, 16]",
    "mesh={tp: [2]}",
    "zero=1",
]

VARIED = ["topology.levels[0].gb_s=8:900", "training.seq_len=512:4096"]

QUANTITIES = ["40GiB", "80 GB", "0.5 TiB"]

STORED = Row.model_validate(
    {
        "key": "0123",
        "name": "small on 2 GPUs",
        "axes": {"cluster.count": 1, "model": "small"},
        "status": "optimal",
        "gpus": 16,
        "step_s": 1.5,
        "tokens_per_s": 1e4,
        "tokens_per_s_per_gpu": 625,
        "mfu": 0.4,
        "peak_gib": 30.5,
        "headroom_gib": 4,
        "ways": 2,
        "plan": PLAN,
        "time_parts": {"compute": 1.0, "tp": 0.5},
        "memory": StageMemory(
            total_gib=30.5,
            parts={"weights": 30.5},
            usable_gib=34.5,
            fit_probability=0.97,
        ),
        "certificate": Certificate(
            bound_s=1.5,
            gap=0,
            rounding_s=1e-9,
            seed=0,
            counts=Counts(skeletons=9, no_memory=1, bounded=7, survivors=1),
        ),
    }
)
"""A row of a store."""
