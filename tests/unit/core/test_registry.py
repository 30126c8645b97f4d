"""Registries and plugins: what is registered, from where, and what is refused."""

import os
import re
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core import plugins
from railyard.core.errors import BadInput
from railyard.core.registry import REGISTRIES, Registry
from tests.unit.error_messages import message_of


def needs_speak(name: str, definition: object) -> Iterator[str]:
    if not hasattr(definition, "speak"):
        yield "the method speak(text) is missing"


@pytest.fixture
def animals() -> Iterator[Registry[object]]:
    yield Registry[object]("animal", check=needs_speak)
    del REGISTRIES["animal"]


@pytest.fixture(autouse=True)
def _forget_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(plugins, "_has_inherited", False)
    monkeypatch.setenv(plugins.ENVIRONMENT, "")


CAT = """
from railyard.core.registry import REGISTRIES

@REGISTRIES["animal"].register("cat")
class Cat:
    def speak(self, text): return text
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "mine.py"
    file.write_text(text)
    return file


def test_plugin_registers_a_definition_once(animals: Registry[object], tmp_path: Path) -> None:
    file = write(tmp_path, CAT)
    plugin = plugins.load(file)
    assert animals.names() == ("cat",)
    assert animals.source("cat") == ("plugin", str(file), 4)
    assert plugin.source == file.read_bytes()
    assert os.environ[plugins.ENVIRONMENT] == str(file)
    assert plugins.load("mine.py", folder=tmp_path) is plugin


def test_child_process_loads_inherited_plugins(
    animals: Registry[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(plugins.ENVIRONMENT, str(write(tmp_path, CAT)))
    plugins.load_inherited()
    assert "cat" in animals


def test_suspicious_syntax_of_a_plugin_prints_nothing(animals: Registry[object], tmp_path: Path) -> None:
    file = write(tmp_path, CAT + "\n\ndef never_called():\n    return 1[2]\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plugins.load(file)
    assert not caught


BAD_PLUGINS = {
    "exception": "x = 1\nraise KeyError('y')\n",
    "base exception": "raise GeneratorExit\n",
    "exit": "import sys\nsys.exit(0)\n",
    "skip": "import pytest\npytest.importorskip('no_such_module')\n",
    "syntax": "def f(:\n",
    "registered twice": CAT + CAT,
    "part missing": CAT.replace("speak", "say"),
}


def test_bad_plugins_and_names_give_one_line(
    animals: Registry[object], tmp_path: Path, data_regression: DataRegressionFixture
) -> None:
    messages: dict[str, str] = {}
    for case, text in BAD_PLUGINS.items():
        file = write(tmp_path, text)
        messages[case] = message_of(BadInput, partial(plugins.load, file)).replace(str(tmp_path), "FOLDER")
        for name in animals.names():
            animals.remove(name)
    messages["no file"] = message_of(BadInput, lambda: plugins.load("no.py", "plugins.0", tmp_path))
    plugins.load(write(tmp_path, CAT))
    messages["near miss"] = message_of(ValueError, lambda: animals.checked("cta"))
    messages["unknown"] = message_of(KeyError, lambda: animals["dog"])
    assert animals.checked("cat") == "cat"
    data_regression.check(messages)


class Shape:
    sides = 0

    def area(self, unit: float) -> float:
        raise NotImplementedError


class Square(Shape):
    sides = 4

    def area(self, unit: float) -> float:
        return unit**2


@pytest.mark.parametrize(
    ("of_classes", "definition", "message"),
    [
        (False, Shape(), "sides is missing; area(unit) is missing"),
        (False, Square, "must be an instance of Shape"),
        (True, Square(), "must be a subclass of Shape"),
        (True, int, "must be a subclass of Shape"),
    ],
)
def test_registry_checks_base_and_required_parts(of_classes: bool, definition: object, message: str) -> None:
    registry = Registry[object]("shape", None, Shape, ["sides", "area(unit)"], holds_classes=of_classes)
    with pytest.raises(BadInput, match=re.escape(message) + "$"):
        registry.add("mine", definition)
    registry.add("square", Square if of_classes else Square())
    assert registry.names() == ("square",)
    del REGISTRIES["shape"]


def test_definitions_with_an_order_are_sorted_by_it() -> None:
    lengths = Registry[str]("length", order=len)
    for name, text in (("long", "abc"), ("short", "a"), ("medium", "ab")):
        lengths.add(name, text)
    assert lengths.names() == ("short", "medium", "long")
    assert list(lengths.values()) == ["a", "ab", "abc"]
    del REGISTRIES["length"]
