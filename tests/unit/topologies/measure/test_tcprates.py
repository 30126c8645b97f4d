"""Bytes acknowledged between two reads, by destination."""

import socket

from railyard.topologies.measure.counters import rates_of

NEAR, FAR = socket.inet_aton("198.18.0.1"), socket.inet_aton("198.18.0.2")


def test_connections_of_a_pair_add_up_from_their_second_sample() -> None:
    before = {(1, 9, NEAR): 1000, (2, 9, NEAR): 0, (1, 9, FAR): 7}
    after = {(1, 9, NEAR): 2000, (2, 9, NEAR): 500, (3, 9, NEAR): 10**6, (4, 9, FAR): 5}
    assert rates_of(before, after, 0.1) == {"198.18.0.1": 1500 * 8 / 0.1, "198.18.0.2": None}


def test_a_connection_that_stands_still_delivers_nothing() -> None:
    assert rates_of({(1, 9, NEAR): 5}, {(1, 9, NEAR): 5}, 1.0) == {"198.18.0.1": 0.0}
