"""Runs by others: read, priced as the solver would, scored by hand-checked formulas."""

from __future__ import annotations

import csv
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from meshwright.errors import SpecError
from meshwright.evidence.fit import calibrate
from meshwright.evidence.price import Priced, price_run, price_runs
from meshwright.evidence.published_terms import Unpriced
from meshwright.evidence.runs import Run, read_runs
from meshwright.evidence.score import judge, kendall_tau, score
from meshwright.planner.solve import solve
from meshwright.spec.plan_fields import Pins
from tests.helpers.command import run as run_command

RUNS = Path(__file__).parents[2] / "benchmarks" / "runs"

shipped = cache(read_runs)
"""The runs of a folder that ships; those of RUNS take two seconds to read."""


def row(**changes: Any) -> dict[str, Any]:
    """Return a measured run; `config__tp=2` changes a field of a part."""
    data: dict[str, Any] = {
        "id": "a",
        "source_id": "somebody",
        "date": "2022-05-10",
        "model": {
            "n_layers": 8, "d_model": 1024, "n_heads": 16, "d_ff": 4096,
            "vocab": 51200, "seq_len": 1024, "tied": True,
        },
        "hardware": {"gpu": "A100-80GB-SXM", "n_gpus": 16, "gpus_per_node": 8,
                     "inter_node": "8x HDR200 InfiniBand per node"},
        "config": {"dp": 4, "tp": 2, "pp": 2, "sp": False, "zero_stage": 1,
                   "micro_batch": 2, "global_batch": 64, "recompute": "full",
                   "precision": "fp16", "framework": "Megatron-LM"},
        "measured": {"step_time_s": 1.0},
    }  # fmt: skip
    for name, value in changes.items():
        part, _, field = name.partition("__")
        if field:
            data[part][field] = value
        else:
            data[part] = value
    return data


def priced(**changes: Any) -> Priced:
    return price_run(Run.model_validate(row(**changes)))


def test_a_run_costs_what_solving_its_pinned_plan_says() -> None:
    run = priced()
    plan = run.plan
    pins = {
        "tp": 2, "pp": 2, "dp_shard": 4, "zero": 1, "micro_batch": 2,
        "recompute": "full", "sequence_parallel": False, "vpp": 1,
        "layers": [stage.layers for stage in plan.stages],
        "mesh": {axis: list(factors) for axis, factors in plan.mesh.items()},
    }  # fmt: skip
    pinned = run.spec.model_copy(update={"pins": Pins.model_validate(pins)})
    best = solve(pinned).best
    assert best is not None
    assert best.plan == plan
    assert run.step_s == best.step_s
    assert run.peak_gib == best.peak_gib


def test_ranks_are_laid_out_tensor_first_then_data_then_pipeline() -> None:
    # Nodes of 8: tp 2 and dp 4 fill one, so the two stages are two nodes.
    assert priced().plan.mesh == {
        "tp": (2, 1),
        "cp": (1, 1),
        "dp_shard": (4, 1),
        "dp_replicate": (1, 1),
        "pp": (1, 2),
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"config__precision": "fp8"}, "config.precision: fp8 has no peak on "
         "a100-sxm-80gb"),
        ({"config__precision": "nvfp4"}, "config.precision: fp8 has no peak on "
         "a100-sxm-80gb"),
        ({"config__schedule": "hanayo"}, "config.schedule: hanayo is not modelled"),
        ({"config__vp": 2, "config__global_batch": 56},
         "config.vp: 7 micro-batches do not fill 2 stages"),
        ({"config__global_batch": None}, "config.global_batch: not published"),
        (
            {"config__global_batch": 63},
            "config.global_batch: 63 is not a multiple of 8",
        ),
        ({"config__dp": 8}, "config: tp x cp x pp x dp is 32, not 16 GPUs"),
        ({"config__cp": 2}, "config: tp x cp x pp x dp is 32, not 16 GPUs"),
        ({"hardware__gpu": "TPU-v4"}, "hardware.gpu: TPU-v4 is not in topologies/gpus"),
        ({"model__arch_note": "MLA attention"}, "model.mla: not published"),
        ({"model__moe": {"n_experts": 8, "top_k": 2, "expert_d_ff": 512},
          "config__ep": 3}, "config.ep: 3 does not divide 8 experts over 8 GPUs"),
    ],
)  # fmt: skip
def test_what_cannot_be_priced_is_listed_with_its_reason(
    change: dict[str, Any], reason: str
) -> None:
    found, left = price_runs([Run.model_validate(row(**change))])
    assert found == []
    assert [why for _, why in left] == [reason]


