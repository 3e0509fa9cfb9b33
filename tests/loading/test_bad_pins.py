"""Pins, outputs and options that cannot be used."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.helpers.command import changed, refusal, run

MANY = "expected a whole number, a list, or {min: .., max: ..}"
FIELDS = "tp, pp, dp, dp_replicate, dp_shard, vpp, cp, ep"

PINS = [
    ("tp=3", "tp: 3 does not divide the 8 GPUs; 2 and 4 do"),
    ("tp=0", "tp: 0: expected 1 or more"),
    ("micro_batch=0", "micro_batch: 0: expected 1 or more"),
    ("microbatches=[0]", "microbatches: [0]: expected 1 or more"),
    ("vpp={max: 0}", "vpp: expected 1 or more"),
    ("tp=16", "tp: 16 does not divide the 8 GPUs; 8 does"),
    ("pp=[5]", "pp: 5 does not divide the 8 GPUs; 4 and 8 do"),
    ("dp={min: 6, max: 6}", "dp: 6 does not divide the 8 GPUs; 4 and 8 do"),
    ("dp_shard=64", "dp_shard: 64 does not divide the 8 GPUs; 8 does"),
    ("dp_replicate=7", "dp_replicate: 7 does not divide the 8 GPUs; 4 and 8 do"),
    ("tp=[2, x]", "tp.1: 'x': expected a whole number from 0 to 10,000,000"),
    ("tp={min: 4, max: 2}", "tp.min: 4 is above max 2"),
    ("tp={mn: 4}", "tp.mn: unknown field; did you mean min?"),
    ("tp={values: []}", "tp.values: []: expected at least one value"),
    ("tp=two", f"tp: 'two': {MANY}"),
    ("tp=2.0", f"tp: 2.0: {MANY}"),
    ("tp=yes", f"tp: true: {MANY}"),
    ("tp=[]", "tp: []: expected at least one value"),
    ("tp=-1", "tp: -1: expected a whole number from 0 to 10,000,000"),
    ("zero=4", "zero: 4 is not a ZeRO stage; accepted: 0 to 3"),
    ("layers=[4, 5]", "layers: [4, 5] sums to 9; accepted: model.n_layers 8"),
    ("layers=[]", "layers: []: expected at least one value"),
    ("layers=8", "layers: 8: expected a list"),
    ("layers=[8, 0]", "layers.1: 0: expected a whole number from 1 to 1,000"),
    ("recompute_layers=[2, 8]", "recompute_layers: [2, 8] sums to 10; accepted: up to "
                                "model.n_layers 8"),
    ("recompute_layers=some", "recompute_layers: 'some': expected all, any, or a list "
                              "of whole numbers, one per stage"),
    ("recompute_layers=[x]", "recompute_layers.0: 'x': expected a whole number from 0"),
    ("recompute=half", "recompute: 'half': expected none, selective, full or full-cpu"),
    ("schedule=[1f1b, zb]", "schedule.1: 'zb': expected 1f1b, gpipe, zb-h1, zb-v or "
     "dualpipe-v"),
    ("sequence_parallel=1", "sequence_parallel: 1: expected true or false"),
    ("mesh={tp: [2, 2]}", "mesh.tp: [2, 2] has 2 factors; the cluster has 1 level of "
                          "[8], innermost first"),
    ("mesh={tp: 2}", "mesh.tp: 2: expected a list"),
    ("mesh={ep: [2]}", "mesh.ep: unknown field; accepted: tp, cp, dp_shard, dp_"),
]  # fmt: skip


def write(folder: Path, old: str, new: str) -> str:
    path = folder / "spec.yaml"
    path.write_text(changed(old, new), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("pin", "expected"), PINS)
def test_a_wrong_pin_is_refused_alike_in_the_file_and_on_the_command_line(
    pin: str, expected: str, tmp_path: Path
) -> None:
    name, _, value = pin.partition("=")
    path = write(tmp_path, "framework: megatron", f"pins:\n  {name}: {value}")
    assert refusal(path).startswith(f"{path}:17: pins.{expected}")
    path = write(tmp_path, "framework: megatron", "framework: megatron")
    message = refusal(path, "--pin", pin)
    assert message.startswith(f"--pin {pin}: pins.{expected}")


@pytest.mark.parametrize(
    ("pin", "size", "batch", "expected"),
    [
        ("dp=64", 64, 1_000, "dp: 64 does not divide training.global_batch 1000; "
                             "8 does"),
        ("dp=64", 8_000, 1_000, "dp: 64 does not divide training.global_batch 1000; "
                                "50 and 100 do"),
        ("dp=64", 64, 32, "dp: 64 does not divide training.global_batch 32; 32 does"),
        ("dp_shard=16", 64, 8, "dp_shard: 16 does not divide training.global_batch 8; "
                               "8 does"),
        ("tp=16", 64, 64, "tp: 16 does not divide model.n_heads 8; 8 does"),
    ],
)  # fmt: skip
def test_a_pin_that_leaves_a_remainder_is_refused_with_the_nearest_that_do_not(
    pin: str, size: int, batch: int, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "spec.yaml"
    text = changed("size: 8", f"size: {size}")
    path.write_text(text.replace("global_batch: 1000", f"global_batch: {batch}"))
    assert refusal(str(path), "--pin", pin) == f"--pin {pin}: pins.{expected}"


@pytest.mark.parametrize(
    ("recomputed", "expected"),
    [
        ("[2]", ": [2] has length 1, pins.layers has 2"),
        ("[2, 5]", ".1: 5 is above the stage's layers; accepted: up to 4"),
    ],
)
def test_recomputed_layers_that_do_not_match_the_pinned_layers_are_refused(
    recomputed: str, expected: str, tmp_path: Path
) -> None:
    pins = f"pins:\n  layers: [4, 4]\n  recompute_layers: {recomputed}"
    path = write(tmp_path, "framework: megatron", pins)
    assert refusal(path) == f"{path}:18: pins.recompute_layers{expected}"


def test_the_mesh_of_a_cluster_of_nodes_has_hosts_as_its_second_level(
    tmp_path: Path,
) -> None:
    names = "abcd"
    nodes = ", ".join(f"{{name: {n}, host: {i // 2}}}" for i, n in enumerate(names))
    links = ", ".join(
        f"{{between: [{a}, {b}], gb_s: 1, latency_us: 1}}"
        for a, b in itertools.pairwise(names)
    )
    levels = "    levels:\n      - {name: nvlink, size: 8, gb_s: 300, latency_us: 1}\n"
    path = write(tmp_path, levels, f"    nodes: [{nodes}]\n    links: [{links}]\n")
    message = refusal(path, "--pin", "mesh={tp: [2]}")
    assert "has 1 factor; the cluster has 2 levels of [2, 2]" in message


@pytest.mark.parametrize(
    ("pin", "expected"),
    [
        ("tp", f"--pin tp: expected FIELD=VALUE; fields: {FIELDS}"),
        ("tp=", f"--pin tp=: expected FIELD=VALUE; fields: {FIELDS}"),
        ("", f"--pin : expected FIELD=VALUE; fields: {FIELDS}"),
        ("=4", f"--pin =4: expected FIELD=VALUE; fields: {FIELDS}"),
        ("mirco_batch=2", "--pin mirco_batch=2: expected FIELD=VALUE; did you mean "
                          "micro_batch? fields: tp, pp"),
        ("tp=[2", "--pin tp=[2: not valid YAML: "),
        ("tp=#", "--pin tp=#: empty; expected YAML fields"),
        ("tp=!!int 2", "--pin tp=!!int 2: the tag"),
    ],
)  # fmt: skip
def test_a_pin_that_is_not_field_and_value_is_refused(
    pin: str, expected: str, tmp_path: Path
) -> None:
    path = write(tmp_path, "size: 8", "size: 8")
    assert refusal(path, "--pin", pin).startswith(expected)


def test_pins_on_the_command_line_need_a_mapping_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "framework: megatron", "pins: 5")
    expected = f"{path}:16: pins: 5: expected plan fields, as a mapping"
    assert refusal(path, "--pin", "tp=2") == expected


@pytest.mark.parametrize(
    ("pins", "told"),
    [
        (["tp=2", "pp=2", "dp=4"], "tp 2 x pp 2 x dp 4 = 16, the cluster has 8"),
        (["layers=[4, 4]", "pp=4"], "layers of 2 stages, pp 4"),
        (["tp=8", "mesh={tp: [2]}"], "pins.mesh.tp: [2] (tp 8)"),
        (["cp=8", "tp=2"], "tp 2 x cp 8 = 16, the cluster has 8"),
        (["pp=8", "vpp=2"], "8 layers / (pp 8 x vpp 2) = 0"),
    ],
)
def test_pins_that_no_plan_meets_together_are_an_answer(
    pins: list[str], told: str, tmp_path: Path
) -> None:
    path = write(tmp_path, "size: 8", "size: 8")
    arguments = [argument for pin in pins for argument in ("--pin", pin)]
    result = run("solve", path, *arguments)
    assert (result.code, result.stderr) == (1, "")
    assert told in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("spec.yaml/answer", "--output spec.yaml/answer: not a directory"),
        (".", "--output .: is a directory"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused(
    output: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, "size: 8", "size: 8")
    assert refusal(path, "-o", output) == expected


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--top", "0"),
        ("--top", "three"),
        ("--workers", "0"),
        ("--time-limit", "-1"),
        ("--seed", "-1"),
        ("--format", "xml"),
    ],
)
def test_an_option_out_of_bounds_is_refused_by_name(option: str, value: str) -> None:
    result = run("solve", "llama3-8b-2xh100-nvlink", option, value)
    assert (result.code, result.stdout) == (2, "")
    assert option in result.stderr
    assert "Traceback" not in result.stderr
