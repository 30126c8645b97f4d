"""Tests on real packets. One that is marked `sandbox` runs in a sandbox of its own (forked.py): its body may build what
it likes, and need not clean up. Only one session emulates at a time, and each test leaves the machine as it was.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulation import fabrics, forked, leaks
from tests.emulation.variants import is_variant

TEST_S = 180.0  # only what hangs comes near it
END_S = 10.0  # for the kernel to end a sandbox whose first process was killed


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sandbox: run the test's body in a sandbox of its own")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave variants out, unless they are asked for, all or one by its name."""
    named = any("::" in argument for argument in config.args)
    if not (named or config.getoption("--thorough")):
        left_out = [item for item in items if is_variant(item.nodeid)]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """In place of pytest's own call of the test function, for those that are marked."""
    if pyfuncitem.get_closest_marker("sandbox") is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    def body() -> None:
        try:
            pyfuncitem.obj(**arguments)
        except pytest.skip.Exception as reason:
            raise forked.Skipped(str(reason)) from reason

    def describe(error: BaseException) -> str:
        return str(pyfuncitem.repr_failure(pytest.ExceptionInfo.from_exception(error)))

    try:
        forked.run(body, describe, TEST_S * float(pyfuncitem.config.getoption("--slow")))
    except forked.Skipped as reason:
        pytest.skip(str(reason))
    except forked.Failed as failure:
        pytest.fail(str(failure), pytrace=False)
    return True


@pytest.fixture(scope="session", autouse=True)
def alone() -> Iterator[None]:
    """Wait until no other session emulates: two would measure each other."""
    folder = os.open(Path(__file__).parent, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(folder, fcntl.LOCK_EX)
    fabrics.datapath()  # found out once, here, and inherited by every test's process
    yield
    os.close(folder)


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    before = leaks.snapshot()
    yield
    deadline = time.monotonic() + END_S
    while found := leaks.differences(before, leaks.snapshot()):
        assert time.monotonic() < deadline, "\n".join(found)
        time.sleep(0.05)
