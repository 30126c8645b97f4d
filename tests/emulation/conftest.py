"""Tests on real packets. Every test process has namespaces of its own (mount, network, PID, IPC), so that several can
run at once, and leak checks see nothing of other programs. One that is marked `sandbox` runs in a further sandbox
(forked.py): its body may build what it likes, and need not clean up. Those that assert times are marked `alone`, or
`quiet` if they leave most of the processors' time unused: script/test runs those that are alone one at a time, and some
quiet ones at a time, when nothing else runs. Only one session emulates at a time.
"""

import fcntl
import os
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from railyard.core import worker
from railyard.experiments.api import connection, pytest_plugin
from tests.emulation import deadlines, fabrics, forked, leaks, preloaded, ryu_venv
from tests.emulation.variants import is_variant

OWN_NAMESPACES = "unshare --mount --net --pid --ipc --fork --kill-child --mount-proc sh -c '\"$@\"; exit $?' sh"
"""A shell as process 1, because that waits for orphans that end."""
TEST_S = 180.0  # only what hangs comes near it
END_S = 10.0  # for the kernel to end a sandbox whose first process was killed


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sandbox: run the test's body in a sandbox of its own")
    config.addinivalue_line("markers", "alone: it asserts times, so no other test may run meanwhile")
    config.addinivalue_line("markers", "quiet: it asserts times, but mostly waits: only others like it run meanwhile")
    config.addinivalue_line("markers", "long: it starts before others, so that no worker ends long after them")
    if not config.pluginmanager.has_plugin("railyard"):  # as in a checkout that isn't installed
        config.pluginmanager.register(pytest_plugin, "railyard")
    deadlines.factor = config.getoption("--slow")
    if hasattr(config, "workerinput"):
        forked.furnish()
        connection.start = preloaded.start_server
        preloaded.are_figures_drawn = config.getoption("--thorough")
        _private_tmp(config)
        return
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each program of a test would compile its modules again
    if config.option.dist != "no":
        python = shlex.quote(sys.executable)
        config.option.tx = [f"popen//python={OWN_NAMESPACES} {python}"] * len(config.option.tx)
        _wait_until_alone(config)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Without `--numprocesses`, take one: it has namespaces of its own. A debugger needs this process."""
    if not hasattr(config, "workerinput") and not config.getoption("usepdb"):
        config.option.numprocesses = config.option.numprocesses or 1
        config.option.dist = "loadscope"  # see pytest_xdist_make_scheduler


class _Units(LoadScopeScheduling):  # type: ignore[misc]
    """Give a worker a module at a time if its tests share what a fixture made, else a test at a time."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if _shares(file) else nodeid


@cache
def _shares(file: str) -> bool:
    return 'scope="module"' in (Path(__file__).parents[2] / file).read_text()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return _Units(config, log)


def _private_tmp(config: pytest.Config) -> None:
    """Let temporary files of this process and its children be in a folder of their own."""
    folder = tempfile.mkdtemp(prefix="railyard-tests-")
    Path(folder).chmod(0o1777)  # for runs by another user too
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def _wait_until_alone(config: pytest.Config) -> None:
    """Wait until no other session emulates: two would measure each other. Not for the one that started this one."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    folder = os.open(Path(__file__).parent, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(folder, fcntl.LOCK_EX)
    config.add_cleanup(lambda: os.close(folder))
    threading.Thread(target=_make_ryu_venv, daemon=True).start()


def _make_ryu_venv() -> None:
    """Make it here, since a worker has no network, and beside the first tests."""
    with suppress(ryu_venv.CannotMake):
        ryu_venv.ryu_manager()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave variants out, unless they are asked for, all or one by its name; put long tests first."""
    named = any("::" in argument for argument in config.args)
    if not (named or config.getoption("--thorough")):
        left_out = [item for item in items if is_variant(item.nodeid)]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """In place of pytest's own call of the test function, for those that are marked."""
    if pyfuncitem.get_closest_marker("sandbox") is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    preloaded.load()

    def body() -> None:
        worker.start = preloaded.start_worker
        try:
            pyfuncitem.obj(**arguments)
        except pytest.skip.Exception as reason:
            raise forked.Skipped(str(reason)) from reason

    def describe(error: BaseException) -> str:
        return str(pyfuncitem.repr_failure(pytest.ExceptionInfo.from_exception(error)))

    try:
        forked.run(body, describe, deadlines.scaled(TEST_S))
    except forked.Skipped as reason:
        pytest.skip(str(reason))
    except forked.Failed as failure:
        pytest.fail(str(failure), pytrace=False)
    return True


@pytest.fixture(scope="session", autouse=True)
def datapath() -> None:
    """Find out what Open vSwitch runs on: once, here, so that every test's process inherits it."""
    fabrics.datapath()


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    if "fabric" in request.fixturenames:  # which may be built for more than this test
        request.getfixturevalue("fabric")
    before = leaks.settled_snapshot()
    yield
    deadline = time.monotonic() + END_S
    while found := leaks.differences(before, leaks.snapshot()):
        assert time.monotonic() < deadline, "\n".join(found)
        time.sleep(0.05)
