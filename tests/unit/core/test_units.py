"""Rates, sizes and times as people write them, read and written back."""

from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.units import (
    RATES,
    SIZES,
    TIMES,
    format_rate,
    format_size,
    format_time,
    parse_rate,
    parse_size,
    parse_time,
)
from tests.unit.messages import messages

Parse = Callable[[object], float]

READ: Final[dict[Parse, dict[str, float]]] = {
    parse_rate: {
        "100Mbit": 1e8, "1.2Gbit": 1.2e9, " 9600 bit ": 9600, "1kbit": 1000, "1Kbit": 1000, "2.4Tbit": 2.4e12,
    },
    parse_size: {"64KB": 64_000, "2MiB": 2_097_152, "1.5KiB": 1536},
    parse_time: {"20ms": 0.02, "2s": 2.0, "1.5min": 90.0, "250us": 0.00025},
}  # fmt: skip
REFUSED: Final[dict[Parse, list[object]]] = {
    parse_rate: [
        "100", 100, None, "", "Mbit", "1e3Mbit", "nanbit", "0Mbit", "-5Mbit", "0.4bit", "9" * 400 + "bit",
        # a capital B means bytes to half of all readers
        "100MBit", "100MB", "20MBps", "20Mbps", "1.5 Gb/s", "100mbit", "100M",
    ],
    parse_size: [64.0, "64Kb", "0KB", "0.1B", "64gib", "64kB"],
    parse_time: [True, "20", "20m", "-1ms", "0s", "20msec", "20µs", "2 minutes"],
}  # fmt: skip


@pytest.mark.parametrize("parse", READ)
def test_texts_are_read(parse: Parse) -> None:
    for text, value in READ[parse].items():
        assert parse(text) == pytest.approx(value, rel=1e-12), text


def test_refused_values_and_misspelled_units(data_regression: DataRegressionFixture) -> None:
    texts: dict[str, dict[str, str]] = {}
    for parse, values in REFUSED.items():
        cases = {repr(value)[:20]: value for value in values}
        texts[parse.__name__] = messages(parse, cases, ValueError)
    data_regression.check(texts)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (format_rate, 100_000_000, "100Mbit"),
        (format_rate, 1_234_567_890, "1.235Gbit"),
        (format_rate, 0, "0bit"),
        (format_rate, 48_000_000_000_000_000, "48000Tbit"),
        (format_size, 262_144, "262.1KB"),
        (format_size, 999, "999B"),
        (format_time, 0.0201, "20.1ms"),
        (format_time, 1.5e-5, "15us"),
        (format_time, 86_400, "86400s"),
    ],
)
def test_values_are_written(write: Callable[[float], str], value: float, text: str) -> None:
    assert write(value) == text


@given(value=st.integers(1, 10**14), time_s=st.floats(1e-9, 1e6))
def test_values_with_all_digits_read_back(value: int, time_s: float) -> None:
    assert parse_rate(format_rate(value, 15)) == value
    assert parse_size(format_size(value, 15)) == value
    assert parse_time(format_time(time_s, 15)) == pytest.approx(time_s, rel=1e-14)


@pytest.mark.parametrize(("parse", "units"), [(parse_rate, RATES), (parse_size, SIZES), (parse_time, TIMES)])
@pytest.mark.parametrize("number", [1, 9999])
def test_every_unit_is_read(parse: Parse, units: dict[str, float], number: int) -> None:
    for unit, factor in units.items():
        assert parse(f"{number}{unit}") == pytest.approx(number * factor)