@pytest.mark.parametrize(
    ("change", "weights"),
    [
        ({"config__task": "lora"}, "bf16"),
        ({"config__task": "qlora", "config__framework": "FSDP"}, "nf4"),
        ({"config__task": "lora", "config__precision": "fp16, 4-bit"}, "nf4"),
        ({"config__precision": "nf4", "hardware__gpu": "A100-80GB-SXM"}, "nf4"),
        ({"config__lora_rank": 8, "config__frozen_weights": "fp32"}, "fp32"),
    ],
)
def test_lora_is_priced_with_adapters_that_are_noted(
    change: dict[str, Any], weights: str
) -> None:
    found, left = price_runs([Run.model_validate(row(**change))])
    assert left == []
    lora = found[0].spec.training.lora
    assert lora is not None
    assert lora.weights == weights
    noted = found[0].assumed["config.lora"]
    assert isinstance(noted, dict)
    assert noted["targets"] == list(lora.targets)


def test_no_fact_is_read_from_the_name_of_a_run() -> None:
    run = priced(id="model-70b-qlora-nf4", config__recompute="none")
    assert run.spec.training.lora is None
    assert "config.lora" not in run.assumed


def test_a_code_base_without_a_profile_is_priced_as_generic_and_counted_apart() -> None:
    other = row(id="b", config__framework="A code of our own")
    board = judge([Run.model_validate(r) for r in (row(), other)])
    found = price_run(Run.model_validate(other))
    assert found.spec.framework == found.assumed["config.framework"] == "generic"
    assert board.unpriced == ()
    assert board.overall.time is not None
    assert board.overall.time.rows == 1
    assert list(board.by_framework) == ["megatron"]
    assert list(board.without_profile) == ["A code of our own"]
    assert board.assumed["config.framework"] == 1


def test_the_command_says_which_code_bases_have_no_profile(tmp_path: Path) -> None:
    file = tmp_path / "runs.yaml"
    file.write_text(json.dumps([row(), row(id="b", config__framework="Our own")]))
    told = run_command("evidence", str(file)).stdout
    assert "Code bases without a profile, priced as generic, in no average" in told
    assert "Our own" in told
    data = json.loads(run_command("evidence", str(file), "--format", "json").stdout)
    assert data["without_profile"]["Our own"]["time"]["rows"] == 1


def test_a_code_base_without_a_profile_calibrates_like_any_other() -> None:
    runs = [priced(config__framework="A code of our own"), priced()]
    found = [calibrate([run]).measured[0].framework for run in runs]
    assert found == ["generic", "megatron"]


def test_what_a_source_leaves_out_is_assumed_and_said() -> None:
    run = priced(config__recompute=None, config__zero_stage=None)
    assert run.assumed["config.recompute"] == "none"
    assert run.assumed["config.zero_stage"] == 0


def scored(predicted: float, measured: float, fits: bool | None = True) -> Priced:
    run = row(measured={"step_time_s": measured, "fits": fits})
    base = price_run(Run.model_validate(run))
    return Priced(**{**vars(base), "step_s": predicted})


def test_time_errors_are_of_the_logarithm() -> None:
    # Twice, half and right: |ln| is 0.693, 0.693, 0; the mean of ln is 0.
    time = score([scored(2, 1), scored(1, 2), scored(1, 1)]).time
    assert time is not None
    assert time.rows == 3
    assert time.mape == pytest.approx((1.0 + 0.5 + 0.0) / 3)
    assert time.median == pytest.approx(math.log(2))
    assert time.bias == pytest.approx(0.0)


def test_regret_is_the_price_of_believing_the_model() -> None:
    # Predicted order 1, 2, 3; measured 1.2, 1.0, 3.0: the first is 20 % off the best.
    # Of the three pairs one is the wrong way round: tau = (2 - 1) / 3.
    ranking = score([scored(1, 1.2), scored(2, 1.0), scored(3, 3.0)]).ranking
    assert ranking is not None
    assert ranking.regret_max == pytest.approx(1.2)
    assert ranking.kendall_tau_mean == pytest.approx(1 / 3)


def test_plans_of_one_prediction_have_no_order() -> None:
    """Rounding tells no runs of one plan apart: 1.0 and 1.1 s count as their mean."""
    same = [scored(1, 1.1), scored(1 + 1e-15, 1.0)]
    others = [scored(2, 2.0), scored(3, 3.0)]
    ranking = score([*same, *others]).ranking
    assert ranking is not None
    assert ranking.kendall_tau_mean == 1
    assert ranking.regret_max == 1


