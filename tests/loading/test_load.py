"""How a spec is put together: names, presets, overrides, relative paths and pins."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.loading.load import load_question, load_spec
from meshwright.reading.yaml_and_csv import parse_yaml
from meshwright.spec.plan_fields import Range
from meshwright.spec.spec import Spec
from tests.helpers.command import SPEC, changed

TRAINING = "training: {seq_len: 1024, global_batch: 8, precision: fp16}\n"


def load(folder: Path, text: str, pins: list[str] | None = None) -> Spec:
    path = folder / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    return load_spec(str(path), pins)


def test_fields_left_out_have_their_defaults(tmp_path: Path) -> None:
    spec = load(tmp_path, changed("  n_kv_heads: 4\n", ""))
    assert (spec.model.n_kv_heads, spec.model.head_dim) == (8, 64)
    assert (spec.training.precision, spec.training.optimizer) == ("bf16", "adamw")
    assert spec.limits.risk == 0.05
    # exp(-1.645 x 0.13) of 0.99 x 80 GiB, what CUDA reports of the card: no profile
    # has told how far memory is off.
    assert spec.usable_gib == pytest.approx(63.95, abs=0.005)


def test_a_preset_takes_overrides(tmp_path: Path) -> None:
    text = f"model: {{preset: llama3-8b, n_layers: 16}}\ncluster: dgx-h100\n{TRAINING}"
    model = load(tmp_path, text).model
    assert (model.n_layers, model.d_model, model.name) == (16, 4096, "llama3-8b")


def test_a_topology_and_its_gpu_take_overrides(tmp_path: Path) -> None:
    text = """\
model: gpt2-xl
cluster:
  topology:
    preset: dgx-h100
    gpu: {preset: h200-sxm-141gb, memory_gib: 100 GiB}
  count: 2
