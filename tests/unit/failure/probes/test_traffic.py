"""Sent and received bytes in the log of traffic."""

import pytest

from railyard.core.errors import CheckFailed
from railyard.failure.probes.traffic import TrafficLog


def log_of(sent: list[int], received: list[list[int]]) -> TrafficLog:
    receipts = {stream: [(at, size) for at, size in enumerate(sizes)] for stream, sizes in enumerate(received)}
    return TrafficLog(dict(enumerate(sent)), receipts)


def test_bytes_that_no_stream_brought_are_lost() -> None:
    assert log_of([100, 100], [[60, 40], [100]]).lost_bytes == 0
    assert log_of([100, 100], [[60], [70, 20]]).lost_bytes == 50
    assert TrafficLog(sent={0: 7}).lost_bytes == 7


def test_surplus_of_one_stream_does_not_offset_another_loss() -> None:
    with pytest.raises(CheckFailed, match="stream 1: 1,100 bytes arrived of 1,000 sent"):
        _ = log_of([1000, 1000], [[900], [1000, 100]]).lost_bytes
