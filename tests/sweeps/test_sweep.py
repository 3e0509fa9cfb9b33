"""What a sweep file means, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import catalog
from meshwright.errors import SpecError
from meshwright.sweeps.cases import Value
from meshwright.sweeps.sweep import Search, read_search
from tests.helpers.searches import SWEEP, changed, written


def read(folder: Path, text: str) -> Search:
    return read_search(written(folder, text))


def points(search: Search) -> list[tuple[Value, ...]]:
    return [tuple(case.axes.values()) for case in search.cases]


def test_grid_has_every_combination_the_last_axis_first(tmp_path: Path) -> None:
    search = read(tmp_path, SWEEP)
    assert search.axes == ["cluster.count", "training.seq_len"]
    assert points(search) == [(c, s) for c in (1, 2) for s in (256, 512, 1024)]
    for case in search.cases:
        assert case.spec is not None
        assert case.spec.cluster.count == case.axes["cluster.count"]
        assert case.spec.training.seq_len == case.axes["training.seq_len"]


def test_zipped_fields_go_together(tmp_path: Path) -> None:
    text = (
        SWEEP + "zip: {training.global_batch: [8, 4], training.optimizer: [adamw, sgd]}"
    )
    pairs = [point[2:] for point in points(read(tmp_path, text))]
    assert pairs == [(8, "adamw"), (4, "sgd")] * 6


def test_range_steps_from_low_to_high(tmp_path: Path) -> None:
    text = changed("[1, 2]", "{range: [1, 8, 3]}")
    assert [point[0] for point in points(read(tmp_path, text))[::3]] == [1, 4, 7]


def test_log2_doubles_and_stops_below_high(tmp_path: Path) -> None:
    text = changed("{log2: [256, 1024]}", "{log2: [3, 40]}")
    assert [point[1] for point in points(read(tmp_path, text))[:4]] == [3, 6, 12, 24]


def test_fields_in_lists_and_sections_that_are_not_there(tmp_path: Path) -> None:
    text = changed("cluster.count: [1, 2]", "cluster.topology.levels[0].gb_s: [10, 40]")
    search = read(tmp_path, text + "  pins.tp: [1, 2]\n")
    bandwidths = [c.spec.cluster.levels[0].gb_s for c in search.cases if c.spec]
    pinned = [str(case.spec.pins.tp) for case in search.cases if case.spec]
    assert bandwidths == [10.0] * 6 + [40.0] * 6
    assert pinned == ["1", "2"] * 6


def test_names_of_models_machines_and_gpus_are_resolved(tmp_path: Path) -> None:
    text = """\
base: llama2-13b-8xa100
sweep:
  model: [llama3-8b, {preset: llama3-8b, n_layers: 4}]
  cluster.machine: [dgx-a100, dgx-h100]
  cluster.topology.gpu: [h200]
