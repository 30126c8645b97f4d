"""Fabrics of a user's tests in two workers of pytest-xdist."""

import pytest

from tests.unit.api_examples import PLUGIN, ROOT

pytest_plugins = ["pytester"]
TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.fabric(domains=2, rails=2)
def test_auto_rate(fabric, number):
    print(os.environ["PYTEST_XDIST_WORKER"], "takes", fabric.rail_bps, fabric._info.capacity)
"""


@pytest.mark.long
def test_workers_take_the_same_auto_rate(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess(*PLUGIN, "-p", "no:cacheprovider", "-n", "2", "-rP")
    result.assert_outcomes(passed=2)
    taken = [line.split(" takes ") for line in result.outlines if " takes " in line]
    assert {worker for worker, _ in taken} == {"gw0", "gw1"}
    assert len({rate for _, rate in taken}) == 1, taken
