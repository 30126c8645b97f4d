"""NCCL's and RCCL's log, as NCCL_DEBUG=INFO writes it, of versions 2.7 to 2.32.

The text is no interface of NCCL's and changes with its versions. So each sort of line has a pattern with what all
versions have in common, and a line that none of them fits is counted and shown.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Final, cast

from railyard.core.errors import BadInput
from railyard.workloads.cluster.definition import CLUSTER_FORMATS, LineFormat, LineReader
from railyard.workloads.cluster.records import (
    Cluster,
    CommunicatorPart,
    ConnectionId,
    End,
    Member,
    Nic,
    Source,
    Transport,
)

_LINE: Final = re.compile(
    r"(?:(?P<host>[^\s:<>\[\]]+):(?P<pid>\d+)(?::(?P<thread>\d+))? )?\[(?P<device>-?\d+)\] (?:\S+:\d+ )?"
    r"R?NCCL (?P<level>INFO|WARN) ?(?P<text>.*)"
)
_VERSION: Final = re.compile(
    r"\b(?P<library>R?CCL|NCCL) version ?:? ?(?P<version>(?P<major>\d+)\.(?P<minor>\d+)[.\d]*\S*)"
)
_MAX_NICS: Final = 4096  # of a host; any more is damage
_KNOWN_VERSIONS: Final = ((2, 7), (2, 32))
_COMMUNICATOR: Final = re.compile(r"\bcomm (?P<pointer>0x[0-9a-f]+) rank (?P<rank>\d+) n[rR]anks (?P<size>\d+)")
_RING: Final = re.compile(r"Channel (?P<channel>\d+)/\d+ : +(?P<ranks>\d+(?: +\d+)*) *$")
_CONNECTION: Final = re.compile(
    r"(?:Channel|Ring) (?P<channel>\d+)(?:/(?P<index>\d+))? ?: "
    r"(?P<src>\d+)(?:\[(?P<src_device>[0-9a-f]+)\])? -> (?P<dst>\d+)(?:\[(?P<dst_device>[0-9a-f]+)\])? "
    r"(?:\[(?P<side>send|receive)\] )?via (?P<via>.+)"
)
_COLLNET: Final = re.compile(
    r"CollNet (?P<channel>\d+)/\d+ : (?P<rank>\d+) \[(?:send|receive)\] via (?P<via>COLLNET/.+)"
)
_POINTER: Final = re.compile(r" comm (?P<pointer>0x[0-9a-f]+) nRanks \d+$")
"""What RCCL adds to a connection."""
_NETWORK: Final = re.compile(
    r"(?P<transport>NET|COLLNET)/(?P<network>[^/]+)/(?P<nic>\d+)(?:\((?P<proxy>\d+)\))?(?P<flags>.*)"
)
_SETTING: Final = re.compile(r"(?P<name>(?:NCCL|RCCL)_\w+) set (?:by environment )?to (?P<value>.*?)\.?$")
_IB_NIC: Final = re.compile(
    r"\[(?P<number>\d+)\](?:=\{(?P<merged>[^}]*)\}|(?P<name>[^\s:\[\]]+):(?P<port>\d+)/(?P<kind>\w+))"
)
_PORT_OF_MERGED: Final = re.compile(r"(?P<name>[^\s:\[\]]+):\d+/(?P<kind>\w+)")
_SOCKET_NIC: Final = re.compile(r"\[(?P<number>\d+)\](?P<name>[^\s:\[\]]+):")
_OFI_NICS: Final = re.compile(r"Selected [Pp]rovider is (?P<provider>[^ ,]+).*?\(found (?P<count>\d+) nics\)")
_CALL: Final = re.compile(r"(?P<collective>[A-Z]\w+): opCount \w+ .* comm (?P<pointer>0x[0-9a-f]+) ")

_WITHOUT_FACTS: Final = (
    "Bootstrap", "bootstrap", "NET/", "Using ", "NCCL_", "RCCL_", "Plugin", "PROFILER/", "TUNER/", "RAS ",
    "Assigned NET plugin", "Initialized NET plugin", "Successfully loaded", "Failed to open", "Comm config", "comm 0x",
    "ncclComm", "Init timings", "CC Off", "CC On", "cudaDriverVersion", "hipDriverVersion", "Kernel version", "ROCr",
    "Librccl", "DMA-BUF", "GPU Direct RDMA", "Setting affinity", "Trees", "Tree ", "Ring ", "Connected", "NVLS",
    "MNNVL", "P2P ", "Check P2P", "threadThresholds", "Threads per block", "[Proxy", "[Service", "New proxy",
    "Connection to proxy", "proxyProgress", "Mem ", "Memory used", "Allocated", "CUMEM", "Symmetric", "Launch mode",
    "=== System", "==========", "Pattern", "Topology detection", "CPU/", "GPU/", "NIC/", "PCI/", "NUMA", "+ ", "- ",
    "Max NThreads", "Latency/AlgBw", "Algorithm", "Could not enable P2P", "MSCCL", "transport", "init.cc", "group.cc",
    "enqueue", "include/", "misc/", "channel.cc", "graph/", "net.cc", "proxy.cc", "Flush : ", "isAllDirectP2p",
    "SHARP ", "ncclTopo", "ncclP2pSchedule", "ncclPollProxyResponse", "rocm_smi_lib", "PXN Disabled", "Dmabuf",
    "proxy listening socket", "ENV/Plugin", "register comm", "MMAP allocated", "Received and initiated", "resp.opId",
    "MemManager", "Assigned ", "Initialized ", "CollNet ",
)  # fmt: skip
"""Beginnings of lines that are known, and of which nothing is needed here."""
_OTHER_LINES: Final = re.compile(
    r"\d+ (?:coll channels|: )|[A-Za-z0-9]+ *\|(?: +[\d./]+)+|\S+\.\w+:\d+ -> \d+|\w+: \d+ Bytes -> Algo "
)
"""Of the graph search `16 coll channels, ...`, `0 : NET/1 GPU/0 ...` and `AllReduce | 0.0/ 0.0 | ...`, of an error
`net.cc:829 -> 2`, of tuning `AllReduce: 4096 Bytes -> Algo RING ...`.
"""


@CLUSTER_FORMATS.register("nccl-log")
class NcclLog(LineFormat):
    """Communicators with rings and connections, NICs, settings and warnings."""

    title = "NCCL log"

    def reader(self, cluster: Cluster, source: Source) -> LineReader:
        """Return a reader of a log."""
        return _Reader(cluster, source)


class _Reader(LineReader):
    """Reads the log of one or several processes.

    A thread initializes one communicator after the other, so its lines are of the one that it began last. Connections
    of sends and receives are made later, by other threads: these are of the process's last one that has their ranks.
    """

    def __init__(self, cluster: Cluster, source: Source) -> None:
        self._cluster = cluster
        self._source = source
        self._part_of_thread: dict[tuple[str, str], CommunicatorPart] = {}
        self._parts_of_process: dict[str, list[CommunicatorPart]] = {}
        # each with words that all of its lines have: to look for these is ten times as fast as a pattern.
        # Calls come first: a long log has little else
        self._sorts: tuple[tuple[str, re.Pattern[str], Callable[[re.Match[str]], None]], ...] = (
            (": opCount ", _CALL, self._call),
            (" via ", _CONNECTION, self._connection),
            (" via COLLNET/", _COLLNET, self._collnet),
            ("Channel ", _RING, self._ring),
            ("comm 0x", _COMMUNICATOR, self._communicator),
            (" to ", _SETTING, self._setting),
            ("rovider is ", _OFI_NICS, self._ofi_nics),
        )
        self._version = ""
        self._number = (0, 0)
        self._host = ""
        self._process = ""
        self._thread = ""
        self._device = -1
        self._text = ""

    def read(self, line: str) -> bool:
        """Take what a line says; return whether it is a line of NCCL's."""
        # most lines of a training's log are not NCCL's, and a pattern takes ten times as long to say so
        if "CCL" not in line:
            return False
        if "version" in line and (version := _VERSION.search(line)):
            self._version = version["version"]
            self._number = (int(version["major"]), int(version["minor"]))
            self._cluster.versions[f"{version['library']} {self._version}"] += 1
            return True
        match = _LINE.search(line)
        if not match:
            return False
        # a log of one rank that was cut out of its prefix: the file stands for the host
        self._host = match["host"] or self._source.file
        self._process = f"{self._host}:{match['pid'] or match['device']}"
        self._thread = match["thread"] or ""
        self._device = int(match["device"])
        self._text = match["text"]
        if match["level"] == "WARN":
            self._cluster.warnings[self._text] += 1
            return True
        self._read_text()
        return True

    def end(self) -> None:
        """Note a version whose lines aren't known. BadInput if they have no communicator."""
        first, last = _KNOWN_VERSIONS
        if not self._version or first <= self._number <= last:
            return
        reason = f"is none of {first[0]}.{first[1]} to {last[0]}.{last[1]}, whose lines are known"
        if self._source.unknown and not self._parts_of_process:
            place = f"{self._source.file}: NCCL version"
            raise BadInput(place, self._version, f"{reason}, and no line has a communicator as theirs have")
        self._cluster.gaps[f"{self._source.file}: NCCL version {self._version} {reason}"] = None

    def _read_text(self) -> None:
        for words, pattern, take in self._sorts:
            if words in self._text and (match := pattern.search(self._text)):
                take(match)
                return
        if self._text.startswith("NET/") and ": Using" in self._text:
            self._nics()
        elif not self._is_without_facts():
            self._source.note_unknown(self._text)

    def _is_without_facts(self) -> bool:
        text = self._text.lstrip()
        return not text or text.startswith(_WITHOUT_FACTS) or bool(_OTHER_LINES.match(text))

    def _current_part(self) -> CommunicatorPart:
        """Return the part that this line's thread works on; a new one if there is none."""
        key = (self._process, self._thread)
        if key not in self._part_of_thread:
            self._part_of_thread[key] = self._new_part()
        return self._part_of_thread[key]

    def _new_part(self) -> CommunicatorPart:
        part = CommunicatorPart(self._process, member=Member(self._host, self._device))
        self._parts_of_process.setdefault(self._process, []).append(part)
        self._cluster.parts.append(part)
        self._cluster.host(self._host)
        return part

    def _part_with(self, pointer: str) -> CommunicatorPart | None:
        for part in reversed(self._parts_of_process.get(self._process, [])):
            if part.pointer == pointer:
                return part
        return None

    def _communicator(self, match: re.Match[str]) -> None:
        """`comm 0x55 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x12 - Init START`, or COMPLETE."""
        key = (self._process, self._thread)
        begins = "Init START" in self._text
        part = self._part_with(match["pointer"])
        if part is None or (begins and part.is_initialized):
            # versions before 2.14 name the communicator only when it is complete
            unnamed = self._part_of_thread.get(key)
            part = unnamed if unnamed and not unnamed.pointer and not begins else self._new_part()
        self._part_of_thread[key] = part
        part.pointer = match["pointer"]
        part.rank = int(match["rank"])
        part.size = int(match["size"])
        self._take_device(part)
        if "Init COMPLETE" in self._text:
            part.is_initialized = True
            del self._part_of_thread[key]

    def _take_device(self, part: CommunicatorPart) -> None:
        """Take the GPU and the id. `nvmlDev` is its number on the host; `cudaDev` is that of the process's."""
        gpu = re.search(r"nvmlDev (\d+)", self._text) or re.search(r"cudaDev (\d+)", self._text)
        if gpu:
            part.member = Member(self._host, int(gpu[1]))
        if bus_id := re.search(r"busId ([0-9a-f]+)", self._text):
            part.bus_id = bus_id[1]
        if identity := re.search(r"commId (0x[0-9a-f]+)", self._text):
            part.identity = identity[1]

    def _ring(self, match: re.Match[str]) -> None:
        """`Channel 00/16 :    0   7   6   5   4   3   2   1   8`: the order of the ranks in a channel's ring."""
        ranks = tuple(int(rank) for rank in match["ranks"].split())
        part = self._current_part()
        part.rings[int(match["channel"])] = ranks
        part.size = part.size or len(ranks)

    def _connection(self, match: re.Match[str]) -> None:
        """`Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/3(2)/GDRDMA`: NIC 3 of rank 2 sends for rank 7."""
        src = int(match["src"])
        dst = int(match["dst"])
        connection = ConnectionId(int(match["channel"]), src, dst, is_p2p=match["index"] == "1")
        is_receiver = match["side"] == "receive"
        rank = dst if is_receiver else src
        pointer = _POINTER.search(match["via"])
        named = self._part_with(pointer["pointer"]) if pointer else None
        part = named or self._part_of(rank)
        part.rank = rank
        ends = part.received if is_receiver else part.sent
        ends[connection] = end_of(match["via"])

    def _collnet(self, match: re.Match[str]) -> None:
        """`CollNet 00/0 : 4 [receive] via COLLNET/SHARP/0/GDRDMA`: rank 4 is a head of channel 0's tree, by NIC 0."""
        part = self._part_of(int(match["rank"]))
        part.rank = int(match["rank"])
        part.heads[int(match["channel"])] = end_of(match["via"])

    def _part_of(self, rank: int) -> CommunicatorPart:
        current = self._part_of_thread.get((self._process, self._thread))
        if current and current.rank in (-1, rank):
            return current
        for part in reversed(self._parts_of_process.get(self._process, [])):
            if part.rank in (-1, rank):
                return part
        return self._current_part()

    def _call(self, match: re.Match[str]) -> None:
        """`AllReduce: opCount 5 sendbuff 0x7f .. count 25600 datatype 7 op 0 root 0 comm 0x55 [nranks=16] ...`."""
        part = self._part_with(match["pointer"])
        if part:
            part.calls[match["collective"]] += 1

    def _setting(self, match: re.Match[str]) -> None:
        self._cluster.settings[match["name"]][match["value"]] += 1

    def _nics(self) -> None:
        """`NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>`."""
        nics = self._cluster.host(self._host).nics
        # a plugin that found NICs without names was given up for this one
        for number in [number for number, nic in nics.items() if not nic.name]:
            del nics[number]
        interfaces = self._text.partition("; OOB")[0]
        if self._text.startswith("NET/Socket"):
            for match in _SOCKET_NIC.finditer(interfaces):
                nics[int(match["number"])] = Nic(int(match["number"]), match["name"], "Socket")
            return
        matches = list(_IB_NIC.finditer(interfaces))
        devices = Counter(match["name"] for match in matches)
        for match in matches:
            number = int(match["number"])
            name = match["name"] or ""
            kind = match["kind"] or ""
            if match["merged"] is not None:
                ports = list(_PORT_OF_MERGED.finditer(match["merged"]))
                name = "+".join(dict.fromkeys(port["name"] for port in ports))
                kind = ports[0]["kind"] if ports else ""
            elif devices[name] > 1:
                # the ports of one device, each of which may be plugged in elsewhere
                name = f"{name}:{match['port']}"
            nics[number] = Nic(number, name, kind)

    def _ofi_nics(self, match: re.Match[str]) -> None:
        """`NET/OFI Selected Provider is efa (found 4 nics)`: they have numbers, and no names."""
        nics = self._cluster.host(self._host).nics
        if int(match["count"]) > _MAX_NICS:
            self._source.note_unknown(self._text)
            return
        for number in range(int(match["count"])):
            nics.setdefault(number, Nic(number, kind=match["provider"]))


def end_of(via: str) -> End:
    """Return a connection's side from what follows `via` in NCCL's line."""
    network = _NETWORK.match(via)
    if network:
        proxy = int(network["proxy"]) if network["proxy"] else None
        transport = cast(Transport, network["transport"])
        return End(transport, int(network["nic"]), network["network"], proxy, "GDRDMA" in network["flags"])
    if via.startswith("P2P"):
        return End("P2P")
    if via.startswith(("SHM", "direct shared memory")):
        return End("SHM")
    if via.startswith("NVLS"):
        return End("NVLS")
    return End("other")
