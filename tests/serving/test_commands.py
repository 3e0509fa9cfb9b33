"""Specs with inference from the command line: answers, explanations and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from meshwright import catalog
from tests.helpers.command import refusal, run, unwrapped

SERVED = [name for name in catalog.names("specs") if name.startswith("serve-")]
NONE_FITS = "serve-llama3-70b-2x4090-pcie"

SPEC = """\
model: llama3-8b
cluster: {topology: rtx-4090-pcie-2}
inference:
  batch: 4
  prompt_len: 512
  output_len: 64
  precision: int8
"""


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_every_bundled_spec_of_serving_is_answered(name: str) -> None:
    result = run("solve", name, "--format", "json")
    data = json.loads(result.stdout)
    assert data["status"] == ("infeasible" if name == NONE_FITS else "optimal")
    assert result.code == (1 if name == NONE_FITS else 0)


def test_json_says_what_an_answer_is(tmp_path: Path) -> None:
    data = json.loads(run("solve", written(tmp_path, SPEC), "--format", "json").stdout)
    plan = data["plan"]
    assert plan["tp"] * plan["pp"] * plan["dp_replicate"] == 2
    assert sum(plan["layers"]) == 32
    time = data["time"]
    assert sum(time["tpot_parts"].values()) == pytest.approx(time["tpot_s"])
    assert sum(time["ttft_parts"].values()) == pytest.approx(time["ttft_s"])
    assert time["request_s"] == pytest.approx(time["ttft_s"] + 63 * time["tpot_s"])
    assert time["busy_request_s"] * data["requests_per_s"] == pytest.approx(4)
    stage = data["memory"]["stages"][0]
    assert sum(stage["parts"].values()) == pytest.approx(stage["total_gib"])
    assert data["tokens_per_s"] == pytest.approx(64 * data["requests_per_s"])
    assert data["largest"]["batch"] >= 4
    assert {one["kind"] for one in data["by_kind"]} == {"TP", "PP", "replicas"}
    assert data["gap"] == 0


def test_a_request_takes_as_long_as_the_rate_of_requests_says() -> None:
    """In flight is the rate times the time of a request (Little's law)."""
    told = run("solve", "serve-llama3-70b-8xh100").stdout
    rate = re.search(r"([\d.]+) requests/s", told)
    took = re.search(r"among which a request takes ([\d.]+) s", " ".join(told.split()))
    assert rate is not None
    assert took is not None
    assert float(rate[1]) * float(took[1]) == pytest.approx(256, rel=5e-3)
    assert "among which" not in run("solve", "serve-llama3-8b-2x4090-pcie").stdout


@pytest.mark.parametrize("output_format", ["table", "markdown"])
def test_text_names_what_users_ask_for(tmp_path: Path, output_format: str) -> None:
    text = run("solve", written(tmp_path, SPEC), "-v", "--format", output_format).stdout
    for word in ("first token", "a token", "tokens/s", "room for batch", "bubble"):
        assert word in text
    assert "What sets the degrees" in text
    assert "Tensors against stages, as the batch grows" in text


@pytest.mark.parametrize(
    ("objective", "what"),
    [
        ("latency", "for the first token and all others of a request."),
        ("throughput", "for the prefill and all tokens of the requests of a replica."),
    ],
)
def test_a_proof_says_of_what_its_seconds_are(
    objective: str, what: str, tmp_path: Path
) -> None:
    """They stood below those of a request, which are others in throughput."""
    path = written(tmp_path, f"{SPEC.rstrip()}\n  objective: {objective}\n")
    assert f"s (gap 0) {what}" in unwrapped(run("solve", path).stdout)


def test_pins_hold(tmp_path: Path) -> None:
    path = written(tmp_path, SPEC)
    result = run("solve", path, "--pin", "pp=2", "--pin", "layers=[20, 12]")
    assert "layers 20, 12" in result.stdout


def test_explain_says_what_stands_in_the_way_and_what_mends_it() -> None:
    result = run("explain", NONE_FITS)
    assert result.code == 1
    lines = [line.strip() for line in result.stdout.splitlines()]
    verdict = lines.index("No plan fits.")
    assert lines[verdict + 1] == "Because of memory."
    assert lines[verdict + 2] == "Change inference.precision: bf16 -> int4."
    held = lines.index("Broken rules of the plan that comes closest") + 1
    told = " ".join(lines[held : held + 5])
    assert told.startswith("It is tp=2,pp=1,dp_replicate=1,microbatches=4,layers=[80].")
    parts = re.search(r"Its fullest GPU, GiB: ((?:[a-z]+ [\d.]+(?:, )?)+)", told)
    assert parts is not None
    held_gib = [float(number) for number in re.findall(r"[\d.]+", parts[1])]
    needed = re.search(r"needs ([\d.]+)", told)
    assert needed is not None
    assert sum(held_gib) == pytest.approx(float(needed[1]), abs=0.02)
    assert "Repairs, each solved again" in result.stdout
    assert "cluster.topology.gpu: rtx-4090 -> " in result.stdout


def test_explain_judges_a_plan_that_is_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, SPEC)
    fits = run("explain", path, "--plan", "pp=2", "-v")
    assert fits.code == 0
    assert "more than the best plan, tp=2" in fits.stdout
    assert "Distance to the best plan, part by part" in fits.stdout
    assert "memory bandwidth +10 %" in fits.stdout
    result = run("explain", path, "--plan", "tp=3", "--format", "json")
    assert result.code == 1
    told = json.loads(result.stdout)
    assert [rule["rule"] for rule in told["conflict"]["rules"]] == ["pins.tp"]
    assert told["repairs"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "  precision: int8\n",
            "training: {seq_len: 8, global_batch: 8}\n",
            ":3: inference: given beside training",
        ),
        ("inference:", "inferense:", "training: missing; expected a mapping"),
        ("inference:", "inferense:", "; or inference, to serve the model"),
        ("batch: 4", "batch: 0", ":4: inference.batch: 0: expected a whole number"),
        ("int8", "int3", ":7: inference.precision: 'int3': expected bf16, fp16"),
        ("int8", "int8\n  slo: {ttft: 5}", ":8: inference.slo.ttft: unknown field; "
         "did you mean ttft_ms?"),
        ("int8", "int8\npins: {zero: 1}", ":8: pins.zero: '1' given beside inference; "
         "accepted: tp, pp"),
        ("int8", "int8\npins: {layers: [5, 5]}", "layers: [5, 5] sums to 10; "
         "accepted: model.n_layers 32"),
        ("int8", "int8\nlimits: {max_link_utilisation: 0.5}", ":8: "
         "limits.max_link_utilisation: 0.5 given beside inference"),
        ("llama3-8b", "gpt2-xl", ":5: inference.prompt_len"),
    ],
)  # fmt: skip
def test_errors_name_line_field_and_what_is_accepted(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    changed = SPEC.replace(old, new).replace("512", "1000")
    assert expected in refusal(written(tmp_path, changed))


def test_a_gpu_without_fp8_is_told_so(tmp_path: Path) -> None:
    text = SPEC.replace("int8", "fp8").replace("rtx-4090-pcie-2", "a100-pcie-2")
    told = refusal(written(tmp_path, text))
    assert "inference.precision: 'fp8' has no peak on a100-pcie-80gb" in told
    assert "accepted: bf16, fp16, int8, int4" in told


def test_unlike_parts_are_refused(tmp_path: Path) -> None:
    parts = "{parts: [{machine: dgx-h100}, {machine: dgx-a100}], join: {name: fabric, "
    parts += "gb_s: 25, latency_us: 2}}"
    text = SPEC.replace("{topology: rtx-4090-pcie-2}", parts)
    told = refusal(written(tmp_path, text))
    assert ":2: cluster.parts: 2 given beside inference; serve each" in told


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--top", "2"), "--top: for specs with training; this has inference"),
        (("--profile", "unfitted"), "--profile: for specs with training"),
        (("--ranks", "."), "--ranks: for specs with training"),
    ],
)
def test_options_of_training_are_refused(
    tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    assert expected in refusal(written(tmp_path, SPEC), *arguments)


@pytest.mark.parametrize("command", ["solve", "explain"])
def test_a_page_is_written(tmp_path: Path, command: str) -> None:
    page = tmp_path / "page.html"
    result = run(command, written(tmp_path, SPEC), "--report", str(page))
    assert result.code == 0
    assert "Every further token" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("offload=optimizer", "--plan: pins.offload: 'optimizer' given beside"),
        ("zero=1", "--plan: pins.zero: '1' given beside inference; accepted: tp, pp"),
        ("layers=[5,5]", "--plan: pins.layers: [5, 5] sums to 10; accepted: model."),
    ],
)
def test_plans_that_no_deployment_has_are_refused(
    tmp_path: Path, plan: str, expected: str
) -> None:
    result = run("explain", written(tmp_path, SPEC), "--plan", plan)
    assert (result.code, result.stdout) == (2, "")
    assert expected in result.stderr


def test_commands_for_training_say_so(tmp_path: Path) -> None:
    result = run("compare", written(tmp_path, SPEC), "--plan", "tp=2")
    assert result.code == 2
    told = ":3: inference: this command is for specs with training"
    assert told in result.stderr
