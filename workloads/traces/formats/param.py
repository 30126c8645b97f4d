"""PARAM comms traces ("basic" type of facebookresearch/param, commsTraceReplay): JSON, one file a rank or one for all.

A trace is a list: {"comms": "all_reduce", "in_msg_size": 1024, "dtype": "Float", ...}, or {"compute": "gemm", ...}.
Sizes and splits count elements. An operation whose `req` a later `wait` names goes on beside what follows; any other is
waited for at once, as by a blocking call. Operations with `use_batch` begin together, and `batch_isend_irecv` waits for
them. A rank passes over what its process group has no part in.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

from railyard.core.errors import BadInput, unknown_name_hint
from railyard.workloads.traces import common

ALIASES: Final = {
    "alltoall": "all_to_all", "alltoallv": "all_to_allv", "alltoallbase": "all_to_allv", "allreduce": "all_reduce",
    "allgather": "all_gather", "allgatherv": "all_gather_v", "allgatherbase": "all_gather_base",
    "reducescatter": "reduce_scatter", "reducescatterv": "reduce_scatter_v",
    "reducescatterbase": "reduce_scatter_base", "recvanysource": "recv",
}  # fmt: skip
OPS: Final[dict[str, common.Op]] = {
    "all_reduce": "all-reduce", "all_gather": "all-gather", "all_gather_base": "all-gather",
    "all_gather_v": "all-gatherv", "reduce_scatter": "reduce-scatter", "reduce_scatter_base": "reduce-scatter",
    "reduce_scatter_v": "reduce-scatterv", "all_to_all": "all-to-all", "all_to_allv": "all-to-allv",
    "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter", "barrier": "barrier",
}  # fmt: skip
SENDS: Final = ("send", "isend")
RECEIVES: Final = ("recv", "irecv")
ORDERING: Final = ("init", "wait", "batch_isend_irecv")
KNOWN_NAMES: Final = (*OPS, *SENDS, *RECEIVES, *ORDERING)
ELEMENT_BYTES: Final = {
    "byte": 1, "char": 1, "signed char": 1, "unsigned char": 1, "bool": 1, "int8": 1, "uint8": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "int16": 2, "uint16": 2,
    "int": 4, "int32": 4, "uint32": 4, "float": 4, "float32": 4, "complexhalf": 4, "complex32": 4,
    "long": 8, "int64": 8, "uint64": 8, "double": 8, "float64": 8, "complexfloat": 8, "complex64": 8,
    "complexdouble": 16, "complex128": 16,
}  # fmt: skip
MICROSECONDS: Final = 1e6  # in a second
MAX_LATENCY_US: Final = 1e15  # thirty years


@common.TRACE_FORMATS.register("param")
class Param(common.TraceFormat):
    """Communication traces of PARAM. A gemm without a measured `latency_us` takes its operations at the GPU's rate."""

    rank_suffixes = ("json",)

    def recognizes(self, files: common.Files) -> bool:
        """Return whether it is a JSON list whose first item isn't one of Chakra's."""
        if files.suffix != ".json" or not common.text_of(files.content[0], files.names[0]).lstrip().startswith("["):
            return False
        first = next(iter(common.parse_json(files.content[0], files.names[0])), None)
        return not isinstance(first, Mapping) or bool({"comms", "compute"} & set(first))

    def read(self, files: common.Files, on: common.ReplayOn) -> common.Trace:
        """Return the trace; one file is for as many ranks as it names."""
        by_rank = [_entries(content, name) for name, content in zip(files.names, files.content, strict=True)]
        names = files.names
        written_names: Sequence[str] = files.names
        count = len(by_rank)
        if files.shared:
            count = _world_size(by_rank[0], names[0])
            common.check_operations(names[0], count, len(by_rank[0]))
            by_rank *= count
            names *= count
            written_names = [f"{files.name}.{rank}.json" for rank in range(count)]
        ranks: list[tuple[common.Node, ...]] = []
        for rank, (name, entries) in enumerate(zip(names, by_rank, strict=True)):
            ranks.append(RankEntries(rank, count, name, on.flops_per_s).nodes(entries))
        untimed = 0
        for entry in chain.from_iterable(by_rank):
            if entry.get("compute") == "emb_lookup" and _latency(entry, files.name) is None:
                untimed += 1
        notes: tuple[str, ...] = ()
        if untimed:
            notes = (f"{untimed} emb_lookup have no latency_us, and take no time",)

        def rewrite(measured: common.AllMeasured) -> dict[str, bytes]:
            """As PARAM's replay writes what it measured: every entry, with `latency_us` and `global_latency_us`."""
            # with one file for all, ranks share their entries: these are replaced and not changed
            written = [list(entries) for entries in by_rank]
            for (rank, position), operation in measured.items():
                latency = round(operation.seconds * MICROSECONDS, 3)
                times = {"latency_us": latency, "global_latency_us": latency}
                written[rank][position] = written[rank][position] | times
            texts = [json.dumps(entries, indent=2).encode() for entries in written]
            return dict(zip(written_names, texts, strict=True))

        return common.Trace(files.name, tuple(ranks), rewrite, notes)