"""
    search = read(tmp_path, changed("  cluster.topology.gpu: [h200]\n", "", text))
    specs = [case.spec for case in search.cases if case.spec]
    assert [spec.model.n_layers for spec in specs] == [32, 32, 4, 4]
    gpus = ["a100-sxm-80gb", "h100-sxm-80gb"] * 2
    assert [spec.cluster.topology.gpu.name for spec in specs] == gpus
    other = read(
        tmp_path, changed("  cluster.machine: [dgx-a100, dgx-h100]\n", "", text)
    )
    names = {c.spec.cluster.topology.gpu.name for c in other.cases if c.spec}
    assert names == {"h200-sxm-141gb"}
    assert other.axes == ["model", "cluster.topology.gpu"]
    assert points(other)[1][0] == '{"preset": "llama3-8b", "n_layers": 4}'


def test_sample_is_the_same_for_a_seed_and_in_the_order_of_the_grid(
    tmp_path: Path,
) -> None:
    def draw(seed: int, count: int = 3) -> list[tuple[Value, ...]]:
        sample = f"sample: {{cases: {count}, seed: {seed}}}\n"
        return points(read(tmp_path, SWEEP + sample))

    grid = points(read(tmp_path, SWEEP))
    assert draw(1) == draw(1)
    assert len({str(draw(seed)) for seed in range(9)}) > 1
    assert [one for one in grid if one in draw(1)] == draw(1)
    assert draw(4, 100) == grid


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("training.seq_len <= 512", [(1, 256), (1, 512), (2, 256), (2, 512)]),
        ("[training.seq_len == 256, cluster.count > 1]", [(2, 256)]),
        ("cluster.count * training.seq_len == 1024", [(1, 1024), (2, 512)]),
        ("256 < training.seq_len <= 512 and not cluster.count == 2", [(1, 512)]),
        ("training.seq_len in [256] or gpus % 4 == 0 and training.seq_len > 900",
         [(1, 256), (2, 256), (2, 1024)]),
        ("model.n_layers == 4 and training.optimizer != 'adamw' or gpus / 2 - 1 == 1",
         [(2, 256), (2, 512), (2, 1024)]),
        ("cluster.topology.levels[0].size == 2 and -cluster.count == -1",
         [(1, 256), (1, 512), (1, 1024)]),
    ],
)  # fmt: skip
def test_filters_keep_what_they_say(
    tmp_path: Path, where: str, kept: list[tuple[Value, ...]]
) -> None:
    line = where if where.startswith("[") else f'"{where}"'
    assert points(read(tmp_path, f"{SWEEP}where: {line}\n")) == kept


def test_sample_is_drawn_from_what_filters_keep(tmp_path: Path) -> None:
    text = SWEEP + "where: cluster.count == 2\nsample: {cases: 2, seed: 3}\n"
    assert [point[0] for point in points(read(tmp_path, text))] == [2, 2]


def test_settings_that_do_not_go_together_are_a_case_that_says_so(
    tmp_path: Path,
) -> None:
    text = changed("vocab: 8000}", "vocab: 8000, learned_positions: 512}")
    bad = [case for case in read(tmp_path, text).cases if case.spec is None]
    assert [case.axes["training.seq_len"] for case in bad] == [1024, 1024]
    assert "sweep.yaml:14: training.seq_len: 1024 is above" in bad[0].error


def test_such_cases_can_be_left_out(tmp_path: Path) -> None:
    text = changed("vocab: 8000}", "vocab: 8000, learned_positions: 512}")
    text += "where: [gpus >= 2, training.seq_len <= 512]\n"
    assert len(read(tmp_path, text).cases) == 4


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("cluster.count: [1, 2]", "cluster.cuont: [1, 2]",
         ":13: cluster.cuont: unknown field; did you mean count"),
        ("[1, 2]", "[1, two]", ":13: cluster.count: 'two': expected a whole number"),
        ("[1, 2]", "1", ":13: sweep.cluster.count: 1: expected a list of values"),
        ("[1, 2]", "[]", ":13: sweep.cluster.count: []: expected a list of values"),
        ("{log2: [256, 1024]}", "{log2: [256]}",
         ":14: sweep.training.seq_len.log2: [256]: expected [LOW, HIGH]"),
        ("{log2: [256, 1024]}", "{log2: [0, 1024]}", "whole numbers above 0"),
        ("{log2: [256, 1024]}", "{log2: [4, 2]}", "LOW is above HIGH"),
        ("{log2: [256, 1024]}", "{range: [1, 9000000]}", "expected at most 100,000"),
        ("cluster.count: [1", "cluster..count: [1", ":13: sweep: 'cluster..count':"),
        ("cluster.count: [1, 2]", "cluster.topology.levels[7].gb_s: [1, 2]",
         ":13: cluster.topology.levels[7].gb_s: 1: the spec has no fields in"),
        ("cluster.count: [1, 2]", "cluster: [1, 2]\n  cluster.machine: [dgx-h100]",
         ":14: cluster.machine: 'dgx-h100': the spec has no fields in cluster;"),
        ("cluster.count: [1, 2]", "model: [llama3-9b]",
         ":13: model: 'llama3-9b' is neither a file nor a bundled name"),
        ("base:\n", "base: nope\nunknown:\n", "unknown field; "),
        ("sweep:\n", "sweep: 3\nzip:\n", ":12: sweep: 3: expected fields of a spec"),
        ("  training: {", "  inference: {prompt_len: 9}\n  # {",
         ":9: inference: this command is for specs with training"),
        ("  training.seq_len", "where: x <\n# ", "where: 'x <': at character "),
        ("  training.seq_len", "where: nope > 1\n# ",
         ":14: where: 'nope > 1': at character 1: no field 'nope'; accepted: gpus, "),
        ("  training.seq_len", "where: training.seq_len.nan > 1\n# ",
         "no field 'training.seq_len.nan'; accepted: gpus"),
        ("  training.seq_len", "where: gpus\n# ", "is 2, neither true nor false"),
        ("  training.seq_len", "where: gpus > 'a'\n# ", "expected two of a kind"),
        ("  training.seq_len", "where: framework + 1 > 2\n# ", "expected a number"),
        ("  training.seq_len", "where: gpus % 0 == 1\n# ", "cannot be worked out"),
        ("  training.seq_len", "where: gpus > 99\n# ", ":14: where: no case of the"),
        ("  training.seq_len", "group: model\n# ", "group: 'model': expected an axis"),
        ("  training.seq_len", "best: speed\n# ", "best: 'speed': expected one of"),
        ("  training.seq_len", "front: [step_s]\n# ", "expected two or three metrics"),
        ("  training.seq_len", "sample: {cases: 0}\n# ", "sample.cases: 0: expected"),
        ("  training.seq_len", "zip: {run.tokens: [1, 2], pins.tp: [1]}\n# ",
         "zip.pins.tp: 1 values; expected 2, as run.tokens has"),
    ],
)  # fmt: skip
def test_mistakes_name_line_field_value_and_what_is_accepted(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    with pytest.raises(SpecError) as error:
        read(tmp_path, changed(old, new))
    assert told in str(error.value)
    assert "sweep.yaml" in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__.__bases__ == 1",
        "[x for x in [1]] == 1",
        "(lambda: 1)() == 1",
        "2 ** 99999999 > 1",
        "'a' * 999999999 == 'b'",
        "f'{gpus}' == '2'",
        "(gpus := 3) > 1",
        "gpus if gpus else 1",
        "gpus is 2",
        "not gpus",
    ],
)
def test_filters_run_nothing(tmp_path: Path, text: str) -> None:
    with pytest.raises(SpecError, match="where: "):
        read(tmp_path, f'{SWEEP}where: "{text}"\n')


def test_deep_filters_are_refused_and_not_walked(tmp_path: Path) -> None:
    chains = ("+".join(["gpus"] * 150) + " > 1", "-" * 900 + "gpus < 1", "not " * 99)
    for text in ("(" * 900 + "1" + ")" * 90, "not " * 5_000 + "gpus == 1", *chains):
        with pytest.raises(SpecError, match="where: "):
            read(tmp_path, f'{SWEEP}where: "{text}"\n')


def test_grids_that_are_too_large_name_the_way_out(tmp_path: Path) -> None:
    large = changed("[1, 2]", "{range: [1, 1000]}") + "  pins.tp: {range: [1, 900]}\n"
    with pytest.raises(SpecError, match=r"makes 2,700,000 cases; .* or a sample"):
        read(tmp_path, large)
    assert len(read(tmp_path, large + "sample: {cases: 5}\n").cases) == 5


def test_many_terms_joined_by_and_are_read(tmp_path: Path) -> None:
    text = " and ".join(["gpus > 0"] * 70)
    assert len(read(tmp_path, f'{SWEEP}where: "{text}"\n').cases) == 6


@pytest.mark.parametrize(
    ("sweep", "told"),
    [
        ("  training.seq_len: {range: [1, 1%s]}\n" % ("0" * 30), "up to 1e18"),
        ("".join(f"  pins.a{i}: {{range: [1, 100000]}}\n" for i in range(9)),
         "expected at most 100,000 values in all"),
        ("".join(f"  pins.a{i}: [1, 2]\n" for i in range(2_000)),
         "makes more than 1,000,000,000,000,000 cases"),
    ],
    ids=["number", "values", "cases"],
)  # fmt: skip
def test_grids_without_end_are_refused_at_once(
    tmp_path: Path, sweep: str, told: str
) -> None:
    text = SWEEP.partition("sweep:\n")[0] + f"sample: {{cases: 3}}\nsweep:\n{sweep}"
    with pytest.raises(SpecError) as error:
        read(tmp_path, text)
    assert told in str(error.value)


def test_folder_and_pattern_have_a_case_for_each_file(tmp_path: Path) -> None:
    for name in ("b", "a"):
        written(tmp_path, "base: llama3-8b-2xh100-nvlink\n", "other.txt")
        written(tmp_path, Path(_bundled()).read_text(encoding="utf-8"), f"{name}.yaml")
    written(tmp_path, "model: 3\n", "c.yaml")
    for one in (tmp_path, tmp_path / "*.yaml"):
        found = read_search(str(one)).cases
        assert [case.axes["spec"] for case in found] == ["a", "b", "c"]
        assert [case.spec is None for case in found] == [False, False, True]
        assert "c.yaml:1: model: 3" in found[2].error
    with pytest.raises(SpecError, match="no file of this folder or pattern"):
        read_search(str(tmp_path / "*.yml"))


def _bundled() -> str:
    return str(catalog.locate("specs", "llama3-8b-2xh100-nvlink", Path()))


def test_plain_spec_is_a_search_of_one_case() -> None:
    (case,) = read_search("llama3-8b-2xh100-nvlink").cases
    assert case.spec is not None
    assert case.axes == {}


@pytest.mark.parametrize("name", catalog.names("specs/sweeps"))
def test_bundled_sweeps_have_no_bad_case(name: str) -> None:
    search = read_search(name)
    assert search.notes == []
    assert len(search.cases) > 5
    assert all(case.spec is not None for case in search.cases)
