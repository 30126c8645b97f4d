"""The process group that records: whatever calls a collective ends in one of its methods.

DDP's reducer in C++, functional collectives, DTensor, FSDP, pipelining and the script itself all call the methods of
`dist.ProcessGroup`, so a Python subclass sees every call; a TorchDispatchMode misses those of the reducer. Each method
records its operation and returns a finished `Work`.

Contents: small real tensors are exchanged with the ranks that are run (exchange.py). Of large ones, and of ranks that
aren't run, a rank gets what it would if all ranks had its own values. Tensors without contents (FakeTensor) get none.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from railyard.workloads.recording.ranks.exchange import Exchange, Parts
from railyard.workloads.recording.ranks.recorder import Recorder

MAX_EXCHANGED_BYTES: Final = 65_536  # of a rank's tensors in one operation
Tensors = list[torch.Tensor]


def flat(lists: Sequence[Sequence[torch.Tensor]]) -> Tensors:
    """Return the tensors of several lists as one list."""
    return [tensor for tensors in lists for tensor in tensors]


def size(tensors: Sequence[torch.Tensor]) -> int:
    """Return the bytes of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def row_sizes(tensor: torch.Tensor, splits: Sequence[int], ranks: int) -> list[int]:
    """Return the elements for each rank of a tensor that is split by rows; evenly without `splits`."""
    if not splits:
        return [tensor.numel() // ranks] * ranks
    rows = tensor.shape[0] if tensor.dim() else 1
    row = tensor.numel() // rows if rows else 0
    return [int(count) * row for count in splits]


class RecordedWork(dist._Work):
    """A finished operation. `complete` writes what other ranks sent; it is called when the script waits."""

    def __init__(self, tensors: Tensors, on_wait: Callable[[], None], complete: Callable[[], None] | None) -> None:
        super().__init__()
        self._tensors = tensors
        self._on_wait = on_wait
        self._complete = complete

    def complete_by(self, complete: Callable[[], None]) -> None:
        """Set what is called when the script waits."""
        self._complete = complete

    def _finish(self) -> None:
        complete = self._complete
        self._complete = None
        if complete is not None:
            complete()

    def wait(self, timeout: object = None) -> bool:
        """Complete it, and let the current stream wait for it."""
        self._finish()
        self._on_wait()
        return True

    def synchronize(self) -> None:
        """Do as `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """Do as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Return true, after it is completed: a script may poll."""
        self._finish()
        return True

    def is_success(self) -> bool:
        """Return true."""
        return True

    def result(self) -> Tensors:
        """Return its tensors."""
        self._finish()
        return self._tensors

    def get_future(self) -> Any:
        """Return a future that is done."""
        self._finish()
        future: Any = torch.futures.Future()
        future.set_result(list(self._tensors))
        return future

    getFuture = get_future  # noqa: N815 - C++ calls it so


class RecordingGroup(dist.ProcessGroup):
    """One communicator of one rank."""

    def __init__(self, recorder: Recorder, exchange: Exchange, rank: int, ranks: Sequence[int]) -> None:
        """`rank`: this one's place in the group. `ranks`: of the whole job, in the group's order."""
        super().__init__(rank, len(ranks))
        self._recorder = recorder
        self._exchange = exchange
        self._place = rank
        self._ranks = tuple(ranks)
        self._count = len(ranks)
        self._turn = 0
        self._messages: dict[tuple[int, int, int], int] = {}
        self._name = ""
        self._description = ""

    # names that PyTorch asks for

    @property
    def group_name(self) -> str:
        """PyTorch's name of the group."""
        return self._name

    @property
    def group_desc(self) -> str:
        """Description of the group, as a device mesh gives it."""
        return self._description

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Set the name."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """Return the name."""
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Set the description."""
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the description."""
        return self._description

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    def getBackendName(self) -> str:  # noqa: N802
        """Return the name of the backend."""
        return "record"

    def shutdown(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""

    # one collective

    def _call(
        self,
        op: str,
        tensors: Tensors,
        outputs: Tensors,
        fields: dict[str, Any],
        sources: Sequence[int] | None = None,
        posted: Tensors | None = None,
        write: Callable[[list[Tensors]], None] | None = None,
    ) -> RecordedWork:
        """Record a collective and exchange its contents if they are small.

        `tensors`: of them are dtype and size. `outputs`: of the work.
        `sources`: places whose parts are taken; all by default.
        `posted`: this rank's part. `write`: is called with the part of each place; of a place without, this rank's own.
        """
        self._turn += 1
        dtype = _dtype(tensors)
        position = self._recorder.add(op, self._name, dtype=dtype, **fields)
        key = f"{self._name}/{self._turn}"
        signature = f"{op} {dtype}"
        if "root" in fields:
            signature += f" from rank {self._ranks[fields['root']]}"
        if op in ("all-reduce", "reduce", "broadcast"):
            signature += f" of {fields['bytes']} bytes"
        places = range(self._count) if sources is None else sources
        complete = None
        if self._is_exchanged(flat([tensors, outputs])):
            own = [] if posted is None else posted
            self._exchange.post(key, signature, [_content(tensor) for tensor in own])
            name = f"{op} number {self._turn} of {self._label}"
            is_required = sources is not None and _is_integer(tensors)

            def take() -> None:
                ranks = [self._ranks[place] for place in places]
                parts = self._exchange.take(key, ranks, name, is_required)
                if write is not None:
                    write(self._by_place(parts, own))

            complete = take
        return RecordedWork(outputs, lambda: self._recorder.wait(position), complete)

    @property
    def _label(self) -> str:
        """The communicator in messages."""
        description = self._description if self._description not in ("", "undefined", "default_pg") else ""
        return description or f"the communicator of ranks {_short(self._ranks)}"

    def _is_exchanged(self, tensors: Tensors) -> bool:
        """Return whether the contents go to other ranks: they are there, and small."""
        has_contents = not any(isinstance(tensor, FakeTensor) or tensor.is_meta for tensor in tensors)
        return has_contents and size(tensors) <= MAX_EXCHANGED_BYTES * self._count and self._count > 1

    def _by_place(self, parts: Parts, own: Tensors) -> list[Tensors]:
        """Return each place's tensors; this rank's own, where there are none."""
        tensors_of_place: list[Tensors] = []
        for rank in self._ranks:
            if rank not in parts or rank == self._recorder.rank:
                tensors_of_place.append([tensor.detach().clone() for tensor in own])
                continue
            contents = parts[rank]
            pairs = zip(contents, own, strict=False)
            tensors_of_place.append([_tensor(content, like) for content, like in pairs])
        return tensors_of_place

    def allreduce(self, tensors: Tensors, opts: Any = None) -> RecordedWork:
        """AllReduce of each tensor."""
        operator = str(opts.reduceOp.op) if opts is not None else "SUM"

        def write(by_place: list[Tensors]) -> None:
            for index, tensor in enumerate(tensors):
                _copy(tensor, _reduced([place[index] for place in by_place], operator))

        return self._call("all-reduce", tensors, tensors, {"bytes": size(tensors)}, posted=tensors, write=write)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> RecordedWork:
        """AllReduce of several tensors, which are one operation."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> RecordedWork:
        """Broadcast from the root."""
        root = opts.rootRank if opts is not None else 0

        def write(by_place: list[Tensors]) -> None:
            for tensor, content in zip(tensors, by_place[root], strict=True):
                _copy(tensor, content)

        fields = {"bytes": size(tensors), "root": root}
        return self._call("broadcast", tensors, tensors, fields, [root], tensors, write)

    def reduce(self, tensors: Tensors, opts: Any = None) -> RecordedWork:
        """Reduce to the root."""
        operator = str(opts.reduceOp.op)

        def write(by_place: list[Tensors]) -> None:
            if self._place == opts.rootRank:
                for index, tensor in enumerate(tensors):
                    _copy(tensor, _reduced([place[index] for place in by_place], operator))

        fields = {"bytes": size(tensors), "root": opts.rootRank}
        return self._call("reduce", tensors, tensors, fields, None, tensors, write)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> RecordedWork:
        """AllGather to a list of tensors, which may differ in size."""
        for tensors, part in zip(outputs, inputs, strict=True):
            for tensor in tensors:
                if tensor.shape == part.shape:
                    _copy(tensor, part)

        def write(by_place: list[Tensors]) -> None:
            for index, tensors in enumerate(outputs):
                for tensor, place in zip(tensors, by_place, strict=True):
                    if tensor.numel() == place[index].numel():
                        _copy(tensor, place[index].view(tensor.shape))

        part_sizes = {tensor.numel() for tensors in outputs for tensor in tensors}
        if len(part_sizes) == 1:
            return self._call("all-gather", inputs, flat(outputs), {"bytes": size(flat(outputs))}, None, inputs, write)
        receives = [size([tensors[place] for tensors in outputs]) for place in range(self._count)]
        fields = {"sends": [size(inputs)] * self._count, "receives": receives}
        return self._call("all-gatherv", inputs, flat(outputs), fields, None, inputs, write)

    def _allgather_base(self, output: torch.Tensor, part: torch.Tensor, opts: Any = None) -> RecordedWork:
        """AllGather to one tensor."""
        return self._gather_to_tensors([output], [part])

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> RecordedWork:
        """AllGather of several tensors, which are one operation."""
        return self._gather_to_tensors(outputs, inputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def _gather_to_tensors(self, outputs: Tensors, inputs: Tensors) -> RecordedWork:
        for output, part in zip(outputs, inputs, strict=True):
            rows = output.view(self._count, -1)
            _copy(rows, part.reshape(1, -1).expand(self._count, -1))

        def write(by_place: list[Tensors]) -> None:
            for index, output in enumerate(outputs):
                for row, place in zip(output.view(self._count, -1), by_place, strict=True):
                    _copy(row, place[index].reshape(-1))

        return self._call("all-gather", inputs, outputs, {"bytes": size(outputs)}, None, inputs, write)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> RecordedWork:
        """ReduceScatter of a list of tensors, which may differ in size."""
        for output, parts in zip(outputs, inputs, strict=True):
            _copy(output, parts[self._place])
        part_sizes = {tensor.numel() for tensors in inputs for tensor in tensors}
        if len(part_sizes) == 1:
            return self._call("reduce-scatter", outputs, outputs, {"bytes": size(flat(inputs))}, [])
        sends = [size([tensors[place] for tensors in inputs]) for place in range(self._count)]
        fields = {"sends": sends, "receives": [size(outputs)] * self._count}
        return self._call("reduce-scatterv", outputs, outputs, fields, [])

    def _reduce_scatter_base(self, output: torch.Tensor, whole: torch.Tensor, opts: Any = None) -> RecordedWork:
        """ReduceScatter of one tensor."""
        return self._scatter_tensors([output], [whole])

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> RecordedWork:
        """ReduceScatter of several tensors, which are one operation."""
        return self._scatter_tensors(outputs, inputs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def _scatter_tensors(self, outputs: Tensors, inputs: Tensors) -> RecordedWork:
        for output, whole in zip(outputs, inputs, strict=True):
            _copy(output.view(-1), whole.reshape(self._count, -1)[self._place])
        return self._call("reduce-scatter", inputs, outputs, {"bytes": size(inputs)}, [])

    def alltoall_base(
        self,
        output: torch.Tensor,
        data: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> RecordedWork:
        """All-to-all of one tensor, by rows."""
        is_even = not output_splits and not input_splits
        sent = row_sizes(data, input_splits, self._count)
        received = row_sizes(output, output_splits, self._count)
        inputs = list(data.reshape(-1).split(sent))
        outputs = list(output.view(-1).split(received))
        return self._all_to_all(outputs, inputs, [output], is_even)

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> RecordedWork:
        """All-to-all of a list of tensors."""
        return self._all_to_all(outputs, inputs, outputs, is_even=False)

    def _all_to_all(self, outputs: Tensors, inputs: Tensors, results: Tensors, is_even: bool) -> RecordedWork:
        for output, part in zip(outputs, inputs, strict=True):
            if output.numel() == part.numel():
                _copy(output.view(-1), part.reshape(-1))
            elif output.numel():
                _copy(output, torch.zeros_like(output))

        def write(by_place: list[Tensors]) -> None:
            for output, place in zip(outputs, by_place, strict=True):
                part = place[self._place]
                if output.numel() == part.numel():
                    _copy(output.view(-1), part.reshape(-1))

        sends = [size([tensor]) for tensor in inputs]
        receives = [size([tensor]) for tensor in outputs]
        if is_even:
            return self._call("all-to-all", inputs, results, {"bytes": sends[0]}, None, inputs, write)
        fields = {"sends": sends, "receives": receives}
        return self._call("all-to-allv", inputs, results, fields, None, inputs, write)

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> RecordedWork:
        """Gather to the root."""
        is_root = self._place == opts.rootRank

        def write(by_place: list[Tensors]) -> None:
            for index, tensors in enumerate(outputs):
                for tensor, place in zip(tensors, by_place, strict=True):
                    _copy(tensor, place[index])

        sources: Sequence[int] | None = None if is_root else []
        fields = {"bytes": size(inputs), "root": opts.rootRank}
        return self._call("gather", inputs, flat(outputs), fields, sources, inputs, write if is_root else None)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> RecordedWork:
        """Scatter from the root."""
        root = opts.rootRank
        posted = flat(inputs) if self._place == root else outputs * self._count

        def write(by_place: list[Tensors]) -> None:
            _copy(outputs[0], by_place[root][self._place].view(outputs[0].shape))

        fields = {"bytes": size(outputs), "root": root}
        return self._call("scatter", outputs, outputs, fields, [root], posted, write)

    def barrier(self, opts: Any = None) -> RecordedWork:
        """Barrier of all ranks that are run."""
        return self._call("barrier", [], [], {}, posted=[])

    def monitored_barrier(self, timeout: object = None, wait_all_ranks: bool = False) -> None:
        """Barrier."""
        self.barrier().wait()

    # messages between two ranks

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> RecordedWork:
        """Send to a place of the group."""
        fields = {"bytes": size(tensors), "dtype": _dtype(tensors), "peer": peer, "tag": tag}
        position = self._recorder.add("send", self._name, **fields)
        key = self._message_key(self._place, peer, tag)
        signature = f"a message of {size(tensors)} bytes"
        if self._is_exchanged(tensors):
            self._exchange.post(key, signature, [_content(tensor) for tensor in tensors])
        self._exchange.tell("peer", rank=self._ranks[peer])
        return RecordedWork(tensors, lambda: self._recorder.wait(position), None)

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> RecordedWork:
        """Receive from a place of the group."""
        fields = {"bytes": size(tensors), "dtype": _dtype(tensors), "peer": peer, "tag": tag}
        position = self._recorder.add("recv", self._name, **fields)
        key = self._message_key(peer, self._place, tag)
        name = f"recv of {self._label}"
        is_required = _is_integer(tensors)
        complete = None
        self._exchange.tell("peer", rank=self._ranks[peer])
        if self._is_exchanged(tensors):

            def take() -> None:
                parts = self._exchange.take(key, [self._ranks[peer]], name, is_required)
                for contents in parts.values():
                    for tensor, content in zip(tensors, contents, strict=True):
                        _copy(tensor, _tensor(content, tensor))

            complete = take
        return RecordedWork(tensors, lambda: self._recorder.wait(position), complete)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> RecordedWork:
        """Refuse: which rank sends depends on time, and a recording has none."""
        raise NotImplementedError("recv from any source depends on time and can't be recorded: name the source")

    def _message_key(self, sender: int, receiver: int, tag: int) -> str:
        """Return the key of the next message from one place to another."""
        pair = (sender, receiver, tag)
        self._messages[pair] = self._messages.get(pair, 0) + 1
        return f"{self._name}:{sender}>{receiver}:{tag}/{self._messages[pair]}"


def _dtype(tensors: Sequence[torch.Tensor]) -> str:
    return str(tensors[0].dtype).removeprefix("torch.") if tensors else "uint8"


def _is_integer(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether tensors look like metadata (sizes, counts, pickled objects) and not like activations."""
    return any(not tensor.is_floating_point() for tensor in tensors)


def _content(tensor: torch.Tensor) -> bytes:
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return bytes(data.numpy().tobytes())


def _tensor(content: bytes, like: torch.Tensor) -> torch.Tensor:
    if not content:
        return torch.empty(0, dtype=like.dtype)
    values = torch.frombuffer(bytearray(content), dtype=like.dtype)
    return values.view(like.shape) if values.numel() == like.numel() else values


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Write a tensor in place, unseen by autograd."""
    with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
        target.copy_(source)


def _reduced(tensors: Tensors, operator: str) -> torch.Tensor:
    stacked = torch.stack(tensors)
    if "MAX" in operator:
        return stacked.amax(0)
    if "MIN" in operator:
        return stacked.amin(0)
    if "PRODUCT" in operator:
        return stacked.prod(0)
    if "AVG" in operator:
        return stacked.mean(0, dtype=torch.float32)
    if "BAND" in operator or "BOR" in operator or "BXOR" in operator:
        return tensors[0]
    return stacked.sum(0)


def _short(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:4])
    return shown + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
