"""Registries and plugins: what is registered, from where, and what is refused."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, ValidationError
from pydantic.functional_validators import AfterValidator

from railyard.core import plugins
from railyard.core.errors import BadInput
from railyard.core.registry import REGISTRIES, Registry


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


def test_plugin_registers_a_definition(animals: Registry[object], tmp_path: Path) -> None:
    file = write(tmp_path, CAT)
    plugin = plugins.load(file)
    assert animals.names() == ("cat",)
    assert animals.source("cat") == ("plugin", str(file), 4)
    assert plugin.source == file.read_bytes()
    assert os.environ[plugins.ENVIRONMENT] == str(file)


def test_plugin_loads_once(animals: Registry[object], tmp_path: Path) -> None:
    file = write(tmp_path, CAT)
    assert plugins.load(file) is plugins.load("mine.py", folder=tmp_path)


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nraise KeyError('y')\n", "--plugin: '{file}' can't be loaded: line 2: KeyError: 'y'"),
        ("raise GeneratorExit\n", "--plugin: '{file}' can't be loaded: line 1: GeneratorExit:"),
        ("import sys\nsys.exit(0)\n", "--plugin: '{file}' can't be loaded: line 2: SystemExit: 0"),
        (
            "import pytest\npytest.importorskip('no_such_module')\n",
            "--plugin: '{file}' can't be loaded: line 2: Skipped: could not import 'no_such_module': "
            "No module named 'no_such_module'",
        ),
        ("def f(:\n", "--plugin: '{file}' can't be loaded: line 1: SyntaxError: invalid syntax"),
        (CAT + CAT, "{file}:10: 'cat' is already registered as animal, at {file}:4"),
        (CAT.replace("speak", "say"), "{file}:4: 'cat' is not a whole animal: the method speak(text) is missing"),
    ],
)
def test_bad_plugin_gives_one_line(animals: Registry[object], tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(BadInput) as caught:
        plugins.load(file)
    assert str(caught.value) == message.format(file=file)
    assert caught.value.exit_status == 2


def test_missing_plugin_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"plugins\.0: 'no\.py' can't be read: No such file"):
        plugins.load("no.py", "plugins.0", tmp_path)


def test_unknown_name_gives_a_near_miss(animals: Registry[object], tmp_path: Path) -> None:
    plugins.load(write(tmp_path, CAT))

    class Model(BaseModel):
        kind: Annotated[str, AfterValidator(animals.checked)]

    assert Model(kind="cat").kind == "cat"
    with pytest.raises(ValidationError, match=r"is not known: did you mean 'cat'\? allowed are cat"):
        Model(kind="cta")
    with pytest.raises(KeyError, match="'dog' is no animal: cat"):
        animals["dog"]


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
    with pytest.raises(BadInput) as caught:
        registry.add("mine", definition)
    assert str(caught.value).endswith(f"'mine' is not a whole shape: {message}")
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
