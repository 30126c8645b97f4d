"""The steps of a trace: operations that belong together are found, and put in an order in which they can begin.

Turns are counted in the order in which a rank comes to its operations; collectives of one group run one after the other
on each rank. Sends are eager: a receive doesn't hold its sender up.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from railyard.core.errors import BadInput
from railyard.workloads.traces.common import Action, Call, Node, NodeId, Recv, Send, Trace

MAX_SHOWN_WAITS: Final = 4  # of a cycle, in its message
InOrder = Sequence[tuple[NodeId, Action]]
"""Operations with their numbers, rank by rank, in the order in which a rank comes to them."""


@dataclass(frozen=True, slots=True)
class Step:
    """Operations that are one, after all that any of them waits for.

    `members`: in the group's order.
    `after`: for each member, what it waits for on its own rank.
    `sent`: of a receive, the send that it gets.
    """

    members: tuple[NodeId, ...]
    after: tuple[tuple[NodeId, ...], ...]
    sent: NodeId | None = None


def steps(trace: Trace) -> list[Step]:
    """Return all operations as steps, each after what it waits for. BadInput if there is no such order."""
    after = _dependencies(trace)
    order_index = _order_index(trace)
    in_order = [(node_id, trace.node(node_id).action) for node_id in order_index]
    collective_units = _collectives(trace, in_order, after)
    sent = _messages(trace, in_order)
    units: list[tuple[NodeId, ...]]
    units = [(node_id,) for node_id in after if not isinstance(trace.node(node_id).action, Call)]
    units += collective_units
    unit_of: dict[NodeId, int] = {}
    for number, members in enumerate(units):
        unit_of |= dict.fromkeys(members, number)
    waits = {node_id: list(upstream_ids) for node_id, upstream_ids in after.items()}
    edges: list[tuple[int, int]] = []
    for node_id, upstream_ids in waits.items():
        edges += [(unit_of[upstream], unit_of[node_id]) for upstream in upstream_ids]
    for receive, send in sent.items():
        waits[receive].append(send)
        edges.append((unit_of[send], unit_of[receive]))
    # a collective can't begin before the last of its ranks comes to it; units that could are put in order by rank
    keys: list[tuple[int, NodeId]] = []
    for members in units:
        latest = max(order_index[node_id] for node_id in members)
        keys.append((latest, members[0]))

    def describe_units(earlier: int, later: int) -> str:
        """Name the operations of the rank on which one unit waits for another, or the receive and its send."""
        for node_id in units[later]:
            for upstream in waits[node_id]:
                if unit_of[upstream] == earlier:
                    return _describe_wait((trace.node(upstream).where, trace.node(node_id).where), 0, 1)
        raise AssertionError("an edge has two operations")

    ordered_steps = []
    for number in _topological_order(edges, keys, describe_units):
        members = units[number]
        dependencies = tuple(tuple(after[node_id]) for node_id in members)
        ordered_steps.append(Step(members, dependencies, sent.get(members[0])))
    return ordered_steps


def _dependencies(trace: Trace) -> dict[NodeId, list[NodeId]]:
    """Return for each operation those that it waits for on its own rank."""
    after: dict[NodeId, list[NodeId]] = {}
    for rank, nodes in enumerate(trace.ranks):
        for position, node in enumerate(nodes):
            after[rank, position] = [(rank, upstream) for upstream in node.after]
    return after


def _order_index(trace: Trace) -> dict[NodeId, int]:
    """Return the place of each operation in the order in which its rank comes to it, rank by rank in that order."""
    order_index: dict[NodeId, int] = {}
    for rank, nodes in enumerate(trace.ranks):
        for index, position in enumerate(_rank_order(nodes)):
            order_index[rank, position] = index
    return order_index


def _rank_order(nodes: Sequence[Node]) -> list[int]:
    """Return the positions of a rank's operations in the order in which the rank comes to them."""
    waits: list[tuple[int, int]] = []
    for position, node in enumerate(nodes):
        waits += [(upstream, position) for upstream in node.after]
    describe_wait = partial(_describe_wait, [node.where for node in nodes])
    return _topological_order(waits, range(len(nodes)), describe_wait)


def _describe_wait(where: Sequence[str], earlier: int, later: int) -> str:
    """Return `t.1.et: node 2 waits for node 1`, with the file of the second only if it is another one."""
    file = where[later].partition(": ")[0]
    return f"{where[later]} waits for {where[earlier].removeprefix(f'{file}: ')}"


