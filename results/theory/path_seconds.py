"""Seconds by the path of a message: latencies, or what the idle links of a path save."""

from typing import NamedTuple


class PathSeconds(NamedTuple):
    """Seconds of one message by its path: within an HB domain, along a rail, or to another domain and rail."""

    hb: float
    rail: float
    cross_rail: float
