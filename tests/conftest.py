"""Shared by all tests: options, root for emulation, and how hypothesis reports."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from railyard.core import plugins
from railyard.core.registry import REGISTRIES
from tests import costs

ROOT = Path(__file__).parents[1]
EMULATION = ROOT / "tests" / "emulation"

# no deadline: a loaded machine is no failure; print_blob: a failure says how to get it again
settings.register_profile("railyard", deadline=None, print_blob=True, max_examples=25)
if not os.access(ROOT, os.W_OK):
    settings.register_profile("railyard", settings.get_profile("railyard"), database=None)
settings.register_profile("railyard-thorough", settings.get_profile("railyard"), max_examples=200)
settings.load_profile("railyard")


def _factor(text: str) -> float:
    """`2` -> 2.0: what to multiply deadlines by."""
    factor = float(text)
    if not 1 <= factor <= 100:
        raise ValueError(f"--slow: {text} must be from 1 to 100")
    return factor


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow", type=_factor, default=1.0, metavar="FACTOR", help="multiply every deadline on a slow machine"
    )
    parser.addoption(
        "--thorough", action="store_true", help="run variants of tests on packets (variants.py), more examples"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Give programs that tests start default signals, also in the background of a script or under nohup.

    This process itself goes on as it did: a handler, in contrast to what is ignored, ends with exec.
    """
    if config.getoption("--thorough"):
        settings.load_profile("railyard-thorough")
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):  # it runs tests
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            if signal.getsignal(number) == signal.SIG_IGN:
                signal.signal(number, lambda *_: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Emulation without root is an error, not a skip; root of an unprivileged sandbox will do."""
    if os.geteuid() != 0 and any(EMULATION in item.path.parents for item in items):
        raise pytest.UsageError("tests/emulation needs root; type: sudo script/test emulation")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    costs.show(terminalreporter)
    costs.store(terminalreporter, exitstatus)


def pytest_collection() -> None:
    """Search for no cycles while modules are imported: it took a fifth of the collection's time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Search for cycles less often, and not in what the session keeps anyway: it took a quarter of the tests' time."""
    gc.enable()
    gc.set_threshold(50_000, 20, 50)
    gc.collect()
    gc.freeze()


@pytest.fixture
def figures_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the shapes out of a report's figures, and keep their words; draw those of predictions with few pixels."""
    from railyard.experiments.predict import output  # which few tests need
    from railyard.results.plots import style
    from tests import figures

    monkeypatch.setattr(style, "finish", figures.as_text)
    monkeypatch.setattr(output, "PNG_DPI", 20)


@pytest.fixture(autouse=True)
def _forget_interruptions() -> Iterator[None]:
    """Leave no process that a test ended for the records of the next test."""
    yield
    if watch := sys.modules.get("railyard.core.watch"):
        watch.take()


@pytest.fixture(autouse=True)
def _forget_plugins() -> Iterator[None]:
    """Undo what a test's plugins registered: the next test of this process expects the built-in definitions alone."""
    before = dict(plugins._loaded)
    inherited = {name: os.environ.get(name) for name in (plugins.ENVIRONMENT, plugins.SOURCES)}
    yield
    for path in set(plugins._loaded) - set(before):
        if spec := sys.modules.get("railyard.workloads.spec"):  # few sessions need it, which takes long to import
            spec._BUILT.clear()
        del plugins._loaded[path]
        for registry in REGISTRIES.values():
            sources = {name: Path(source.file) for name, (_, source) in registry._entries.items()}
            for name in [name for name, file in sources.items() if path in (file, ROOT / file)]:
                registry.remove(name)
    for variable, value in inherited.items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
