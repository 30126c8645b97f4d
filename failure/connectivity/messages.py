"""Messages between the connectivity check and the process that probes for it."""

from typing import Final, Literal

from pydantic import InstanceOf

from railyard.core.worker import Message
from railyard.topologies.addresses import Gpu

PAIRS_PER_S: Final = 8000.0
Pair = tuple[Gpu, Gpu]


class Open(Message):
    """Open a socket in each GPU: Ready."""

    kind: Literal["open"] = "open"
    gpus: InstanceOf[tuple]  # type: ignore[type-arg]


class Probe(Message):
    """Probe all pairs until `end_s` (s, monotonic) at the latest: Answered.

    Pairs in `expected` that don't answer within `timeout_s` are probed again.
    """

    kind: Literal["probe"] = "probe"
    expected: InstanceOf[frozenset]  # type: ignore[type-arg]
    timeout_s: float
    end_s: float


class Answered(Message):
    """Whether each pair answered; None if there was too little time."""

    kind: Literal["answered"] = "answered"
    pairs: InstanceOf[dict] | None  # type: ignore[type-arg]
