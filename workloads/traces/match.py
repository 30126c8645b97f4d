"""Which operations of different ranks are one: collectives by group and turn, sends and receives by pair, tag and turn.

Turns are counted in the order in which a rank comes to its operations: its own list, unless dependencies say otherwise.
Collectives of one group run one after the other on each rank, as those of one communicator do.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from railyard.core.errors import BadInput
from railyard.workloads.traces.common import Action, Call, NodeId, Recv, Send, Trace

InOrder = Sequence[tuple[NodeId, Action]]
"""Operations with their numbers, rank by rank, in the order in which a rank comes to them."""


@dataclass(frozen=True, slots=True)
class Step:
    """Operations that are one, after all that any of them waits for.

    `members`: in the group's order; `after`: for each member, what it waits for on its own rank. `sent`: of a receive,
    the send that it gets.
    """

    members: tuple[NodeId, ...]
    after: tuple[tuple[NodeId, ...], ...]
    sent: NodeId | None = None


def steps(trace: Trace) -> list[Step]:
    """Return all operations as steps, each after what it waits for. BadInput if there is no such order."""
    orders = []  # positions in the order in which a rank comes to its operations
    for nodes in trace.ranks:
        waits: nx.DiGraph[int] = nx.DiGraph()
        waits.add_nodes_from(range(len(nodes)))
        waits.add_edges_from((upstream, position) for position, node in enumerate(nodes) for upstream in node.after)
        orders.append(_topological_order(waits, range(len(nodes)), [node.where for node in nodes]))
    in_order = [
        ((rank, position), trace.ranks[rank][position].action)
        for rank, order in enumerate(orders)
        for position in order
    ]
    after = {
        (rank, position): [(rank, upstream) for upstream in node.after]
        for rank, nodes in enumerate(trace.ranks)
        for position, node in enumerate(nodes)
    }
    collective_units = _collectives(trace, in_order, after)
    sent = _messages(trace, in_order)
    units = [(node_id,) for node_id in after if not isinstance(trace.node(node_id).action, Call)] + collective_units
    unit_of = {node_id: number for number, members in enumerate(units) for node_id in members}
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(units)))
    for node_id, upstream in after.items():
        graph.add_edges_from((unit_of[other], unit_of[node_id]) for other in upstream)
    graph.add_edges_from((unit_of[send], unit_of[receive]) for receive, send in sent.items())
    order_index = {(rank, position): i for rank, order in enumerate(orders) for i, position in enumerate(order)}
    keys = [(max(order_index[node_id] for node_id in members), members[0]) for members in units]
    order = _topological_order(graph, keys, [trace.node(members[0]).where for members in units])
    return [Step(units[u], tuple(tuple(after[p]) for p in units[u]), sent.get(units[u][0])) for u in order]


def _topological_order(graph: "nx.DiGraph[int]", keys: Sequence[Any], where: Sequence[str]) -> list[int]:
    """Return the nodes, each after those that it waits for; of several that could be next, the one with least key."""
    try:
        return list(nx.lexicographical_topological_sort(graph, key=keys.__getitem__))
    except nx.NetworkXUnfeasible:
        names = [where[edge[0]] for edge in nx.find_cycle(graph)]
    shown = " -> ".join([*names[:6], *(["..."] if len(names) > 6 else []), names[0]])
    raise BadInput(names[0], shown, "is a cycle: each waits for the one before it, so none can ever begin")


def _collectives(trace: Trace, in_order: InOrder, after: dict[NodeId, list[NodeId]]) -> list[tuple[NodeId, ...]]:
    """Calls that are one collective, and in `after` that a rank's calls of a group follow one another."""
    calls: defaultdict[tuple[str, tuple[int, ...]], defaultdict[int, list[NodeId]]]
    calls = defaultdict(lambda: defaultdict(list))
    for node_id, action in in_order:
        if isinstance(action, Call):
            rank_calls = calls[action.group_name, action.group][node_id[0]]
            after[node_id] += rank_calls[-1:]
            rank_calls.append(node_id)
    found = []
    for (_, group), by_rank in calls.items():
        for turn in range(max(len(node_ids) for node_ids in by_rank.values())):
            members = tuple(by_rank[rank][turn] for rank in group if turn < len(by_rank[rank]))
            _check_agreement(trace, group, members, turn)
            found.append(members)
    return found


def _check_agreement(trace: Trace, group: tuple[int, ...], members: tuple[NodeId, ...], turn: int) -> None:
    """All of the group call it, and mean the same."""
    nodes = [trace.node(member) for member in members]
    calls = [node.action for node in nodes if isinstance(node.action, Call)]
    first, expected = nodes[0], calls[0]
    if len(members) < len(group):
        missing_rank = next(rank for rank in group if rank not in {rank for rank, _ in members})
        where = f"is number {turn + 1} of group {list(group)} here"
        raise BadInput(first.where, expected.op, f"{where}, but the trace of rank {missing_rank} has no such call")
    for node, other in zip(nodes, calls, strict=True):
        if (other.op, other.data_bytes, other.root) != (expected.op, expected.data_bytes, expected.root):
            described = [
                f"{call.op} of {call.data_bytes:.10g} bytes"
                + (f" with root {call.root}" if call.root is not None else "")
                for call in (other, expected)
            ]
            allowed = f"must be {described[1]}, as {first.where} has it: they are one"
            raise BadInput(node.where, described[0], allowed)
    for i, sender in enumerate(calls if expected.sends and expected.receives else ()):
        for j, receiver in enumerate(calls):
            if sender.sends[j] != receiver.receives[i]:
                allowed = f"bytes from rank {group[i]} must be the {sender.sends[j]} that it sends here"
                raise BadInput(nodes[j].where, receiver.receives[i], allowed)


def _messages(trace: Trace, in_order: InOrder) -> dict[NodeId, NodeId]:
    """For each receive the send that it gets. BadInput for one without the other, or of other bytes."""
    sends: defaultdict[tuple[int, int, int], list[tuple[NodeId, int]]] = defaultdict(list)
    receives: defaultdict[tuple[int, int, int], list[tuple[NodeId, int]]] = defaultdict(list)
    for node_id, action in in_order:
        if isinstance(action, Send):
            sends[node_id[0], action.dst, action.tag].append((node_id, action.bytes))
        elif isinstance(action, Recv):
            receives[action.src, node_id[0], action.tag].append((node_id, action.bytes))
    found = {}
    for src, dst, tag in sends | receives:
        sent, received = sends[src, dst, tag], receives[src, dst, tag]
        if len(sent) != len(received):
            what = "send without a receive" if len(sent) > len(received) else "receive without a send"
            allowed = f"has no counterpart: {len(sent)} sends and {len(received)} receives of tag {tag}"
            last, _ = max(sent, received, key=len)[-1]
            raise BadInput(trace.node(last).where, what, f"{allowed}, from rank {src} to rank {dst}")
        for (send, sent_bytes), (receive, received_bytes) in zip(sent, received, strict=True):
            if sent_bytes != received_bytes:
                allowed = f"bytes received must be the {sent_bytes} that {trace.node(send).where} sends"
                raise BadInput(trace.node(receive).where, received_bytes, allowed)
            found[receive] = send
    return found
