"""Quantities: every unit against arithmetic done by hand."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from meshwright.results.claims import seconds_text
from meshwright.spec.base import Count, Margin, Positive
from meshwright.spec.units import GBPerS, GiB, Micros, few_digits


class Quantities(BaseModel):
    memory: GiB = 1.0
    speed: GBPerS = 1.0
    latency: Micros = 1.0
    count: Count = 1
    share: Margin = 0.0
    number: Positive = 1.0


@pytest.mark.parametrize(
    ("written", "gib"),
    [
        (80, 80.0),
        (79.65, 79.65),
        ("80", 80.0),
        ("80GiB", 80.0),
        ("80 GiB", 80.0),
        ("  80  GiB ", 80.0),
        ("80 GB", 80e9 / 1_073_741_824),
        ("80GB", 74.50580596923828),
        ("81920 MiB", 80.0),
        ("1 TiB", 1_024.0),
        ("1.5e1 GiB", 15.0),
        (".5 GiB", 0.5),
        ("1073741824 B", 1.0),
        ("1048576 KiB", 1.0),
        ("2e6 KB", 2e9 / 1_073_741_824),
        ("2e3 MB", 2e9 / 1_073_741_824),
        ("1 TB", 1e12 / 1_073_741_824),
    ],
)
def test_memory_is_in_gib(written: object, gib: float) -> None:
    assert Quantities.model_validate({"memory": written}).memory == pytest.approx(gib)


@pytest.mark.parametrize(
    ("written", "gb_s"),
    [
        (450, 450.0),
        ("31.5", 31.5),
        ("400 Gbit/s", 50.0),
        ("400Gbit/s", 50.0),
        ("400Gbps", 50.0),
        ("400 Gb/s", 50.0),
        ("100 GB/s", 100.0),
        ("3.35 TB/s", 3_350.0),
        ("500 MB/s", 0.5),
        ("1 GiB/s", 1.073741824),
        ("800 Mbit/s", 0.1),
        ("8 Tbps", 1_000.0),
        ("8e6 Kbps", 1.0),
        ("1e6 KB/s", 1.0),
    ],
)
def test_bandwidth_is_in_gigabytes_a_second(written: object, gb_s: float) -> None:
    assert Quantities.model_validate({"speed": written}).speed == pytest.approx(gb_s)


@pytest.mark.parametrize(
    ("written", "us"),
    [
        (5, 5.0),
        (0, 0.0),
        ("0 us", 0.0),
        ("5us", 5.0),
        ("5 us", 5.0),
        ("5 \N{MICRO SIGN}s", 5.0),
        ("5 \N{GREEK SMALL LETTER MU}s", 5.0),
        ("500 ns", 0.5),
        ("2 ms", 2_000.0),
        ("1e-3 s", 1_000.0),
    ],
)
def test_latency_is_in_microseconds(written: object, us: float) -> None:
    assert Quantities.model_validate({"latency": written}).latency == pytest.approx(us)


@pytest.mark.parametrize(
    ("written", "guess"),
    [
        ({"memory": "80 Gb"}, "did you mean GB?"),
        ({"memory": "80 gib"}, "did you mean GiB?"),
        ({"memory": "80 gigabytes"}, "unknown unit 'gigabytes'; accepted: B, KB"),
        ({"speed": "400 GBit"}, "did you mean Gbit/s?"),
        ({"speed": "400 gbps"}, "did you mean Gbps?"),
        ({"speed": "80 GiB"}, "did you mean GiB/s?"),
        ({"speed": "5 parsec"}, "unknown unit 'parsec'; accepted: KB/s"),
        ({"latency": "5 usec"}, "did you mean us?"),
        ({"latency": "5 US"}, "did you mean us?"),
    ],
)
def test_an_unknown_unit_is_answered_with_the_nearest(
    written: dict[str, str], guess: str
) -> None:
    with pytest.raises(ValidationError, match="unknown unit") as error:
        Quantities.model_validate(written)
    assert guess in str(error.value)


@pytest.mark.parametrize(
    "written",
    ["", "GiB", "1 2 GiB", "1,5 GiB", "--1", "nan", "inf", "1e999", 10**400,
     float("nan"), float("inf"), -1, 0, True, None, [1], {"GiB": 1}],
)  # fmt: skip
def test_what_is_no_positive_number_is_no_memory(written: object) -> None:
    with pytest.raises(ValidationError, match="expected a number from"):
        Quantities.model_validate({"memory": written})


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("1e3", "this is read as text, write 1000"),
        ("8", "this is read as text, write 8"),
        ("32,000", "this is read as text, write 32000"),
        (8.0, "; write 8"),
    ],
)
def test_a_whole_number_in_disguise_is_spelled_out(written: object, hint: str) -> None:
    with pytest.raises(ValidationError) as error:
        Quantities.model_validate({"count": written})
    assert f"expected a whole number from 1 to 10,000,000; {hint.lstrip('; ')}" in str(
        error.value
    )


def test_numbers_that_yaml_takes_for_text_are_numbers_where_fractions_are_fine() -> (
    None
):
    quantities = Quantities.model_validate({"number": "1e3", "share": "5e-2"})
    assert (quantities.number, quantities.share) == (1_000.0, 0.05)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.0, "0"),
        (0.1164, "0.116"),
        (9.994, "9.99"),
        (99.94, "99.9"),
        (999.6, "1,000"),
        (10_000.0, "10,000"),
        (27_140.0, "27,140"),
    ],
)
def test_a_number_with_few_digits_has_no_power_of_ten(value: float, told: str) -> None:
    assert few_digits(value) == told
    assert seconds_text(0.9996) == "1,000 ms"