def _entries(content: bytes, name: str) -> list[dict[str, Any]]:
    data = common.parse_json(content, name)
    if not isinstance(data, list) or not data:
        raise BadInput(name, "its content", "is no PARAM trace: a list of operations is needed")
    for i, entry in enumerate(data):
        if not isinstance(entry, dict) or not ("comms" in entry) ^ ("compute" in entry):
            raise BadInput(f"{name}: entry {i}", entry, "must have either comms or compute")
    return data


def _world_size(entries: Sequence[Mapping[str, Any]], name: str) -> int:
    """How many ranks one trace for all is for: as many as it speaks of."""
    rank_count = 0
    for i, entry in enumerate(entries):
        where = f"{name}: entry {i}"
        rank_count = max(rank_count, common.parse_whole(where, "world_size", entry.get("world_size", 0)))
        for key in ("src_rank", "dst_rank"):
            if key in entry:
                rank_count = max(rank_count, 1 + common.parse_whole(where, key, entry[key]))
        if entry.get("global_ranks"):
            rank_count = max(rank_count, 1 + max(common.ranks_of(where, entry["global_ranks"], 2**31)))
    if not rank_count:
        raise BadInput(name, "world_size", "is nowhere given, and one trace for all ranks needs it")
    return rank_count


def _latency(entry: Mapping[str, Any], where: str) -> float | None:
    """Return the measured time of an entry, microseconds; None if it has none. BadInput for what is no time."""
    value = entry.get("latency_us")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_LATENCY_US:
        raise BadInput(where, value, "is no latency_us: a time of 0 or more is needed, or none")
    return float(value)


