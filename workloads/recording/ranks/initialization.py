"""PyTorch's start of a job: every communicator that a script makes is a `RecordingGroup`.

`init_process_group`, `new_group` and `split_group` are replaced, since PyTorch makes NCCL and Gloo groups itself and
would look for the other ranks through a store. Whatever backend a script names, the groups record, and `get_backend`
returns what the script named. `split_group` makes its groups by `new_group`, so that all ranks know all of them.
"""

import sys
import traceback
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from railyard.workloads.recording.ranks.exchange import Exchange
from railyard.workloads.recording.ranks.gloo_group import GlooGroup
from railyard.workloads.recording.ranks.network import Network
from railyard.workloads.recording.ranks.process_group import RecordingGroup
from railyard.workloads.recording.ranks.recorder import Recorder

BACKEND = "record"
MAX_FRAMES = 12  # of the code that makes a communicator


class Initialization:
    """The replaced functions of one rank."""

    def __init__(self, recorder: Recorder, exchange: Exchange, network: Network | None) -> None:
        """`network`: of a real run over Gloo; None to record alone."""
        self._recorder = recorder
        self._network = network
        self._exchange = exchange
        self._ranks_of_next: Sequence[int] = ()
        self._default_backend = ""
        self._backend_of_group: dict[str, str] = {}
        self._real_init = dist.init_process_group
        self._real_new_group = dist.new_group

    def install(self) -> None:
        """Replace the functions wherever PyTorch has them under their names."""
        devices = ["cpu", "cuda"]
        distributed_c10d.Backend.register_backend(BACKEND, self._make_group, devices=devices)
        replaced = {
            "init_process_group": self.init_process_group,
            "new_group": self.new_group,
            "split_group": self.split_group,
            "get_backend": self.get_backend,
            "is_nccl_available": lambda: True,
            "is_gloo_available": lambda: True,
        }
        for name, function in replaced.items():
            original = getattr(distributed_c10d, name)
            # modules that were imported before have the function under its own name
            for module in [*sys.modules.values()]:
                if getattr(module, "__name__", "").startswith("torch.") and vars(module).get(name) is original:
                    setattr(module, name, function)
        # nothing waits here, so no time runs out; PyTorch before 2.14 has no set_timeout
        dist.set_timeout = _nothing
        distributed_c10d._set_pg_timeout = _nothing

    def init_process_group(self, backend: Any = None, *_: Any, **options: Any) -> None:
        """Make the communicator of all ranks. BadWorldSize if the script names another number of ranks."""
        asked = options.get("world_size", -1)
        if asked not in (None, -1, self._recorder.world_size):
            raise WorldSizeError(asked, self._recorder.world_size)
        self._default_backend = str(backend or "nccl")
        self._ranks_of_next = range(self._recorder.world_size)
        rank = self._recorder.rank
        store = dist.HashStore()
        if self._network is not None:
            store = dist.TCPStore(self._network.store_address, self._network.store_port, is_master=False)
        self._real_init(BACKEND, rank=rank, world_size=self._recorder.world_size, store=store)
        self._define(self._ranks_of_next, distributed_c10d._get_default_group(), "", self._default_backend)

    def new_group(
        self, ranks: Sequence[int] | None = None, timeout: Any = None, backend: Any = None, *_: Any, **options: Any
    ) -> Any:
        """Make a communicator of some ranks."""
        members = list(ranks) if ranks is not None else list(range(self._recorder.world_size))
        if members and max(members) >= self._recorder.world_size:
            raise WorldSizeError(max(members) + 1, self._recorder.world_size)
        is_local = bool(options.get("use_local_synchronization"))
        self._ranks_of_next = sorted(members)
        kept = {"group_desc": options.get("group_desc"), "use_local_synchronization": is_local}
        group = self._real_new_group(members, backend=BACKEND, **kept)
        description = str(options.get("group_desc") or "")
        self._define(self._ranks_of_next, group, description, str(backend or self._default_backend))
        return group

    def split_group(
        self, parent_pg: Any = None, split_ranks: Sequence[Sequence[int]] | None = None, *_: Any, **options: Any
    ) -> Any:
        """Make the communicators that another is split into; return the one of this rank, or None."""
        parent = parent_pg or distributed_c10d._get_default_group()
        parent_ranks = dist.get_process_group_ranks(parent)
        chosen = None
        for places in split_ranks or []:
            ranks = [parent_ranks[place] for place in places]
            group = self.new_group(ranks, group_desc=options.get("group_desc"))
            if self._recorder.rank in ranks:
                chosen = group
        return chosen

    def get_backend(self, group: Any = None) -> str:
        """Return the backend that the script asked for."""
        chosen = group or distributed_c10d._get_default_group()
        return self._backend_of_group.get(chosen.group_name, self._default_backend)

    def _make_group(self, store: Any, rank: int, count: int, timeout: Any) -> RecordingGroup:
        """Make the group that `init_process_group` or `new_group` asked PyTorch for."""
        assert count == len(self._ranks_of_next)
        if self._network is not None:
            members = self._ranks_of_next
            return GlooGroup(self._recorder, self._exchange, rank, members, store, timeout, self._network.address)
        return RecordingGroup(self._recorder, self._exchange, rank, self._ranks_of_next)

    def _define(self, ranks: Sequence[int], group: Any, description: str, backend: str) -> None:
        name = group.group_name if isinstance(group, RecordingGroup) else ""
        self._backend_of_group[name] = backend
        self._recorder.define_communicator(list(ranks), name, description, _place(), backend)


class WorldSizeError(Exception):
    """A script wants more or other ranks than it is given."""

    def __init__(self, wanted: int, count: int) -> None:
        super().__init__(f"the script asks for {wanted} ranks, and has {count}")
        self.wanted = wanted


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _place() -> str:
    """Return the lines of code that made a communicator, without those of this package and of Python's start."""
    frames: list[str] = []
    for frame in traceback.extract_stack(limit=MAX_FRAMES + 4):
        if "/workloads/recording/" not in frame.filename and "runpy" not in frame.filename:
            frames.append(f"{frame.filename}:{frame.lineno}")
    return " ".join(frames)


def group_of_name(name: str) -> Any:
    """Return the group that PyTorch knows by a name."""
    return torch._C._distributed_c10d._resolve_process_group(name)
