"""The project's language: standard terms in identifiers and prose.

ALLOWED holds how often each word that should go is still used in code. It may only shrink.
"""

import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from railyard.experiments import cli

ROOT = Path(__file__).parents[2]
PACKAGES = ("core", "topologies", "controller", "workloads", "failure", "results", "experiments")
INSTEAD = {
    "capsule": "sandbox",
    "brain": "failover manager",
    "hearts": "heartbeats",
    "glass": "optical switch",
    "foresight": "precomputed detours",
    "told": "event, message, sent",
    "heard": "received",
    "strikes": "injects",
    "mended": "repaired",
    "mend": "repair",
    "bite": "take effect",
    "census": "connectivity check",
    "censuses": "connectivity checks",
    "storm": "random faults",
    "storms": "random faults",
    "crews": "engine pool",
    "doors": "sockets",
    "knock": "handshake",
    "leftovers": "state snapshot, leak check",
    "takeover": "replacement",
    "takeovers": "replacements",
    "whoever": "the component's name",
    "somebody": "the component's name",
    "nobody": "no component",
    "light_off": "switching_time",
}
"""Word -> what to write instead."""
ALLOWED_FILE = Path(__file__).with_name("vocabulary_allowed.txt")
WORD = re.compile(r"[a-z]+(?:_off)?")


@cache
def modules() -> dict[Path, str]:
    """Return every product module with its source."""
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {path: path.read_text(encoding="utf-8") for path in files}


def words(text: str) -> Iterator[str]:
    """The words of prose or of identifiers, in lower case: `TakeoverSpec.light_off` has takeover, spec, light_off."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).lower()
    yield from WORD.findall(
        parted.replace("light_off", "light_off ").replace("_", " ").replace("light off", "light_off")
    )


def found_in_code() -> Counter[str]:
    """Return how often each word of INSTEAD is in identifiers, docstrings, messages and comments."""
    found: Counter[str] = Counter()
    banned_word = re.compile("|".join(INSTEAD).replace("_", ".?"), re.IGNORECASE)
    for source in modules().values():
        if not banned_word.search(source):  # to split all sources into tokens takes seconds
            continue
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in (tokenize.NAME, tokenize.STRING, tokenize.COMMENT):
                found.update(word for word in words(token.string) if word in INSTEAD)
    return found


def allowed() -> dict[str, int]:
    """Return how often each word may still be used."""
    lines = ALLOWED_FILE.read_text(encoding="utf-8").splitlines()
    return {word: int(count) for word, count in (line.split() for line in lines if line and line[0] != "#")}


def test_code_uses_standard_terms() -> None:
    found, limits = found_in_code(), allowed()
    worse = {word: f"{n} times, write: {INSTEAD[word]}" for word, n in found.items() if n > limits.get(word, 0)}
    assert worse == {}


PAGES = [*(ROOT / "docs").glob("*.md"), *(ROOT / "labs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
EXPERIMENTS = list((ROOT / "experiments" / "catalog").glob("*.yaml"))


@pytest.mark.parametrize("path", [*PAGES, *EXPERIMENTS], ids=lambda path: path.name)
def test_docs_and_experiments_use_standard_terms(path: Path) -> None:
    text = re.sub(
        r"`(?:[^`\n]*\.(?:csv|py)[^`\n]*|heard|optical_links_down_ms)`", "", path.read_text(encoding="utf-8")
    )  # files, columns
    text = re.sub(r"```python.*?```|^#+ \w+\.csv$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert {word: INSTEAD[word] for word in words(text) if word in INSTEAD} == {}


@pytest.mark.parametrize("name", sorted(cli.commands()))
def test_help_uses_standard_terms(name: str) -> None:
    command = cli.load_command(name)
    text = " ".join([command.help or "", *(getattr(option, "help", None) or "" for option in command.params)])
    assert [word for word in words(text) if word in INSTEAD] == []


if __name__ == "__main__":
    lines = [f"{word} {count}" for word, count in sorted(found_in_code().items())]
    ALLOWED_FILE.write_text("\n".join(["# word, uses in code; may only shrink", *lines, ""]), encoding="utf-8")


def test_names_of_tests_have_at_most_60_characters() -> None:
    names = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
    long = {
        f"{path.name}: {name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in names.findall(path.read_text(encoding="utf-8"))
        if len(name) > 60
    }
    assert not long, "\n".join(sorted(long))
