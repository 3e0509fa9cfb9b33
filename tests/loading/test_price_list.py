"""Lists of prices: the bundled one, those of users, and what is wrong with them."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from meshwright.errors import SpecError
from meshwright.loading.asked import Asked, count_of
from meshwright.loading.price_list import offered_specs, priced_machines
from meshwright.spec.cluster import usd_per_hour

MODEL = Asked(model="gpt2-xl", seq_len=1024, batch=64, framework="megatron")


def written(folder: Path, text: str) -> Path:
    path = folder / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_bundled_price_has_a_date_and_a_source() -> None:
    machines = priced_machines()
    names = [
        (machine.offer.group.cloud, machine.offer.instance) for machine in machines
    ]
    assert len(set(names)) == len(names) > 20
    for offer, topology in machines:
        group = offer.group
        assert group.cloud in {"aws", "gcp", "azure", "oci"}
        assert group.date is not None
        assert date(2025, 1, 1) < group.date < date(2027, 1, 1)
        assert "github.com" in group.source
        assert topology.scale_out is not None
        assert 1 < offer.price.hour_usd / 8 < 20


def test_choices_cost_what_their_machines_cost() -> None:
    found = offered_specs(None, MODEL, priced_machines(), 1e9, [])
    assert {spec.spec.cluster.count for spec in found.specs} == {1, 2, 4, 8, 16, 32, 64}
    for spec in found.specs:
        price = spec.offer.price.hour_usd * spec.spec.cluster.count
        assert spec.hour_usd == pytest.approx(price)
        assert usd_per_hour(spec.spec.cluster, None) == pytest.approx(price)
        hours = spec.days_per_step_s * 24
        assert spec.usd_per_step_s == pytest.approx(hours * price)
        assert spec.days_per_step_s == pytest.approx(1e9 / (1024 * 64) / 86_400)


def test_what_a_machine_cannot_do_is_told_with_its_name() -> None:
    found = offered_specs(None, MODEL, priced_machines(), 1e9, [])
    assert any(error.startswith("p3.16xlarge: ") for error in found.errors)


def test_own_prices_name_machines_and_how_many_there_are(tmp_path: Path) -> None:
    text = "prices: [{cloud: ours, instances: {a: {hour_usd: 9, machine: dgx-h100, "
    path = written(tmp_path, f"{text}most: 4}}, dgx-a100: 5}}}}]\n")
    machines = priced_machines(path)
    assert [machine.topology.name for machine in machines] == ["a", "dgx-a100"]
    found = offered_specs(None, MODEL, machines, 1e9, [])
    counts = [
        spec.spec.cluster.count for spec in found.specs if spec.offer.instance == "a"
    ]
    assert counts == [1, 2, 4]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prices: []\n", "prices: expected at least one"),
        ("prices: [{cloud: x, instances: {}}]\n", "at least 1 item"),
        ("prices: [{cloud: x, instances: {dgx-h100: -1}}]\n", "-1: expected a number"),
        (
            "prices: [{cloud: x, instances: {dgx-h10: 1}}]\n",
            "machine: 'dgx-h10' is nei",
        ),
        (
            "prices: [{cloud: x, instances: {dgx-h100: 1}, date: soon}]\n",
            "date: 'soon'",
        ),
        ("- 1\n", "expected a list of prices, as a mapping"),
    ],
)
def test_what_is_wrong_is_named(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        priced_machines(written(tmp_path, text))
    assert told in str(error.value)
    assert "prices.yaml:" in str(error.value)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Asked(), "--model: missing"),
        (Asked(model="gpt2-xl"), "--tokens: missing"),
        (Asked(model="gpt2-xl", count={"min": 3, "max": 1}), "--tokens: missing"),
    ],
)
def test_what_is_missing_is_named(asked: Asked, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        offered_specs(None, asked, priced_machines(), None, [])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8", 8),
        ("1,2,4", [1, 2, 4]),
        (" 1 .. 64 ", {"min": 1, "max": 64}),
    ],
)
def test_counts_are_numbers_lists_and_ranges(text: str, count: object) -> None:
    assert count_of(text) == count


@pytest.mark.parametrize(
    "text", ["", "x", "1..", "1,", "1...3", "-1", "1,2x", "9" * 2000]
)
def test_other_counts_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--count"):
        count_of(text)
