"""Queues of a replay: how long a byte can wait in them, by which TCP's loss detection is relaxed."""

import numpy as np

from railyard.topologies.addresses import Gpu
from railyard.topologies.build.shaping import payload_fraction
from railyard.topologies.plan import Plan
from railyard.workloads.matrix.traffic_matrix import nic_of_gpus, rail_of_gpus, ways
from railyard.workloads.replay.job import Windows
from railyard.workloads.schedule import Schedule


def longest_queue_s(schedule: Schedule, plan: Plan, windows: Windows) -> float:
    """Return the most time (s) that a byte can wait in queues on its path: until all that may be before it has left."""
    columns = schedule.columns
    fabric = plan.spec
    rails = schedule.rails
    gpus = schedule.gpus
    sent = np.flatnonzero(~columns.is_compute)
    if not len(sent):
        return 0.0
    each = np.column_stack((columns.src[sent] * gpus + columns.dst[sent], columns.stripe[sent]))
    channels, place = np.unique(each, axis=0, return_inverse=True)
    src, dst = np.divmod(channels[:, 0], gpus)
    _, pair, stripes = np.unique(channels[:, 0], return_inverse=True, return_counts=True)
    total = np.where(src // rails == dst // rails, windows.hb, windows.rail)
    # no more can wait at a port than the windows of the connections through it, nor more than these send
    under_way = np.maximum(windows.minimum, total // stripes[pair])
    under_way = np.minimum(under_way, np.bincount(place.ravel(), columns.bytes[sent], len(channels)))
    bytes_per_bit = payload_fraction(fabric.mtu) / 8
    hb = plan.hb_bps * bytes_per_bit
    rail = plan.rail_link(Gpu(0, 0)).rate_bps * bytes_per_bit
    # of a hashed uplink, any may have all
    uplink = plan.uplink_bps * bytes_per_bit if plan.uplinks else rail
    waits = np.zeros(len(channels))
    if fabric.definition.is_graph:
        graph = fabric.graph
        leaf = np.array([graph.leaves.index(graph.switch_of[gpu]) for gpu in plan.gpus])
    at_nic = nic_of_gpus(schedule.gpus, fabric)
    for way in ways(src, dst, rails, fabric):
        steps = [(src, way.enter, hb), (at_nic[way.enter], at_nic[way.leave], rail), (way.leave, dst, hb)]
        on_way = np.zeros(len(channels))
        for a, b, rate in steps:
            has = (a != b) & (way.share > 0)
            for end in (a, b):
                on_way += np.where(has, np.bincount(end[has], under_way[has], gpus)[end] / rate, 0.0)
        near_rail = rail_of_gpus(way.enter, rails, fabric)
        far_rail = rail_of_gpus(way.leave, rails, fabric)
        has = (near_rail != far_rail) & (way.share > 0)
        for end in (near_rail, far_rail):
            on_way += np.where(has, np.bincount(end[has], under_way[has], rails)[end] / uplink, 0.0)
        if fabric.definition.is_graph:
            # as if all traffic of a switch left it by one cable
            has = (way.enter != way.leave) & (way.share > 0)
            for end in (way.enter, way.leave):
                on_way += np.where(has, np.bincount(leaf[end][has], under_way[has], gpus)[leaf[end]] / uplink, 0.0)
        waits = np.maximum(waits, on_way)
    return float(waits.max(initial=0.0))
