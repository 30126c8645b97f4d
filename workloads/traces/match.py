"""Which operations of different ranks are one: collectives by group and turn, sends and receives by pair, tag and turn.

Turns are counted in the order in which a rank comes to its operations: its own list, unless dependencies say otherwise.
Collectives of one group run one after the other on each rank, as those of one communicator do.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from railyard.core.errors import BadInput
from railyard.workloads.traces.common import Call, Node, Place, Recv, Send, Trace


@dataclass(frozen=True, slots=True)
class Step:
    """Operations that are one, after all that any of them waits for.

    `members`: in the group's order; `after`: for each member, what it waits for on its own rank. `sent`: of a receive,
    the send that it gets.
    """

    members: tuple[Place, ...]
    after: tuple[tuple[Place, ...], ...]
    sent: Place | None = None


def steps(trace: Trace) -> list[Step]:
    """All operations as steps, in an order in which each comes after what it waits for. BadInput if there is none."""
    orders = [_order_of_rank(nodes) for nodes in trace.ranks]
    after = {
        (rank, position): [(rank, wanted) for wanted in node.after]
        for rank, nodes in enumerate(trace.ranks)
        for position, node in enumerate(nodes)
    }
    together = _collectives(trace, orders, after)
    sent = _messages(trace, orders)
    units = [(place,) for place in after if not isinstance(trace.node(place).action, Call)] + together
    unit_of = {place: number for number, members in enumerate(units) for place in members}
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(units)))
    for place, wanted in after.items():
        graph.add_edges_from((unit_of[other], unit_of[place]) for other in wanted)
    graph.add_edges_from((unit_of[send], unit_of[receive]) for receive, send in sent.items())
    turn = {(rank, position): i for rank, order in enumerate(orders) for i, position in enumerate(order)}
    latest = [max(turn[place] for place in members) for members in units]
    order = _sorted(graph, lambda unit: (latest[unit], units[unit][0]), lambda unit: trace.node(units[unit][0]).where)
    return [Step(units[u], tuple(tuple(after[p]) for p in units[u]), sent.get(units[u][0])) for u in order]


def _order_of_rank(nodes: Sequence[Node]) -> list[int]:
    """Positions in the order in which a rank comes to its operations: as listed, but after what they wait for."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(nodes)))
    graph.add_edges_from((wanted, position) for position, node in enumerate(nodes) for wanted in node.after)
    return _sorted(graph, lambda position: position, lambda position: nodes[position].where)


def _sorted(graph: "nx.DiGraph[int]", key: Callable[[int], Any], where: Callable[[int], str]) -> list[int]:
    try:
        return list(nx.lexicographical_topological_sort(graph, key=key))
    except nx.NetworkXUnfeasible:
        cycle = [edge[0] for edge in nx.find_cycle(graph)]
    names = [where(unit) for unit in cycle]
    shown = " -> ".join([*names[:6], *(["..."] if len(names) > 6 else []), names[0]])
    raise BadInput(names[0], shown, "is a cycle: each waits for the one before it, so none can ever begin")


def _collectives(
    trace: Trace, orders: Sequence[Sequence[int]], after: dict[Place, list[Place]]
) -> list[tuple[Place, ...]]:
    """Calls that are one collective, and in `after` that a rank's calls of a group follow one another."""
    calls: defaultdict[tuple[str, tuple[int, ...]], defaultdict[int, list[Place]]]
    calls = defaultdict(lambda: defaultdict(list))
    for rank, order in enumerate(orders):
        for position in order:
            action = trace.ranks[rank][position].action
            if isinstance(action, Call):
                mine = calls[action.group_name, action.group][rank]
                after[rank, position] += mine[-1:]
                mine.append((rank, position))
    found = []
    for (_, group), by_rank in calls.items():
        for turn in range(max(len(places) for places in by_rank.values())):
            members = tuple(by_rank[rank][turn] for rank in group if turn < len(by_rank[rank]))
            _check_agreement(trace, group, members, turn)
            found.append(members)
    return found


def _check_agreement(trace: Trace, group: tuple[int, ...], members: tuple[Place, ...], turn: int) -> None:
    """All of the group call it, and mean the same."""
    first = trace.node(members[0])
    said = first.action
    assert isinstance(said, Call)
    if len(members) < len(group):
        lacking = next(rank for rank in group if rank not in {place[0] for place in members})
        allowed = f"is number {turn + 1} of group {list(group)} here, but the trace of rank {lacking} has no such call"
        raise BadInput(first.where, said.op, allowed)
    for place in members[1:]:
        node = trace.node(place)
        other = node.action
        assert isinstance(other, Call)
        if (other.op, other.data_bytes, other.root) != (said.op, said.data_bytes, said.root):
            raise BadInput(node.where, _told(other), f"must be {_told(said)}, as {first.where} has it: they are one")
    for i, sender in enumerate(members if said.sends and said.receives else ()):
        for j, receiver in enumerate(members):
            gives, takes = trace.node(sender).action, trace.node(receiver).action
            assert isinstance(gives, Call)
            assert isinstance(takes, Call)
            if gives.sends[j] != takes.receives[i]:
                allowed = f"bytes from rank {group[i]} must be the {gives.sends[j]} that it sends here"
                raise BadInput(trace.node(receiver).where, takes.receives[i], allowed)


def _told(call: Call) -> str:
    root = "" if call.root is None else f" with root {call.root}"
    return f"{call.op} of {call.data_bytes:.10g} bytes{root}"


def _messages(trace: Trace, orders: Sequence[Sequence[int]]) -> dict[Place, Place]:
    """For each receive the send that it gets. BadInput for one without the other, or of other bytes."""
    sends: defaultdict[tuple[int, int, int], list[Place]] = defaultdict(list)
    receives: defaultdict[tuple[int, int, int], list[Place]] = defaultdict(list)
    for rank, order in enumerate(orders):
        for position in order:
            action = trace.ranks[rank][position].action
            if isinstance(action, Send):
                sends[rank, action.dst, action.tag].append((rank, position))
            elif isinstance(action, Recv):
                receives[action.src, rank, action.tag].append((rank, position))
    found = {}
    for key in sends | receives:
        src, dst, tag = key
        if len(sends[key]) != len(receives[key]):
            lone = (sends[key] + receives[key])[-1] if not receives[key] or not sends[key] else None
            place = lone or max(sends[key], receives[key], key=len)[-1]
            what = "send without a receive" if len(sends[key]) > len(receives[key]) else "receive without a send"
            allowed = f"has no counterpart: {len(sends[key])} sends and {len(receives[key])} receives of tag {tag}"
            raise BadInput(trace.node(place).where, what, f"{allowed}, from rank {src} to rank {dst}")
        for send, receive in zip(sends[key], receives[key], strict=True):
            given, taken = trace.node(send).action, trace.node(receive).action
            assert isinstance(given, Send)
            assert isinstance(taken, Recv)
            if given.bytes != taken.bytes:
                allowed = f"bytes received must be the {given.bytes} that {trace.node(send).where} sends"
                raise BadInput(trace.node(receive).where, taken.bytes, allowed)
            found[receive] = send
    return found
