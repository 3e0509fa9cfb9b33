"""One wrong value in a good spec: the message names it and what is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command import changed, refusal

LEVELS = """\
    levels:
      - {name: nvlink, size: 8, gb_s: 300, latency_us: 1}
"""
LAYERS, HEADS, KV_HEADS = "n_layers: 8", "n_heads: 8", "n_kv_heads: 4"
MEMORY, SPEED, PEAKS = "80 GiB", "gb_s: 300", "{bf16: 312}"
FRAMEWORK, BATCH = "framework: megatron", "global_batch: 1000"

A_LAYER_COUNT = "expected a whole number from 1 to 1,000"
A_COUNT = "expected a whole number from 1 to 10,000,000"
A_MEMORY = "expected a number from 0.001 to 1,000,000, in GiB or with a unit"
GPU = "cluster.topology.gpu"
LEVEL = "cluster.topology.levels.0"

NUMBERS = [
    (LAYERS, "n_layers: 1000000000", f"2: model.n_layers: 1000000000: {A_LAYER_COUNT}"),
    (
        "d_model: 512",
        f"d_model: {10**20 + 1}",
        f"3: model.d_model: {10**20 + 1}: {A_COUNT}",
    ),
    (LAYERS, "n_layers: 0", f"2: model.n_layers: 0: {A_LAYER_COUNT}"),
    (LAYERS, "n_layers: -8", f"2: model.n_layers: -8: {A_LAYER_COUNT}"),
    (LAYERS, "n_layers: 8.5", f"2: model.n_layers: 8.5: {A_LAYER_COUNT}"),
    (LAYERS, "n_layers: 8.0", f"2: model.n_layers: 8.0: {A_LAYER_COUNT}; write 8"),
    (LAYERS, "n_layers: true", f"2: model.n_layers: true: {A_LAYER_COUNT}"),
    (LAYERS, "n_layers: eight", f"2: model.n_layers: 'eight': {A_LAYER_COUNT}"),
    (LAYERS, "n_layers: '8'", f"2: model.n_layers: '8': {A_LAYER_COUNT}; this is read"),
    (LAYERS, "n_layers: 2024-01-01", "2: model.n_layers: '2024-01-01': expected a"),
    (LAYERS, "n_layers: .nan", f"2: model.n_layers: nan: {A_LAYER_COUNT}"),
    (LAYERS, "n_layers: .inf", f"2: model.n_layers: inf: {A_LAYER_COUNT}"),
    (LAYERS, "n_layers: 1e400", f"2: model.n_layers: '1e400': {A_LAYER_COUNT}"),
    (LAYERS, "n_layers: [8]", f"2: model.n_layers: [8]: {A_LAYER_COUNT}"),
    (LAYERS, "n_layers: {is: 8}", "2: model.n_layers: {'is': 8}: expected a whole"),
    (LAYERS, "n_layers:", f"2: model.n_layers: nothing: {A_LAYER_COUNT}"),
    (LAYERS, "n_layers: " + "9" * 5_000, "2: model.n_layers: '99999"),
    ("vocab: 32000", "vocab: 32,000", f"7: model.vocab: '32,000': {A_COUNT}; this is"),
    ("size: 8", "size: 0", f"15: {LEVEL}.size: 0: {A_COUNT}"),
    (BATCH, "global_batch: -1", f"19: training.global_batch: -1: {A_COUNT}"),
    (
        FRAMEWORK,
        "limits: {memory_margin: 1}",
        "16: limits.memory_margin: 1: expected a",
    ),
    (FRAMEWORK, "limits: {oom_risk: 0}", "16: limits.oom_risk: 0: expected a number"),
    (
        FRAMEWORK,
        "limits: {oom_risk: 0.6}",
        "16: limits.oom_risk: 0.6: expected a number from 0.0001 to 0.5",
    ),
    (
        FRAMEWORK,
        "limits: {oom_risk: 0.1, memory_margin: 0}",
        "16: limits.memory_margin: 0.0 given beside limits.oom_risk; accepted: one of",
    ),
    (FRAMEWORK, "limits: {memory_margin: 5%}", "16: limits.memory_margin: '5%': "),
    (FRAMEWORK, "limits: {memory_margin: .nan}", "16: limits.memory_margin: nan: "),
    (PEAKS, "{bf16: .inf}", f"13: {GPU}.peak_tflops.bf16: inf: expected a number"),
    (PEAKS, "{bf16: true}", f"13: {GPU}.peak_tflops.bf16: true: expected a"),
    (KV_HEADS, "published_params: 0", "5: model.published_params: 0: expected a"),
]

UNITS = [
    (MEMORY, "80 Gb", f"11: {GPU}.memory_gib: '80 Gb': unknown unit 'Gb'; did you mean "
                      "GB? accepted: B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"),
    (MEMORY, "GiB", f"11: {GPU}.memory_gib: 'GiB': {A_MEMORY}"),
    (MEMORY, "-80", f"11: {GPU}.memory_gib: -80: {A_MEMORY}"),
    (MEMORY, "0 GiB", f"11: {GPU}.memory_gib: '0 GiB': {A_MEMORY}"),
    (MEMORY, ".nan", f"11: {GPU}.memory_gib: nan: {A_MEMORY}"),
    (MEMORY, "inf", f"11: {GPU}.memory_gib: 'inf': {A_MEMORY}"),
    (MEMORY, "1e300", f"11: {GPU}.memory_gib: '1e300': {A_MEMORY}"),
    (SPEED, "gb_s: 1e-300", f"15: {LEVEL}.gb_s: '1e-300': expected a number from"),
    (MEMORY, "1e400", f"11: {GPU}.memory_gib: '1e400': {A_MEMORY}"),
    (MEMORY, "9" * 400, f"11: {GPU}.memory_gib: 99999"),
    (MEMORY, "yes", f"11: {GPU}.memory_gib: true: {A_MEMORY}"),
    (MEMORY, "[80]", f"11: {GPU}.memory_gib: [80]: {A_MEMORY}"),
    (MEMORY, "'" + "1" * 3_000 + " 1 1'", f"11: {GPU}.memory_gib: '11111"),
    (SPEED, "gb_s: 400 GBit", f"15: {LEVEL}.gb_s: '400 GBit': unknown unit 'GBit'; did "
                              "you mean Gbit/s? accepted: KB/s, MB/s, GB/s"),
    (SPEED, "gb_s: 5 parsec", f"15: {LEVEL}.gb_s: '5 parsec': unknown unit 'parsec'; "),
    ("latency_us: 1", "latency_us: -1", f"15: {LEVEL}.latency_us: -1: expected a "
                                        "number from 0 to 1,000,000, in us"),
]  # fmt: skip

FORMS = [
    (HEADS, "n_haeds: 8", "1: model.n_heads: missing; expected query heads\n"
                          "spec.yaml:4: model.n_haeds: unknown field; did you mean "
                          "n_heads or n_kv_heads or n_layers?"),
    (KV_HEADS, "presett: gpt2-xl", "5: model.presett: unknown field; did you mean"),
    (KV_HEADS, "norm: rmsnom", "5: model.norm: 'rmsnom': expected layernorm or "
                               "rmsnorm; did you mean rmsnorm?"),
    (KV_HEADS, "gated_mlp: 1", "5: model.gated_mlp: 1: expected true or false"),
    (KV_HEADS, 'name: "\\e[31m"', "5: model.name: '\\x1b[31m': expected 1 to"),
    (KV_HEADS, "name: ''", "5: model.name: '': expected 1 to 100"),
    (KV_HEADS, "name: " + "x" * 101, f"5: model.name: '{'x' * 56}...: expected 1 to"),
    (KV_HEADS, "name: 5", "5: model.name: 5: expected text; put it in quotes"),
    (KV_HEADS, "name: no", "5: model.name: false: expected text; put it in quotes"),
    (PEAKS, "312", f"13: {GPU}.peak_tflops: 312: expected a mapping with the fields"),
    (PEAKS, "{fp4: 9}", f"13: {GPU}.peak_tflops.fp4: unknown field; did you"),
    (PEAKS, "{fp8: 9}", f"13: {GPU}.peak_tflops: expected a peak for bf16 beside fp8"),
    (PEAKS, "{}", f"13: {GPU}.peak_tflops: expected a peak for one of bf16, fp16"),
    ("size: 8, ", "", f"15: {LEVEL}.size: missing; expected children of each switch"),
    (FRAMEWORK, "framework: megtron", "16: framework: 'megtron': expected deepspeed, "
                "fsdp, "),
    (FRAMEWORK, "framework: [fsdp]", "16: framework: ['fsdp']: expected deepspeed, "),
    (FRAMEWORK, "framework:megatron", "16: not valid YAML: a blank is missing behind"),
    (BATCH, BATCH.replace("global_batch", "batch_size"), "17: training.global_batch: "
            "missing; expected sequences per optimizer step\nspec.yaml:19: "
            "training.batch_size: unknown field; did you mean training.global_batch?"),
    (BATCH, f"{BATCH}\n  precision: BF16", "20: training.precision: 'BF16': expected "
            "bf16, fp16, fp8, tf32 or fp32; did you mean bf16?"),
    (BATCH, f"{BATCH.split(':')[0]}: 2..4", "19: training.global_batch: '2..4': "
            "expected a whole number from 1 to 10,000,000; a number left open is "
            "written {min: 2, max: 4}"),
    (FRAMEWORK, "framwork: fsdp", "16: framwork: unknown field; did you mean"),
    (BATCH, f"{BATCH}\n  framework: fsdp", "20: training.framework: unknown field; did "
                                           "you mean framework?"),
    (BATCH, f"{BATCH}\n  lora: {{rank:16}}", "20: training.lora.rank:16: unknown "
                                            "field; a blank is missing behind the "
                                            "colon: rank: 16"),
    (FRAMEWORK, "1: 2", "16: 1: unknown field; accepted: model, cluster, framework"),
    (FRAMEWORK, "limits: 5", "16: limits: 5: expected a mapping with the fields"),
    (BATCH, f"{BATCH}\n  optimizer: adam", "20: training.optimizer: 'adam': expected "
                                           "adamw, adamw-8bit, sgd, adafactor or muon; "
                                           "did"),
    (BATCH, f"{BATCH}\n  {BATCH}", "20: training.global_batch: already given at spec."),
    (f"training:\n  seq_len: 1024\n  {BATCH}\n", "", "1: training: missing; expected a "
     "mapping with the fields seq_len, global_batch"),
]  # fmt: skip

AGREEMENT = [
    (HEADS, "n_heads: 7", "4: model.n_heads: 7 does not divide model.d_model 512; "
                          "4 and 8 do, or give model.head_dim"),
    (HEADS, "n_heads: 1024", "4: model.n_heads: 1024 does not divide model.d_model "
                             "512; 512 does"),
    (KV_HEADS, "n_kv_heads: 3", "5: model.n_kv_heads: 3 does not divide model.n_heads "
                                "8; 2 and 4 do"),
    (KV_HEADS, "learned_positions: 512", "18: training.seq_len: 1024 is above "
     "model.learned_positions; accepted: up to 512"),
    (PEAKS, "{fp16: 125, fp32: 16}", "17: training.precision: 'bf16' has no peak on "
                                     "inline; accepted: fp16, fp32"),
    ("size: 8", "size: 9000000", "14: cluster.topology.levels: [9000000] make "
                                 "9,000,000 GPUs; accepted: up to 1,000,000"),
    (LEVELS, "    levels:\n" + LEVELS.split("\n")[1].join(["", "\n"]) * 7,
     "14: cluster.topology.levels: 7 given; accepted: up to 6"),
    (FRAMEWORK, "  count: 2", "16: cluster.count: 2 copies, but 'inline' has no "
                              "scale_out to join them; accepted: 1"),
    (LEVELS, "", "9: cluster.topology: expected levels, or nodes and links; neither"),
    (LEVELS, "    nodes: [{name: a}]\n" + LEVELS,
     "16: cluster.topology.levels.0.name: 'nvlink' joins NICs, and no node is of kind"),
    (LEVELS, "    links: [{between: [a, b], gb_s: 1, latency_us: 1}]\n" + LEVELS,
     "14: cluster.topology.links: 1 given, but levels already join the GPUs; accepted"),
]  # fmt: skip

NODES = "    nodes: [{name: a}, {name: b}, {name: s, kind: switch}]\n"
A_LINK = "      - {between: [a, %s], gb_s: 1, latency_us: 1}\n"

GRAPHS = [
    (NODES, "14: cluster.topology.nodes.1.name: 'b' is joined to 'a' by no chain of "
            "links\nspec.yaml:14: cluster.topology.nodes.2.name: 's' is joined to"),
    (f"{NODES}    links:\n{A_LINK % 'd'}",
     "16: cluster.topology.links.0.between: 'd' is not among the nodes; accepted: a"),
    (f"{NODES}    links:\n{A_LINK % 'a'}",
     "16: cluster.topology.links.0.between: ['a', 'a']: expected a list of the names"),
    (f"{NODES}    links:\n{A_LINK % 's, b'}",
     "16: cluster.topology.links.0.between: ['a', 's', 'b']: expected a list of the"),
    (f"{NODES}    links:\n{A_LINK % 'b'}{A_LINK % 'b'}",
     "16: cluster.topology.links.0.between: ['a', 'b'] are linked twice; add up gb_s\n"
     "spec.yaml:17: cluster.topology.links.1.between: ['a', 'b'] are linked twice"),
    ("    nodes: [{name: a}, {name: a}]\n",
     "14: cluster.topology.nodes.0.name: 'a' names two nodes"),
    ("    nodes: [{name: a, kind: switch}]\n",
     "14: cluster.topology.nodes: 1 given, but none of kind gpu"),
    ("    nodes: [{name: a, kind: swich}]\n",
     "14: cluster.topology.nodes.0.kind: 'swich': expected gpu, nic or switch; did"),
    ("    nodes: [{name: a}]\n    scale_out: {name: x, gb_s: 1, latency_us: 1}\n",
     "15: cluster.topology.scale_out.name: 'x' joins NICs, and no node is of kind"),
]  # fmt: skip
CASES = [
    *NUMBERS,
    *UNITS,
    *FORMS,
    *AGREEMENT,
    *((LEVELS, graph, expected) for graph, expected in GRAPHS),
]


@pytest.mark.parametrize(
    ("old", "new", "expected"), CASES, ids=[f"{c[1][:30]!r}" for c in CASES]
)
def test_a_wrong_value_is_named_with_its_line_and_what_is_accepted(
    old: str,
    new: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(changed(old, new), encoding="utf-8")
    message = refusal("spec.yaml")
    assert message.startswith(f"spec.yaml:{expected}")
    assert len(message) < 800


def test_every_error_has_its_own_line_up_to_ten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # long paths leave room for fewer lines
    text = changed(FRAMEWORK, "\n".join(f"x{i}: 1" for i in range(13)))
    Path("spec.yaml").write_text(text)
    lines = refusal("spec.yaml").splitlines()
    assert [line.split(": ")[1] for line in lines[:10]] == [f"x{i}" for i in range(10)]
    assert lines[10:] == ["... and 3 more"]
    text = changed(FRAMEWORK, "\n".join(f"x{i}: 1" for i in range(11)))
    Path("spec.yaml").write_text(text)
    lines = refusal("spec.yaml").splitlines()
    assert [line.split(": ")[1] for line in lines] == [f"x{i}" for i in range(11)]


@pytest.mark.parametrize(
    ("field", "new", "expected"),
    [
        (
            BATCH,
            "global_batch: 1000\n  fused_loss: true",
            "training.fused_loss: replaced by fused, a list with loss or without",
        ),
        (BATCH, "global_batch: 1000\n  peft: {}", "training.peft: not modelled"),
        (LAYERS, "n_layers: 8\n  mamba_layers: 4", "model.mamba_layers: replaced by"),
        (
            LAYERS,
            "n_layers: 8\n  moe: {n_experts: 8, top_k: 2, d_ff: 64, layer_freq: 2}",
            "model.moe.layer_freq: replaced by model.pattern and model.kinds",
        ),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(
    field: str, new: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(changed(field, new), encoding="utf-8")
    assert expected in refusal(str(path))
