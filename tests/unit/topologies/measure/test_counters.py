"""Counters of the kernel, read from its text."""

import socket

import pytest

from railyard.topologies.measure.counters import Counters, interface_drops, rates_of, tcp_counters

# /proc/net/snmp and /proc/net/netstat of Linux 6.18, shortened
SNMP = """\
Ip: Forwarding DefaultTTL InReceives
Ip: 1 64 10
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens InSegs OutSegs RetransSegs InErrs
Tcp: 1 200 120000 -1 3 4000 5000 12 0
TcpExt: SyncookiesSent
TcpExt: 9
"""
NETSTAT = """\
TcpExt: SyncookiesSent TCPDSACKRecv TCPLostRetransmit
TcpExt: 0 7 1
IpExt: InNoRoutes InTruncatedPkts
IpExt: 4 0
"""
DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compr
    lo: 100 1 0 1000 0 0 0 0 100 1 0 1000 0 0 0 0
   hb0: 123456 78 0 3 0 0 0 0 654321 87 0 5 0 0 0 0
 rail0:123456789012 78 0 0 0 0 0 0 654321 87 0 40 0 0 0 0
  hole: 0 0 0 0 0 0 0 0 0 0 0 9999 0 0 0 0
hole-end: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
"""


def test_the_line_of_names_is_set_against_the_line_of_values() -> None:
    tcp = tcp_counters(SNMP, "Tcp:")
    assert (tcp["OutSegs"], tcp["RetransSegs"], tcp["MaxConn"]) == (5000, 12, -1)
    assert tcp_counters(NETSTAT, "TcpExt:") == {"SyncookiesSent": 0, "TCPDSACKRecv": 7, "TCPLostRetransmit": 1}


def test_a_kind_that_is_not_there_is_no_zero() -> None:
    with pytest.raises(ValueError):
        tcp_counters(NETSTAT, "Tcp:")


def test_drops_of_both_ways_but_not_of_copied_originals() -> None:
    """A name may touch its first number; lo and the hole don't count."""
    assert {name: drops for name, drops in interface_drops(DEV).items() if drops} == {"hb0": 3 + 5, "rail0": 40}


def test_counters_of_a_stretch_are_a_difference() -> None:
    assert (Counters(10, 3, 2, 5) - Counters(4, 1, 2, 1)).non_negative == Counters(6, 2, 0, 4)
    assert (Counters(10, 1, 2) - Counters(4, 3, 2)).non_negative.retransmits == 0, "needless ones, reported late"


def test_drops_of_a_stretch_are_known_by_port() -> None:
    """What one port dropped before doesn't count, nor does a port that dropped nothing since."""
    rail, hb = ("rail3", "d2g3"), ("d0g1", "hb0")
    before = Counters(10, 0, 6, drops_at={rail: 1, hb: 5})
    since = Counters(90, 0, 16, drops_at={rail: 11, hb: 5}) - before
    assert (since.drops, since.drops_at, since.worst_port) == (10, {rail: 10}, (rail, 10))
    assert (since + Counters(1, 0, 20, drops_at={hb: 20})).worst_port == (hb, 20)
    assert Counters(1, 0, 0).worst_port == (("", ""), 0)


NEAR, FAR = socket.inet_aton("198.18.0.1"), socket.inet_aton("198.18.0.2")


def test_connections_of_a_pair_add_up_from_their_second_sample() -> None:
    before = {(1, 9, NEAR): 1000, (2, 9, NEAR): 0, (1, 9, FAR): 7}
    after = {(1, 9, NEAR): 2000, (2, 9, NEAR): 500, (3, 9, NEAR): 10**6, (4, 9, FAR): 5}
    assert rates_of(before, after, 0.1) == {"198.18.0.1": 1500 * 8 / 0.1, "198.18.0.2": None}


def test_a_connection_that_stands_still_delivers_nothing() -> None:
    assert rates_of({(1, 9, NEAR): 5}, {(1, 9, NEAR): 5}, 1.0) == {"198.18.0.1": 0.0}
