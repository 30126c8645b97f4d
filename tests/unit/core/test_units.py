"""Rates, sizes and times as people write them, read and written back."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_rate, "100Mbit", 100_000_000),
        (parse_rate, "1.2Gbit", 1_200_000_000),
        (parse_rate, " 9600 bit ", 9600),
        (parse_rate, "1kbit", 1000),
        (parse_rate, "1Kbit", 1000),
        (parse_rate, "2.4Tbit", 2_400_000_000_000),
        (parse_size, "64KB", 64_000),
        (parse_size, "2MiB", 2_097_152),
        (parse_size, "1.5KiB", 1536),
        (parse_time, "20ms", 0.02),
        (parse_time, "2s", 2.0),
        (parse_time, "1.5min", 90.0),
        (parse_time, "250us", 0.00025),
    ],
)
def test_read(parse: Callable[[object], float], text: str, value: float) -> None:
    assert parse(text) == pytest.approx(value, rel=1e-12)


RATE = "is not a rate: write a number and one of bit, kbit, Kbit, Mbit, Gbit, Tbit, such as 100Mbit"
SIZE = "is not a size: write a number and one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB, such as 64KB"
TIME = "is not a time: write a number and one of ns, us, ms, s, min, such as 20ms"


@pytest.mark.parametrize(
    ("parse", "value", "message"),
    [
        (parse_rate, "100", RATE),
        (parse_rate, 100, RATE),
        (parse_rate, None, RATE),
        (parse_rate, "", RATE),
        (parse_rate, "Mbit", RATE),
        (parse_rate, "100MBit", RATE),  # a capital B means bytes to half of all readers
        (parse_rate, "100MB", RATE),
        (parse_rate, "1e3Mbit", RATE),
        (parse_rate, "nanbit", RATE),
        (parse_rate, "0Mbit", "is not a rate above zero, such as 100Mbit"),
        (parse_rate, "-5Mbit", "is not a rate above zero, such as 100Mbit"),
        (parse_rate, "0.4bit", "is not a rate above zero, such as 100Mbit"),
        (parse_rate, "9" * 400 + "bit", "is too large for a rate"),
        (parse_size, 64.0, SIZE),
        (parse_size, "64Kb", SIZE),
        (parse_size, "0KB", "is not a size above zero, such as 64KB"),
        (parse_size, "0.1B", "is not a size above zero, such as 64KB"),
        (parse_time, True, TIME),
        (parse_time, "20", TIME),
        (parse_time, "20m", TIME),
        (parse_time, "-1ms", "is not a time above zero, such as 20ms"),
        (parse_time, "0s", "is not a time above zero, such as 20ms"),
    ],
)
def test_refused(parse: Callable[[object], float], value: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("parse", "text", "meant"),
    [
        (parse_rate, "20Mbps", "20Mbit"),
        (parse_rate, "1.5 Gb/s", "1.5Gbit"),
        (parse_rate, "100mbit", "100Mbit"),
        (parse_rate, "100M", "100Mbit"),
        (parse_rate, "20MBps", None),
        (parse_size, "64gib", None),
        (parse_size, "64kB", "64KB"),
        (parse_time, "20msec", "20ms"),
        (parse_time, "20µs", "20us"),
        (parse_time, "2 minutes", "2min"),
        (parse_time, "20m", None),
    ],
)
def test_misspelled_unit_is_named(parse: Callable[[object], float], text: str, meant: str | None) -> None:
    """Bits and bytes are not taken for each other."""
    with pytest.raises(ValueError) as caught:
        parse(text)
    suggestion = re.search(r"did you mean (\S+)\?", str(caught.value))
    assert (suggestion and suggestion[1]) == meant


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
def test_written(write: Callable[[float], str], value: float, text: str) -> None:
    assert write(value) == text


@given(value=st.integers(1, 10**14))
def test_rates_and_sizes_with_all_digits_read_back(value: int) -> None:
    assert parse_rate(format_rate(value, 15)) == value
    assert parse_size(format_size(value, 15)) == value


@given(value=st.floats(1e-9, 1e6))
def test_a_time_written_with_every_digit_reads_back_the_same(value: float) -> None:
    assert parse_time(format_time(value, 15)) == pytest.approx(value, rel=1e-14)


@given(number=st.integers(1, 9999), unit=st.sampled_from(sorted(RATES)))
def test_every_rate_unit(number: int, unit: str) -> None:
    assert parse_rate(f"{number}{unit}") == number * RATES[unit]


@given(number=st.integers(1, 9999), unit=st.sampled_from(sorted(SIZES)))
def test_every_size_unit(number: int, unit: str) -> None:
    assert parse_size(f"{number}{unit}") == number * SIZES[unit]


@given(number=st.integers(1, 9999), unit=st.sampled_from(sorted(TIMES)))
def test_every_time_unit(number: int, unit: str) -> None:
    assert parse_time(f"{number}{unit}") == pytest.approx(number * TIMES[unit])
