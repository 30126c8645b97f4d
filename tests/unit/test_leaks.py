"""The leak finder finds: one thing more or less than before, by its name."""

import pytest

from tests.emulation.leaks import differences, snapshot

BEFORE = {"interface": frozenset({"lo", "eth0"}), "process": frozenset({"iperf3 (pid 7)"})}


def test_unchanged_state_is_not_named() -> None:
    assert differences(BEFORE, BEFORE) == []


@pytest.mark.parametrize(
    ("after", "line"),
    [
        (BEFORE | {"interface": frozenset({"lo", "eth0", "veth9"})}, "interface left behind: veth9"),
        (BEFORE | {"interface": frozenset({"lo"})}, "interface gone: eth0"),
        (BEFORE | {"process": frozenset()}, "process gone: iperf3 (pid 7)"),
    ],
)
def test_added_and_removed_state_is_named(after: dict[str, frozenset[str]], line: str) -> None:
    assert differences(BEFORE, after) == [line]


def test_state_snapshot_has_loopback_and_sysctls() -> None:
    state = snapshot()
    assert "lo" in state["interface"]
    sysctls = state["sysctl"]
    assert any(line.startswith("net.ipv4.ip_forward=") for line in sysctls)
