"""Slurm's topology: which hosts share a leaf switch, of `topology.conf` or `scontrol show topology`."""

import re
from typing import Final

from railyard.core.errors import BadInput
from railyard.workloads.cluster.definition import CLUSTER_FORMATS, LineFormat, LineReader
from railyard.workloads.cluster.records import Cluster, Source

_SWITCH: Final = re.compile(r"^\s*SwitchName=(?P<switch>\S+)(?P<keys>.*)", re.IGNORECASE)
_NODES: Final = re.compile(r"\bNodes=(?P<nodes>\S+)", re.IGNORECASE)
_LEVEL: Final = re.compile(r"\bLevel=(?P<level>\d+)", re.IGNORECASE)
_RANGE: Final = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+))?")
MAX_HOSTS: Final = 2**16


@CLUSTER_FORMATS.register("slurm-topology")
class SlurmTopology(LineFormat):
    """The leaf switch of each host."""

    title = "Slurm topology"

    def reader(self, cluster: Cluster, source: Source) -> LineReader:
        """Return a reader of a file."""
        return _Reader(cluster, source)


class _Reader(LineReader):
    def __init__(self, cluster: Cluster, source: Source) -> None:
        self._cluster = cluster
        self._source = source

    def read(self, line: str) -> bool:
        """Take a leaf switch with its hosts; switches above it have none of their own."""
        switch = _SWITCH.match(line)
        if not switch:
            return False
        level = _LEVEL.search(switch["keys"])
        nodes = _NODES.search(switch["keys"])
        # `scontrol show topology` lists the hosts below the upper switches too
        if nodes and (level is None or level["level"] == "0"):
            for name in hosts_of(nodes["nodes"], self._source.file):
                self._cluster.host(name).leaf = switch["switch"]
        return True


def hosts_of(text: str, file: str) -> list[str]:
    """Return the hosts of Slurm's list: `node[01-03,07],login` are node01, node02, node03, node07 and login."""
    hosts: list[str] = []
    for word in re.findall(r"[^,\[\]]+(?:\[[^\]]*\])?", text):
        prefix, bracket, ranges = word.partition("[")
        if not bracket:
            hosts.append(prefix)
            continue
        for part in ranges.rstrip("]").split(","):
            match = _RANGE.fullmatch(part)
            if not match:
                raise BadInput(f"{file}: Nodes", text, "is no list of hosts, as node[01-16]")
            last = match["last"] or match["first"]
            numbers = range(int(match["first"]), int(last) + 1)
            if len(hosts) + len(numbers) > MAX_HOSTS:
                raise BadInput(f"{file}: Nodes", text, f"has more than {MAX_HOSTS:,} hosts")
            width = len(match["first"])
            hosts += [f"{prefix}{number:0{width}}" for number in numbers]
    return hosts