def test_groups_of_two_say_nothing_about_ranking() -> None:
    assert score([scored(1, 1), scored(2, 2)]).ranking is None


def test_ties_count_half() -> None:
    import numpy as np

    # One tie among the predictions: tau-b = 2 / sqrt(2 x 3).
    tau = kendall_tau(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0]))
    assert tau == pytest.approx(2 / math.sqrt(6))


def test_out_of_memory_runs_are_told_from_those_that_fit() -> None:
    fits = score([scored(1, 1), scored(1, 1, fits=False)]).fits
    assert fits is not None
    assert (fits.true_fits, fits.false_fits) == (1, 1)
    # 96 layers of 12 x 8,192^2 weights at 18 bytes are 1.4 TB: no 16 GPUs hold that.
    shape = {"n_layers": 96, "d_model": 8192, "n_heads": 64, "d_ff": 32768}
    model = {**row()["model"], **shape}
    huge = priced(model=model, measured={"fits": False})
    found = score([huge]).fits
    assert found is not None
    assert (found.true_ooms, found.false_ooms) == (1, 0)


def test_contradictory_and_weak_rows_are_in_no_average() -> None:
    rows = [
        row(),
        row(id="b", check={"issues": ["tokens and seconds differ"]}),
        row(id="c", source_id="hearsay"),
    ]
    board = judge([Run.model_validate(r) for r in rows], weak_sources=["hearsay"])
    assert board.overall.time is not None
    assert board.overall.time.rows == 1
    assert [left.id for left in board.contradictory] == ["b"]
    assert list(board.weak) == ["hearsay"]


def test_step_time_comes_from_what_was_published() -> None:
    # 64 x 1,024 tokens at 16 x 2,048 tokens/s are 2 s.
    measured = {"step_time_s": 2.1, "tokens_per_s_per_gpu": 2048.0}
    derived = row(measured=measured, check={"derived": ["step_time_s"]})
    assert Run.model_validate(derived).step_s == 2.0
    assert Run.model_validate(row(measured=measured)).step_s == 2.1


def test_cells_of_a_csv_table_may_have_lines(tmp_path: Path) -> None:
    """What ends lines elsewhere ends no row: U+2028, and line ends in quotes."""
    table = tmp_path / "runs.csv"
    notes = "[two\nlines, and\u2028a\x0bthird"
    wide = row(notes=notes, source="@x", id="=1")
    cells = {name: one for name, one in wide.items() if not isinstance(one, dict)}
    for part in ("model", "hardware", "config", "measured"):
        cells |= {f"{part}.{name}": one for name, one in wide[part].items()}
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(cells))
        writer.writeheader()
        writer.writerow(cells)
    (run,) = read_runs(table)
    assert (run.notes, run.source, run.id) == (notes, "@x", "=1")


def test_a_csv_table_reads_like_yaml(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    flat = {
        f"{part}.{field}" if isinstance(value, dict) else part: cell
        for part, value in row().items()
        for field, cell in (value.items() if isinstance(value, dict) else [("", value)])
    }
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(flat))
        writer.writeheader()
        writer.writerow(flat)
    (run,) = read_runs(table)
    assert price_run(run).step_s == priced().step_s


ROW = yaml.safe_dump([row()])

