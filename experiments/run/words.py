"""Events in the words of the live page, for the terminal: sentences of static/words.js, and those of measures."""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from railyard.core.installation import data_file
from railyard.results.measured import MEASURED

_SENTENCES: Final = re.compile(r"const SENTENCES = (\{.*?\n\});", re.DOTALL)
_BLANK: Final = re.compile(r"\{(\*|[\w-]+)(!?)(?::(\w+))?\}")


@cache
def _sentences() -> dict[str, list[str]]:
    source = data_file("experiments/live/static/words.js").read_text(encoding="utf-8")
    match = _SENTENCES.search(source)
    assert match, "words.js has the sentences as JSON"
    sentences: dict[str, list[str]] = json.loads(match[1])
    return sentences


def sentences_of_measures() -> dict[str, list[str]]:
    """Return the sentences of events that measures emit, by the names of the events, for the page too."""
    sentences: dict[str, list[str]] = {}
    for measure in MEASURED.values():
        for name, choices in measure.sentences.items():
            sentences[name] = list(choices)
    return sentences


def _all_sentences() -> dict[str, list[str]]:
    return sentences_of_measures() | _sentences()


def sentence_names() -> frozenset[str]:
    """Return the names of all events that have a sentence."""
    return frozenset(_all_sentences())


def words(event_name: str, detail: Mapping[str, Any]) -> str:
    """Return an event in words; one that has no sentence by its name and its plain details."""
    for sentence in _all_sentences().get(event_name, []):
        if text := _filled(sentence, detail):
            return text
    plain = [f"{key} {value}" for key, value in detail.items() if _is_plain(value)]
    return ", ".join([event_name.replace("-", " "), *plain])


def _is_plain(value: object) -> bool:
    return value not in ("", None) and not isinstance(value, list | tuple | dict)


def _filled(sentence: str, detail: Mapping[str, Any]) -> str:
    """Return the sentence with its details, "" if it lacks one."""
    parts = [_part(key, bool(mark), noun, detail) for key, mark, noun in _BLANK.findall(sentence)]
    if not all(parts):
        return ""
    following = iter(parts)
    return _BLANK.sub(lambda _: next(following), sentence)


def _part(key: str, is_nonzero: bool, noun: str, detail: Mapping[str, Any]) -> str:
    """Return the text of a detail, "" if it is missing, or 0 where it `is_nonzero`."""
    if key == "*":
        return ", ".join(map(str, detail.values()))
    if key not in detail:
        return ""
    value = detail[key]
    if is_nonzero and value == 0:
        return ""
    if noun:
        if value == 1:
            return f"{value} {noun}"
        ending = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
        return f"{value} {noun}{ending}"
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
