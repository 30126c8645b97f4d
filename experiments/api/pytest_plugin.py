"""pytest plugin: fabrics, faults and ranks as fixtures, and tests that are inconclusive where the machine was too busy.

    @pytest.mark.fabric(kind="rail-only", domains=2, rails=4, scope="module")
    def test_all_to_all_takes_its_time(fabric):
        with ry.timing():
            assert fabric.run(ry.AllToAll(bytes="8MB")).ratio < 1.1

docs/api.md describes fixtures, marker and option. Light to import: every session of pytest imports it.
"""

import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from inspect import signature
from typing import Any, Final

import pytest

import railyard as ry
from railyard.experiments.api import inconclusive

# The exit status with --railyard-strict: pytest's own statuses end at 5.
INCONCLUSIVE_STATUS: Final = 6
SCOPES: Final[dict[str, type[pytest.Item | pytest.Collector]]] = {
    "function": pytest.Item,
    "class": pytest.Class,
    "module": pytest.Module,
    "session": pytest.Session,
}
# The fabrics of a test, class, module or session, by the keys of their markers.
_FABRICS: Final = pytest.StashKey["dict[str, ry.Fabric]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for CI that must measure."""
    text = f"exit with status {INCONCLUSIVE_STATUS} if tests were inconclusive, since the machine was too busy"
    parser.getgroup("railyard").addoption("--railyard-strict", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker, and count inconclusive tests."""
    keys = "kind, domains, rails, ..., reroute=True, seed=1, scope='function'"
    config.addinivalue_line("markers", f"fabric({keys}): the fabric that the fixture `fabric` builds")
    # a user's tests can't change these warnings
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning:mininet.*")
    config.pluginmanager.register(_Inconclusive(config), "railyard-inconclusive")


@pytest.fixture
def fabric(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator["ry.Fabric"]:
    """Return the fabric of the test's marker, built once for its scope; rail-only 2x2 without a marker.

    The test is skipped where the machine can't run it. Programs that it started are killed at its end.
    """
    marker = request.node.get_closest_marker("fabric")
    keys: dict[str, Any] = {"domains": 2, "rails": 2}
    if marker is not None:
        keys = dict(marker.kwargs)
    owner = _owner(request.node, keys.pop("scope", "function"))
    temporary = tmp_path_factory.getbasetemp()
    fabrics = owner.stash.setdefault(_FABRICS, {})
    if (name := repr(sorted(keys.items()))) not in fabrics:
        # workers of pytest-xdist share the machine, so all take the same `auto` rates
        if "PYTEST_XDIST_WORKER" in os.environ:
            from railyard.experiments.api.machine import CAPACITY

            CAPACITY.file = temporary.parent / "railyard-capacity"
        options = {key: keys.pop(key) for key in signature(ry.fabric).parameters if key in keys}
        from railyard.experiments.api.fabric import visible_paths

        try:
            visible = (str(temporary), str(request.config.rootpath), *visible_paths(options.pop("visible", ())))
            fabrics[name] = ry.fabric(ry.FabricSpec(**keys), visible=visible, **options)
        except ry.MachineLacks as error:
            pytest.skip(str(error))
        except (ry.BadInput, TypeError) as error:
            pytest.fail(f"marker fabric: {error}", pytrace=False)
        owner.addfinalizer(lambda: fabrics.pop(name).close())
    open_fabric = fabrics[name]
    yield open_fabric
    open_fabric.end_processes()


@pytest.fixture
def fault(fabric: "ry.Fabric") -> Iterator["ry.MakeFault"]:
    """Return `fabric.fault`; what is still active at the end of the test is repaired."""
    with ExitStack() as repairs:
        yield lambda kind, target, **parameters: repairs.enter_context(fabric.fault(kind, target, **parameters))


@pytest.fixture
def ranks(fabric: "ry.Fabric") -> "ry.MakeRanks":
    """Return `fabric.ranks`, which starts a program at each GPU; they are killed at the end of the test."""
    return fabric.ranks


def _owner(item: pytest.Item, scope: str) -> pytest.Item | pytest.Collector:
    """Return what a fabric lives as long as: the test, or its class, module or session."""
    if scope not in SCOPES:
        pytest.fail(f"marker fabric: scope: {scope!r} is not known: allowed are {', '.join(SCOPES)}", pytrace=False)
    owner = item if scope == "function" else item.getparent(SCOPES[scope])
    return owner or item.getparent(pytest.Module) or item


class _Inconclusive:
    """Outcome of a test that failed by an assertion on times (`ry.timing`) that the machine was too busy to measure."""

    def __init__(self, config: pytest.Config) -> None:
        self._strict = config.getoption("railyard_strict", default=False)
        self._shows_tracebacks = config.getoption("tbstyle", default="auto") != "no"
        # reports of inconclusive tests, for the summary
        self._reports: list[Any] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """Change the outcome and keep the traceback: xdist sends attributes of the report, JUnit XML has properties."""
        report = yield
        error = call.excinfo.value if call.excinfo else None
        reason = inconclusive.reason_of(error)
        if call.when == "call" and report.failed and reason:
            path, line, _ = item.location
            report.railyard_traceback = report.longreprtext
            item.user_properties.append(("traceback", report.railyard_traceback))
            report.railyard_inconclusive = reason
            report.outcome = "skipped"
            report.longrepr = (path, (line or 0) + 1, f"inconclusive: {reason}")
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """Name the outcome."""
        if getattr(report, "railyard_inconclusive", ""):
            return "inconclusive", "?", ("INCONCLUSIVE", {"yellow": True})
        return None

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep reports of inconclusive tests."""
        if getattr(report, "railyard_inconclusive", ""):
            self._reports.append(report)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show the traceback of each inconclusive test, and the reason."""
        if not self._reports:
            return
        terminalreporter.section("inconclusive: the machine was too busy")
        for report in self._reports:
            if self._shows_tracebacks:
                terminalreporter.write_sep("_", report.head_line)
                terminalreporter.write_line(report.railyard_traceback)
            terminalreporter.write_line(f"{report.nodeid}: {report.railyard_inconclusive}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Give inconclusive tests an exit status of their own, if asked for."""
        if self._strict and self._reports and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = INCONCLUSIVE_STATUS
