"""Numbers and text in YAML and after -o are what people mean by them, and are written such that they stay."""

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from railyard.core.config import dump_yaml, parse_yaml
from railyard.core.errors import BadInput
from railyard.experiments.spec import loading


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e4", 10_000.0),
        ("-2.5E-3", -0.0025),
        ("010", 10),
        ("08", 8),
        ("+7", 7),
        ("0x10", 16),
        ("1_000", 1000),
        (".5", 0.5),
        ("5.", 5.0),
        (".inf", math.inf),
        ("1:30", "1:30"),
        ("0o10", "0o10"),
        ("0b11", "0b11"),
        ("100Mbit", "100Mbit"),
        ("1.2.3", "1.2.3"),
        ("on", True),
    ],
)
def test_plain_number_of_yaml_is_a_number(text: str, value: object) -> None:
    read = parse_yaml(text, "-o x")
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", ["domains=1:30", "domains=1e1", "domains=0o10", "domains=on", "domains=10.0"])
def test_fraction_is_no_number_of_domains(text: str) -> None:
    with pytest.raises(BadInput, match=r"^fabrics\.0\.domains: .* whole number"):
        loading.load_any("quickstart", [text])


def test_a_number_with_a_zero_in_front_is_decimal() -> None:
    (fabric, *_) = loading.load_any("quickstart", ["domains=010"]).gpu_fabrics
    assert fabric.domains == 10


@pytest.mark.parametrize("text", ["name=on", "name=010", "name=1e4", "name=2020-01-01"])
def test_text_like_another_yaml_type_needs_quotes(text: str) -> None:
    with pytest.raises(BadInput, match=r"^name: .* in quotes"):
        loading.load_any("quickstart", [text])


PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False)
NUMBER_LIKE = st.text("0123456789_.eExXob:+-naiNfyso", max_size=8)


@given(PLAIN | NUMBER_LIKE)
def test_written_yaml_is_equal_for_every_reader(value: Any) -> None:
    text = dump_yaml({"key": value})
    assert parse_yaml(text, "FILE") == {"key": value}
    assert yaml.safe_load(text) == {"key": value}