class RankEntries:
    """A rank's list, made neutral; node number n is entry number n.

    `places`: where entries are, for messages, if they aren't the file's items.
    """

    def __init__(self, rank: int, ranks: int, file: str, flops_per_s: float, places: Sequence[str] = ()) -> None:
        self.rank = rank
        self.ranks = ranks
        self.file = file
        self.flops_per_s = flops_per_s
        self.places = places
        self._groups: dict[str, tuple[int, ...]] = {}

    def nodes(self, entries: Sequence[Mapping[str, Any]]) -> tuple[common.Node, ...]:
        """Return the nodes of a list. Each waits for the last blocking one; a wait for what it names as well."""
        waited_entry = _entry_of_wait(entries)
        nodes: list[common.Node] = []
        last_blocking: tuple[int, ...] = ()
        batch: list[int] = []
        for i, entry in enumerate(entries):
            where = self.places[i] if self.places else f"{self.file}: entry {i}"
            name = self._name(entry, where)
            after = list(last_blocking)
            if name == "wait" and i in waited_entry:
                after.append(waited_entry[i])
            if name == "batch_isend_irecv":
                after += batch
                batch = []
            nodes.append(common.Node(where, self._action(name, entry, where), tuple(after)))
            if name in (*SENDS, *RECEIVES) and entry.get("use_batch"):
                batch.append(i)
            elif i not in waited_entry.values():
                last_blocking = (i,)
        return tuple(nodes)

    def _name(self, entry: Mapping[str, Any], where: str) -> str:
        if "compute" in entry:
            return "compute"
        name = str(entry["comms"]).lower()
        letters = "".join(filter(str.isalpha, name))
        name = ALIASES.get(letters, name)
        if name not in KNOWN_NAMES:
            allowed = unknown_name_hint(name, KNOWN_NAMES).replace("known", "a known collective", 1)
            raise BadInput(where, entry["comms"], allowed)
        return name

    def _action(self, name: str, entry: Mapping[str, Any], where: str) -> common.Action:
        if name == "compute":
            kind = str(entry["compute"]).lower()
            measured = _latency(entry, where)
            if kind not in ("gemm", "emb_lookup"):
                raise BadInput(where, entry["compute"], "is no known compute: allowed are gemm, emb_lookup")
            if measured is not None or kind == "emb_lookup":
                return common.Gap((measured or 0.0) / MICROSECONDS)
            keys = ("mm_dim",) * 3 if "mm_dim" in entry else ("mm0_dim0", "mm0_dim1", "mm1_dim1")
            m, k, n = (common.parse_whole(where, key, entry.get(key), 1) for key in keys)
            count = common.parse_whole(where, "count", entry.get("count", 1))
            return common.Gap(2.0 * m * k * n * count / self.flops_per_s)
        if name == "init":
            self._groups[str(entry.get("pg_id", "0"))] = common.ranks_of(where, entry.get("global_ranks"), self.ranks)
        if name in ORDERING:
            return common.Gap(0.0)
        if name in SENDS + RECEIVES:
            return self._message(name in SENDS, entry, where)
        group = self._group(entry, where)
        if self.rank not in group:
            return common.Gap(0.0)
        return self._call(name, entry, group, where)

    def _sizes(self, entry: Mapping[str, Any], where: str) -> tuple[int, int, int]:
        """Return the elements that go in, those that come out, and the bytes of each."""
        dtype = str(entry.get("dtype", "")).lower().removeprefix("torch.")
        if dtype not in ELEMENT_BYTES:
            allowed = unknown_name_hint(dtype, ELEMENT_BYTES).replace("known", "a dtype", 1)
            raise BadInput(where, entry.get("dtype"), allowed)
        in_size = common.parse_whole(where, "in_msg_size", entry.get("in_msg_size"))
        out_size = common.parse_whole(where, "out_msg_size", entry.get("out_msg_size"))
        return in_size, out_size, ELEMENT_BYTES[dtype]

    def _message(self, sends: bool, entry: Mapping[str, Any], where: str) -> common.Action:
        src = self._rank_at(entry, "src_rank", where)
        dst = self._rank_at(entry, "dst_rank", where)
        if src == dst:
            raise BadInput(where, dst, "must be another rank than src_rank")
        in_size, out_size, element_bytes = self._sizes(entry, where)
        if sends and self.rank == src:
            return common.Send(dst, in_size * element_bytes, 0)
        if not sends and self.rank == dst:
            return common.Recv(src, out_size * element_bytes, 0)
        return common.Gap(0.0)

    def _rank_at(self, entry: Mapping[str, Any], key: str, where: str) -> int:
        """Return the rank that an entry has at a key."""
        return common.check_rank(where, common.parse_whole(where, key, entry.get(key)), self.ranks)

    def _group(self, entry: Mapping[str, Any], where: str) -> tuple[int, ...]:
        if entry.get("global_ranks"):
            return common.ranks_of(where, entry["global_ranks"], self.ranks)
        key = entry.get("pg_id")
        if key is not None and str(key) not in self._groups:
            raise BadInput(where, key, "is a pg_id that no init entry before it has defined")
        group = tuple(range(self.ranks)) if key is None else self._groups[str(key)]
        size = common.parse_whole(where, "world_size", entry.get("world_size", len(group)))
        if size != len(group):
            allowed = f"is its world size, but its group has the {len(group)} ranks {list(group)}"
            if size > len(group):
                allowed += ": one is missing"
            raise BadInput(where, size, allowed)
        return group

    def _call(self, name: str, entry: Mapping[str, Any], group: tuple[int, ...], where: str) -> common.Call:
        op = OPS[name]
        n = len(group)
        key = str(entry.get("pg_id", ""))
        if op == "barrier":
            return common.Call(op, group, group_name=key)
        in_size, out_size, element_bytes = self._sizes(entry, where)
        if op == "all-to-allv":
            in_split = self._split_sizes(entry, "in_split", in_size, n, where)
            out_split = self._split_sizes(entry, "out_split", out_size, n, where)
            sends = tuple(size * element_bytes for size in in_split)
            receives = tuple(size * element_bytes for size in out_split)
            return common.Call(op, group, sends=sends, receives=receives, group_name=key)
        in_bytes = in_size * element_bytes
        out_bytes = out_size * element_bytes
        if op == "all-gatherv":
            return common.Call(op, group, sends=(in_bytes,) * n, group_name=key)
        if op == "reduce-scatterv":
            return common.Call(op, group, receives=(out_bytes,) * n, group_name=key)
        root = None
        if op in ("broadcast", "reduce", "gather", "scatter"):
            root = common.parse_whole(where, "root", entry.get("root", group[0]))
            if root not in group:
                raise BadInput(where, root, f"is its root, but isn't in its group {list(group)}")
        data = {"all-gather": in_bytes * n, "all-to-all": in_bytes / n, "scatter": out_bytes}
        return common.Call(op, group, data.get(op, in_bytes), root, group_name=key)

    def _split_sizes(self, entry: Mapping[str, Any], key: str, total: int, n: int, where: str) -> tuple[int, ...]:
        """Elements for (or from) each of the group; even if none are listed."""
        listed = entry.get(key) or [total // n] * n
        if not isinstance(listed, list) or len(listed) != n:
            raise BadInput(where, listed, f"is no {key}: one number for each of the group's {n} ranks is needed")
        split = tuple(common.parse_whole(where, key, item) for item in listed)
        if sum(split) != total:
            size = "in_msg_size" if key == "in_split" else "out_msg_size"
            raise BadInput(where, list(split), f"is its {key}, and must add up to the {total} of {size}")
        return split


def _entry_of_wait(entries: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """For each wait, which entry it waits for: the last one before it with the same `req`."""
    waited_entry: dict[int, int] = {}
    open_by_req: dict[str, int] = {}
    for i, entry in enumerate(entries):
        req = entry.get("req")
        if req is None or "comms" not in entry:
            continue
        if str(entry["comms"]).lower() != "wait":
            open_by_req[str(req)] = i
        elif str(req) in open_by_req:
            waited_entry[i] = open_by_req.pop(str(req))
    return waited_entry