"""
    cluster = load(tmp_path, text + TRAINING).cluster
    assert (cluster.topology.gpu.memory_gib, cluster.topology.gpu.memory_gb_s) == (
        100.0,
        4800.0,
    )
    assert (cluster.gpus, cluster.fan_outs) == (16, (8, 2))


def test_a_head_width_may_be_given_where_heads_do_not_divide(tmp_path: Path) -> None:
    text = changed("n_heads: 8", "n_heads: 12\n  head_dim: 64")
    assert load(tmp_path, text).model.head_dim == 64


def test_relative_paths_start_at_the_file_that_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, elsewhere = tmp_path / "parts", tmp_path / "elsewhere"
    inner.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    lines = SPEC.splitlines(keepends=True)
    (inner / "model.yaml").write_text("".join(lines[1:7]).replace("  ", ""))
    (inner / "gpu.yml").write_text(
        "memory_gib: 80\nmemory_gb_s: 2000\npeak_tflops: {fp16: 9}\n"
    )
    (inner / "pair.yaml").write_text(
        "gpu: gpu.yml\nlevels: [{name: x, size: 2, gb_s: 9, latency_us: 1}]\n"
    )
    text = f"model: parts/model.yaml\ncluster: ./parts/pair.yaml\n{TRAINING}"
    spec = load(tmp_path, text)
    assert (spec.model.n_layers, spec.cluster.gpus) == (8, 2)
    assert spec.peak_flops == 9e12


def test_pins_on_the_command_line_replace_those_of_the_file(tmp_path: Path) -> None:
    text = SPEC + "pins:\n  tp: {min: 2, max: 4}\n  pp: 2\n"
    pins = load(tmp_path, text, ["tp=8", "zero=[1, 2]", "dp={max: 2}"]).pins
    assert (pins.tp, pins.pp) == (Range(values=(8,)), Range(values=(2,)))
    assert (pins.zero, pins.dp) == (Range(values=(1, 2)), Range(max=2))


def test_a_pin_given_twice_on_the_command_line_counts_as_given_last(
    tmp_path: Path,
) -> None:
    assert load(tmp_path, SPEC, ["tp=8", "tp=2"]).pins.tp == Range(values=(2,))


@pytest.mark.parametrize("section", ["limits:", "pins:", "limits: {}", "pins: {}"])
def test_optional_sections_may_be_empty(section: str, tmp_path: Path) -> None:
    assert load(tmp_path, f"{SPEC}{section}\n") == load(tmp_path, SPEC)
    assert load(tmp_path, f"{SPEC}{section}\n", ["tp=2"]).pins.tp is not None


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + SPEC.replace("\n", "\r\n").encode())
    assert load_spec(str(path)) == load(tmp_path, SPEC)


@pytest.mark.parametrize("name", catalog.names("specs"))
def test_every_bundled_spec_loads_from_any_working_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    assert load_question(name).title


@pytest.mark.parametrize("name", catalog.names("specs/models"))
def test_every_bundled_model_loads(name: str, tmp_path: Path) -> None:
    spec = load(tmp_path, f"model: {name}\ncluster: dgx-h100\n{TRAINING}")
    assert spec.model.name == name


@pytest.mark.parametrize("name", catalog.names("topologies"))
def test_every_bundled_topology_loads(name: str, tmp_path: Path) -> None:
    spec = load(tmp_path, f"model: gpt2-xl\ncluster: {name}\n{TRAINING}")
    assert spec.cluster.topology.name == name


@pytest.mark.parametrize("name", catalog.names("topologies/gpus"))
def test_every_bundled_gpu_loads(name: str, tmp_path: Path) -> None:
    topology = f"cluster: {{topology: {{preset: dgx-h100, gpu: {name}}}}}\n"
    spec = load(tmp_path, f"model: gpt2-xl\n{topology}{TRAINING}")
    assert spec.cluster.topology.gpu.name == name


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", True),
        ("no", False),
        ("on", True),
        ("OFF", False),
        ("'yes'", "yes"),
        ("y", "y"),
        ("1_000", 1_000),
        ("0x10", 16),
        ("1.5e+3", 1_500.0),
        ("1e3", "1e3"),
        ("010", "010"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("~", None),
        ("", None),
    ],
)
def test_values_are_read_as_yaml_1_1_does_but_never_as_octal_base_60_or_dates(
    text: str, value: object
) -> None:
    assert parse_yaml(f"key: {text}", "text").data == {"key": value}


def test_keys_are_text_however_they_look() -> None:
    data = parse_yaml("yes: 1\n5: 2\nnull: 3\n2024-01-01: 4", "text").data
    assert list(data) == ["yes", "5", "null", "2024-01-01"]


def test_anchors_that_stay_small_are_fine() -> None:
    document = parse_yaml("a: &x [1, 2]\nb: *x\n", "text")
    assert document.data == {"a": [1, 2], "b": [1, 2]}


def test_every_value_knows_its_line() -> None:
    places = parse_yaml("a:\n  b:\n    - 1\n    - {c: 2,\n       d: 3}\n", "f").places
    assert str(places[("a", "b", 1, "d")]) == "f:5"
    assert str(places[("a", "b")]) == "f:2"


def test_a_long_name_does_not_fill_the_screen() -> None:
    with pytest.raises(SpecError) as error:
        load_spec("n" * 100_000)
    assert len(str(error.value)) < 800


@pytest.mark.parametrize(
    ("lora", "framework", "noted"),
    [("16", "fsdp", True), ("{rank: 8}", "fsdp", True), ("null", "megatron", False)],
)
def test_adapters_without_a_framework_are_those_of_peft(
    lora: str, framework: str, noted: bool, tmp_path: Path
) -> None:
    path, notes = tmp_path / "spec.yaml", list[str]()
    path.write_text(
        "model: llama3-8b\ncluster: {topology: dgx-h100, count: 1}\n"
        f"training: {{seq_len: 4096, global_batch: 64, lora: {lora}}}\n"
    )
    assert load_spec(path, None, notes).framework == framework
    assert ("adapters without a framework: taken as fsdp" in notes) == noted


def test_adapters_of_a_framework_that_is_named_stay_there(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        "model: llama3-8b\ncluster: {topology: dgx-h100, count: 1}\n"
        "framework: megatron\n"
        "training: {seq_len: 4096, global_batch: 64, lora: 16}\n"
    )
    assert load_spec(path).framework == "megatron"


@pytest.mark.parametrize("fence", ["```yaml", "```", "  ```yml"])
def test_yaml_in_a_block_of_code_is_read(fence: str) -> None:
    text = "model: llama3-8b\ncluster: 8xH100\ntraining: {seq_len: 64, global_batch: 8}"
    spec = load_spec(f"{fence}\n{text}\n```\n")
    assert spec.cluster.gpus == 8
    with pytest.raises(SpecError, match=r"text:4: training.gobal_batch: unknown"):
        load_spec(f"{fence}\n{text}\n```".replace("global_batch: 8", "gobal_batch: 8"))


@pytest.mark.parametrize(
    ("lora", "is_told"),
    [("16", True), ("{rank: 16, weights: nf4}", False), ("null", False)],
)
def test_the_bits_in_the_name_of_a_checkpoint_are_told(
    lora: str, is_told: bool
) -> None:
    notes: list[str] = []
    text = "model: unsloth/Llama-3.3-70B-Instruct-bnb-4bit\ncluster: 8xH100\n"
    text += f"training: {{seq_len: 64, global_batch: 8, lora: {lora}}}"
    load_question(text, notes=notes)
    assert any("training.lora.weights: nf4" in one for one in notes) == is_told
