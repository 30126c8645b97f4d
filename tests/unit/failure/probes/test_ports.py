"""Ports of probes: faults that are active at the same time have ranges of their own."""

from hypothesis import given
from hypothesis import strategies as st

from railyard.failure.probes.ports import FIRST_PORT, ProbePorts


def test_a_fault_after_a_repair_gets_no_port_of_an_active_fault() -> None:
    ports = ProbePorts()
    first, second = ports.take(), ports.take()
    ports.release(first)
    assert ports.take() != second
    assert (first, second) == (FIRST_PORT, FIRST_PORT + 16)


@given(st.lists(st.integers(0, 9)))
def test_active_faults_never_share_a_port(choices: list[int]) -> None:
    """Take a port, or release that of an active fault, in any order; ports stay as few as faults at once."""
    ports = ProbePorts(7600, 8)
    active: list[int] = []
    most = 0
    for choice in choices:
        if choice < len(active):
            ports.release(active.pop(choice))
        else:
            active.append(ports.take())
        most = max(most, len(active))
        assert len(set(active)) == len(active)
        assert all(port < 7600 + 8 * most for port in active)
