"""Counts over all tests that may improve, but not get worse. A change that improves a count lowers its limit here."""

import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.import_graph import ROOT

MAX_LINES = 65_700  # aim: 40,000
MAX_PERCENT_WITH_A_SENTENCE = 5.6
"""Of the tests: those that hold a sentence which the program prints, and so break when its wording changes."""
MAX_VAGUE_NAMES = 176
"""Tests whose name doesn't say what is tested."""
DOCSTRING = re.compile(r'^ +""".*?"""$', re.MULTILINE | re.DOTALL)
ASSERTION_MESSAGE = re.compile(r'(?m)^( +assert .*), f?"[^"\n]*"$')
SENTENCE = re.compile(r'"[^"\n]*\b[a-z]+(?:,? [a-z]+){3}[^"\n]*"')
"""A string of four words or more in a row, on one line."""
VAGUE_WORD = re.compile(r"_(it|they|them|one(?!_line)|what|those|who|something)(?=_|$)")
"""A word that names nothing; but an error in one line is a term."""


@cache
def sources() -> dict[str, str]:
    """Return the text of every Python file of the tests, by its path."""
    return {str(path): path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}


def functions_in(source: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each test function of a file, with its parameters."""
    for part in re.split(r"\n\n\n(?=\S)", source):
        if match := re.search(r"^(?:async )?def (test_\w+)", part, re.MULTILINE):
            yield match[1], part


def has_sentence(text: str) -> bool:
    """Return True if a test function holds a sentence, apart from its docstring and the messages of its assertions."""
    return bool(SENTENCE.search(ASSERTION_MESSAGE.sub(r"\1", DOCSTRING.sub("", text))))


def test_lines_of_tests_do_not_become_more() -> None:
    assert sum(source.count("\n") for source in sources().values()) <= MAX_LINES


def test_few_tests_hold_a_sentence_of_the_program() -> None:
    texts = [text for source in sources().values() for _, text in functions_in(source)]
    assert len(texts) > 1000
    assert 100 * sum(map(has_sentence, texts)) / len(texts) <= MAX_PERCENT_WITH_A_SENTENCE


def test_names_of_tests_say_what_is_tested() -> None:
    names = [name for source in sources().values() for name, _ in functions_in(source)]
    assert sum(bool(VAGUE_WORD.search(name)) for name in names) <= MAX_VAGUE_NAMES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('def test_a():\n    assert text == "the rail is cut here"', True),
        ('def test_a():\n    """The rail is cut here."""\n    assert text', False),
        ('def test_a():\n    assert text == "", "the rail is cut here"', False),
        ('def test_a():\n    assert text == "rail is cut"', False),
        ('@pytest.mark.parametrize("a", ["the rail is cut here"])\ndef test_a(a):\n    assert a', True),
    ],
)
def test_sentences_of_a_test_are_found(text: str, expected: bool) -> None:
    assert has_sentence(text) == expected
