"""torchcomms' Clog: a text of each rank with its communicators, the signatures of its calls, and their events.

A line has fields between bars: `C1|sig|all_reduce|in_count=8|...|comm=world` describes a call, `C1|Q|work_id=1|+0.1`
is one such call, `C1|E|+0.2` the end of one. Version 1 of comms/torchcomms/hooks/clog/ClogHook.cpp.
"""

import re
from collections import Counter
from typing import Final

from railyard.workloads.cluster.calls import TracedRank, element_bytes, operation_of
from railyard.workloads.cluster.definition import CLUSTER_FORMATS, LineFormat, LineReader, ranks_of_job
from railyard.workloads.cluster.records import Cluster, LastCall, Source

_LINE: Final = re.compile(r"(?:V\|\d+\||new_comm\||split\||WARN\||(?:G\d+\|)?(?:R\d+\|)?C\d+\|(?:sig|[QSEW])\b)")
_EVENT: Final = re.compile(r"(?:G\d+\|)?(?P<replay>R\d+\|)?C(?P<signature>\d+)\|(?P<event>[QSEW])\|")
_SIGNATURE: Final = re.compile(r"C(?P<signature>\d+)\|sig\|(?P<operation>\w+)\|(?P<fields>.*)")
_WITHOUT_COLLECTIVE: Final = ("send", "recv")


@CLUSTER_FORMATS.register("torchcomms-clog")
class TorchcommsClog(LineFormat):
    """Communicators, the calls of a rank, and the call at which it is."""

    title = "torchcomms' Clog"

    def reader(self, cluster: Cluster, source: Source) -> LineReader:
        """Return a reader of a rank's file."""
        return _Reader(cluster, source)


class _Call:
    """A signature: the communicator, operation and bytes of calls that are alike. `peer`: a place in it."""

    def __init__(self, operation: str, fields: dict[str, str]) -> None:
        self.name = operation
        self.communicator = fields.get("comm", "")
        self.operation = operation_of(operation)
        counts = [fields.get(f"{side}_{form}", "") for side in ("in", "out") for form in ("count", "counts", "splits")]
        elements = max((_sum(count) for count in counts), default=0)
        self.bytes = elements * element_bytes(fields.get("dtype", ""))
        self.peer = int(fields["peer"]) if fields.get("peer", "").isdecimal() else None


def _sum(count: str) -> int:
    return sum(int(number) for number in count.split(",") if number.isdecimal())


class _Reader(LineReader):
    def __init__(self, cluster: Cluster, source: Source) -> None:
        self._cluster = cluster
        self._source = source
        self._traced: TracedRank | None = None
        self._rank = -1
        # ranks of the job in each communicator, by its name
        self._groups: dict[str, tuple[int, ...]] = {}
        self._calls: dict[str, _Call] = {}
        self._last_name: dict[str, str] = {}
        self._begun: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._has_ends = False

    def read(self, line: str) -> bool:
        """Take a communicator, a signature or an event; any other line is none of Clog's."""
        if not _LINE.match(line):
            return False
        if line.startswith(("new_comm|", "split|")):
            self._communicator(line)
        elif signature := _SIGNATURE.match(line):
            self._calls[signature["signature"]] = _Call(signature["operation"], _fields(signature["fields"]))
        elif event := _EVENT.match(line):
            self._event(event)
        elif line.startswith("WARN|"):
            self._cluster.warnings[line.removeprefix("WARN|")] += 1
        elif not line.startswith("V|1|"):
            self._source.note_unknown(line[:200])
        return True

    def _communicator(self, line: str) -> None:
        """`split|parent=world|child=tp|ranks=0,1`, then `new_comm|comm=tp|rank=0|world_size=2`."""
        fields = _fields(line)
        if "child" in fields:
            ranks = fields.get("ranks", "").split(",")
            if all(rank.isdecimal() for rank in ranks):
                self._groups[fields["child"]] = tuple(int(rank) for rank in ranks)
            return
        name = fields.get("comm", "")
        rank = fields.get("rank", "")
        size = fields.get("world_size", "")
        if not rank.isdecimal() or not size.isdecimal():
            self._source.note_unknown(line[:200])
            return
        # a communicator that was split off no other one has all ranks
        group = self._groups.setdefault(name, tuple(ranks_of_job(int(size))))
        if self._traced is None:
            if int(rank) >= len(group):
                self._source.note_unknown(line[:200])
                return
            self._rank = group[int(rank)]
            self._traced = TracedRank(self._cluster, self._rank)
        self._traced.add_group(name, name, group)

    def _event(self, event: re.Match[str]) -> None:
        call = self._calls.get(event["signature"])
        if call is None or call.operation is None or self._traced is None:
            return
        if not self._traced.has_group(call.communicator):
            return
        is_collective = call.operation not in _WITHOUT_COLLECTIVE
        # calls of a captured graph are enqueued once, and start again with each of its replays
        if event["event"] == "Q" or (event["event"] == "S" and event["replay"]):
            group = self._groups[call.communicator]
            peer = group[call.peer] if call.peer is not None and call.peer < len(group) else None
            self._traced.add_call(call.communicator, call.operation, call.bytes, peer)
            if is_collective:
                self._begun[call.communicator] += 1
                self._last_name[call.communicator] = call.name
        elif event["event"] == "E":
            self._has_ends = True
            self._ended[call.communicator] += is_collective

    def end(self) -> None:
        """Take the last call of each communicator. Whether it is complete is known if the file has ends of calls."""
        if self._traced is None:
            return
        if not self._has_ends:
            text = "Clog has no ends of calls, so it doesn't say who waits: log with events LIFECYCLE"
            self._cluster.gaps[text] = None
            return
        for name, number in self._begun.items():
            is_complete = self._ended[name] >= number
            self._traced.set_last_call(name, LastCall(number, self._last_name[name], is_complete))


def _fields(text: str) -> dict[str, str]:
    """Return the fields of a line that have a name."""
    fields: dict[str, str] = {}
    for field in text.split("|"):
        name, sign, value = field.partition("=")
        if sign:
            fields[name] = value
    return fields