def _topological_order(
    edges: Iterable[tuple[int, int]], keys: Sequence[Any], describe: Callable[[int, int], str]
) -> list[int]:
    """Return the nodes, each after those that it waits for. If several could be next, take the one with the least key.

    `edges`: from a node to one that waits for it. Each node has a key.
    `describe`: says of an edge, in a message, who waits for whom. BadInput if nodes wait for each other in a circle.
    """
    # takes a third of a second to load, which a run without a trace needs not
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(keys)))
    graph.add_edges_from(edges)
    try:
        return list(nx.lexicographical_topological_sort(graph, key=keys.__getitem__))
    except nx.NetworkXUnfeasible:
        waits = [describe(*edge[:2]) for edge in nx.find_cycle(graph)]
    file, _, _ = waits[0].partition(": ")
    shown = "; ".join(waits[:MAX_SHOWN_WAITS])
    if len(waits) > MAX_SHOWN_WAITS:
        shown += f"; and {len(waits) - MAX_SHOWN_WAITS} more"
    raise BadInput(file, shown, "is a cycle: none of them can ever begin")


def _collectives(trace: Trace, in_order: InOrder, after: dict[NodeId, list[NodeId]]) -> list[tuple[NodeId, ...]]:
    """Calls that are one collective, and in `after` that a rank's calls of a group follow one another."""
    calls: defaultdict[tuple[str, tuple[int, ...]], defaultdict[int, list[NodeId]]]
    calls = defaultdict(lambda: defaultdict(list))
    for node_id, action in in_order:
        if isinstance(action, Call):
            rank_calls = calls[action.group_name, action.group][node_id[0]]
            after[node_id] += rank_calls[-1:]
            rank_calls.append(node_id)
    collectives: list[tuple[NodeId, ...]] = []
    for (_, group), by_rank in calls.items():
        turns = max(map(len, by_rank.values()))
        for turn in range(turns):
            members: list[NodeId] = []
            for rank in group:
                # none of a rank with fewer calls, which is then reported
                members += by_rank[rank][turn : turn + 1]
            _check_agreement(trace, group, members, turn)
            collectives.append(tuple(members))
    return collectives


def _check_agreement(trace: Trace, group: tuple[int, ...], members: Sequence[NodeId], turn: int) -> None:
    """Raise BadInput unless every rank of the group has the call, with the same operation, bytes and root."""
    nodes = [trace.node(member) for member in members]
    calls = [node.action for node in nodes if isinstance(node.action, Call)]
    first = nodes[0]
    expected = calls[0]
    if len(members) < len(group):
        ranks = {rank for rank, _ in members}
        missing_ranks = [rank for rank in group if rank not in ranks]
        where = f"is number {turn + 1} of group {list(group)} here"
        raise BadInput(first.where, expected.op, f"{where}, but the trace of rank {missing_ranks[0]} has no such call")
    for node, call in zip(nodes, calls, strict=True):
        if (call.op, call.data_bytes, call.root) != (expected.op, expected.data_bytes, expected.root):
            allowed = f"must be {_describe_call(expected)}, as {first.where} has it: they are one"
            raise BadInput(node.where, _describe_call(call), allowed)
    if expected.sends and expected.receives:
        _check_pair_bytes(group, nodes, calls)


def _describe_call(call: Call) -> str:
    text = f"{call.op} of {call.data_bytes:.10g} bytes"
    if call.root is not None:
        text += f" with root {call.root}"
    return text


def _check_pair_bytes(group: tuple[int, ...], nodes: Sequence[Node], calls: Sequence[Call]) -> None:
    """Raise BadInput unless each rank receives from each other one the bytes that it sends."""
    for i, sender in enumerate(calls):
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
    send_of: dict[NodeId, NodeId] = {}
    for src, dst, tag in sends | receives:
        sent = sends[src, dst, tag]
        received = receives[src, dst, tag]
        if len(sent) != len(received):
            operation = "send without a receive" if len(sent) > len(received) else "receive without a send"
            allowed = f"has no counterpart: {len(sent)} sends and {len(received)} receives of tag {tag}"
            last, _ = max(sent, received, key=len)[-1]
            raise BadInput(trace.node(last).where, operation, f"{allowed}, from rank {src} to rank {dst}")
        for (send, sent_bytes), (receive, received_bytes) in zip(sent, received, strict=True):
            if sent_bytes != received_bytes:
                allowed = f"bytes received must be the {sent_bytes} that {trace.node(send).where} sends"
                raise BadInput(trace.node(receive).where, received_bytes, allowed)
            send_of[receive] = send
    return send_of