BROKEN = {
    "empty": ("", ": empty; expected YAML fields"),
    "a mapping": ("a: 1", ":1: expected a list of runs"),
    "a number": ("[1]", ":1: 1: expected a mapping with the fields id, source_id"),
    "no source": ("\n- {id: x}", ":2: source_id: missing; expected name of its"),
    "open": ("- [", ":1: not valid YAML: "),
    "brackets": ("[" * 40_000, ":1: expected at most 40 levels of nesting"),
    "mappings": ("\n".join(" " * i + "a:" for i in range(1_000)),
                 ":41: expected at most 40 levels of nesting"),
    "many values": (f"[{'1,' * 300_001}]", ":1: expected at most 300,000 values"),
    "tag": ("- !!python/object/apply:os.getcwd []", ":1: the tag "),
    "twice": (ROW + ROW, f":{ROW.count(chr(10)) + 1}: id: 'a': already given at "),
    "digits": (ROW.replace("step_time_s: 1.0", f"step_time_s: {'9' * 5_000}"),
               ":20: measured.step_time_s: '99999"),
    "tiny": (ROW.replace("step_time_s: 1.0", "step_time_s: 1e-320"),
             ":20: measured.step_time_s: '1e-320': expected a number from 1e-6"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_files_are_refused_by_line(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "runs.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as error:
        read_runs(file)
    assert str(error.value).startswith(f"{file}{message}")
    assert len(str(error.value)) < 2_000


HEADING = "id,source_id,model.seq_len,hardware.gpu,hardware.n_gpus"

BROKEN_TABLES = {
    "no rows": (HEADING, ": expected a list of runs"),
    "open bracket": (
        f"{HEADING}\na,b,[1,h,8\n",
        ":2: model.seq_len: '[1': expected a whole number",
    ),
    "column twice": ("id,id\na,b\n", ":1: column 'id': stands twice; expected each"),
    "column in a column": ("id,model,model.d_ff\na,1,2\n",
                           ":1: column 'model': given beside fields of it; keep one"),
    "column far below": ("id," + "a." * 50_000 + "b\na,1\n",
                         ":1: column 'a.a.a.a"),
    "long row": (f"{HEADING}\na,b,1,h,8,9\n", ":2: 6 cells; expected at most 5"),
    "short row": (f"{HEADING}\na,b,1\n", ":2: hardware: missing; expected a mapping"),
    "open quote": (f'{HEADING}\na,"b,1,h,8\n', ":2: not valid CSV: "),
    "long cell": (f"{HEADING}\na,{'b' * 200_000},1,h,8\n", ":2: not valid CSV: "),
    "digits": (f"{HEADING}\na,b,{'9' * 5_000},h,8\n", ":2: model.seq_len: '999"),
    "brackets": (f"{HEADING}\na,b,{'[' * 40_000},h,8\n",
                 ":2: model.seq_len: expected at most 40 levels of nesting"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BROKEN_TABLES.values(), ids=BROKEN_TABLES)
def test_broken_tables_are_refused_by_line(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(text)
    with pytest.raises(SpecError) as error:
        read_runs(file)
    assert str(error.value).startswith(f"{file}{message}")
    assert len(str(error.value)) < 2_000


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(SpecError, match="/dev/zero: expected at most 10,000,000 bytes"):
        read_runs(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config__layers_per_stage": [5, 2]}, "7 layers in 2 stages, not 8 in 2"),
        ({"config__layers_per_stage": [8]}, "8 layers in 1 stages, not 8 in 2"),
        ({"hardware__inter_node": "800000000x 999999999"}, "levels.1.gb_s: expected a"),
        ({"hardware__intra_node": "1.2.3.4 GB/s", "config__schedule":
          "interleaved-vpp0"}, "config.schedule: interleaved-vpp0 is not modelled"),
    ],
)  # fmt: skip
def test_a_run_that_no_spec_can_say_is_left_out_with_the_reason(
    changes: dict[str, Any], reason: str
) -> None:
    run = Run.model_validate(row(**changes))
    ((_, told),) = price_runs([run])[1]
    assert reason in told


def test_the_last_stage_alone_may_have_no_layers() -> None:
    """It holds the head; its neighbour has all layers then."""
    ends = priced(config__layers_per_stage=[8, 0])
    assert [stage.layers for stage in ends.plan.stages] == [8, 0]
    uneven = priced(config__layers_per_stage=[7, 1])
    assert ends.step_s == pytest.approx(uneven.step_s, rel=0.3)
    with pytest.raises(Unpriced, match="layers_per_stage"):
        priced(config__layers_per_stage=[0, 8])


def test_a_row_that_leaves_a_choice_open_has_a_range() -> None:
    """24 layers x 34 bytes x 2,048 tokens x 16 sequences x 4,096 are 102 GiB on two
    tensor ranks without recomputation, half of that selectively, far less in full.
    """
    shape = {"n_layers": 24, "d_model": 4096, "n_heads": 32, "d_ff": 16384}
    model = {**shape, "vocab": 51200, "seq_len": 2048, "tied": True}
    said = priced(model=model, config__recompute="full")
    left = priced(model=model, config__recompute=None)
    assert said.slowest_s is said.least_gib is None
    assert left.slowest_s == pytest.approx(said.step_s)
    assert left.step_s < said.step_s
    assert left.least_gib == pytest.approx(said.peak_gib)
    assert left.fit_probability == pytest.approx(said.fit_probability)


@pytest.mark.slow
def test_the_shipped_runs_are_many_and_from_many_sources() -> None:
    runs = shipped(RUNS)
    assert len(runs) >= 300
    assert len({run.source_id for run in runs}) >= 12
    assert len({run.id for run in runs}) == len(runs)


@pytest.mark.slow
def test_runs_that_no_fit_has_seen_are_none_of_the_others() -> None:
    unseen = {run.id for run in shipped(RUNS / "unfitted")}
    others = {run.id for part in (RUNS, RUNS / "weak") for run in shipped(part)}
    assert unseen
    assert not unseen & others


def test_the_command_prints_json_with_every_row_accounted_for(tmp_path: Path) -> None:
    source = RUNS / "narayanan21.yaml"
    result = run_command("evidence", str(source), "--format", "json")
    assert result.code == 0
    data = json.loads(result.stdout)
    accounted = data["fits"]["rows"] + len(data["unpriced"])
    assert accounted >= len(read_runs(source)) - len(data["contradictory"])
    assert set(data["by_source"]) == {"narayanan21"}


SCORES = {
    "time": {"rows", "mape", "median", "p90", "bias"},
    "ranking": {
        "groups", "kendall_tau_mean", "regret_median", "regret_mean", "regret_max",
    },
    "memory": {"rows", "median", "p90", "worst"},
    "fits": {"rows", "true_fits", "false_fits", "true_ooms", "false_ooms"},
}  # fmt: skip


def test_json_holds_every_score_overall_and_by_source(tmp_path: Path) -> None:
    """Three layouts make a ranking group, one unpriced row stays with its reason."""
    peak = {"peak_memory_gb": 20.0, "fits": True}
    rows = [
        row(id=f"tp{tp}", config__tp=tp, config__dp=8 // tp,
            measured={"step_time_s": 1.0 + tp, **peak})
        for tp in (1, 2, 4)
    ]  # fmt: skip
    file = tmp_path / "runs.yaml"
    file.write_text(json.dumps([*rows, row(id="later", config__schedule="hanayo")]))
    result = run_command("evidence", str(file), "--format", "json")
    data = json.loads(result.stdout)
    for scores in (data, data["by_source"]["somebody"]):
        assert {name: set(scores[name]) & SCORES[name] for name in SCORES} == SCORES
        assert [scores[part]["rows"] for part in ("time", "memory", "fits")] == [3] * 3
    (left,) = data["unpriced"]
    assert left == {"id": "later", "reason": "config.schedule: hanayo is not modelled"}


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("max allocated (torch), GiB", "allocated"),
        ("max reserved, GiB", "reserved"),
        ("peak_memory_usage log field, GiB", "reserved"),
        ("peak, GB as printed", "reserved"),
        ("GB as printed (nvidia-smi style)", "device"),
        ("GB as printed", "device"),
        (None, "device"),
    ],
)
def test_memory_is_scored_by_what_was_counted(words: str | None, kind: str) -> None:
    """A GiB of 2^30 bytes is predicted; context and buffers count on the device."""
    measured = {"peak_memory_gb": 20.0, "peak_memory_kind": words}
    run = priced(measured=measured)
    predicted = {
        "allocated": run.allocated_gib,
        "reserved": 1.1 * run.allocated_gib,
        "device": 1.1 * run.allocated_gib + 3.0,
    }[kind]
    found = score([run]).memory_by_kind
    assert list(found) == [kind]
    assert found[kind].worst == pytest.approx(abs(math.log(predicted / 20.0)))


def test_the_command_prints_tables() -> None:
    result = run_command("evidence", str(RUNS / "deepspeed_azure.yaml"))
    assert result.code == 0
    assert "By source" in result.stdout
    assert "model.n_layers: not published" in result.stdout


def leaves(data: dict[str, Any], *path: str) -> list[tuple[str, ...]]:
    """Return the paths of all fields of a run, those of parts included."""
    found = [(*path, name) for name in data]
    inner = [leaves(v, *path, n) for n, v in data.items() if isinstance(v, dict)]
    return [*found, *(one for some in inner for one in some)]


REQUIRED = ("id", "source_id", "model", "hardware", "config")
EXPERTS = {"n_experts": 8, "top_k": 2, "expert_d_ff": 512, "shared": 1}


@pytest.mark.parametrize("path", leaves(row(model__moe=EXPERTS)), ids=".".join)
def test_any_field_may_be_null(path: tuple[str, ...]) -> None:
    """The run is priced, or the reason names the field; names and parts are needed."""
    data = row(model__moe=dict(EXPERTS))
    *parts, name = path
    part = data
    for inner in parts:
        part = part[inner]
    part[name] = None
    if path in {(part,) for part in REQUIRED}:
        with pytest.raises(ValidationError):
            Run.model_validate(data)
        return
    priced_, unpriced = price_runs([Run.model_validate(data)])
    assert len(priced_) + len(unpriced) == 1
    assert all("." in reason for _, reason in unpriced)
