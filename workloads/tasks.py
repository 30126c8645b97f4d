"""Tasks of a schedule: transfers between GPUs, and computations on them.

Nothing but the standard library is imported here: the processes that replay a schedule need no more of it.
"""

from dataclasses import dataclass
from typing import Final

# Slices of an exchange have this many bytes or more, and less than twice as many if those do not become too many: so
# that a new connection, whose receiver offers 65,535 bytes until it has received some, takes a whole slice.
EXCHANGE_SLICE_BYTES: Final = 32_000


@dataclass(frozen=True, slots=True)
class Transfer:
    """`bytes` from GPU number `src` to GPU number `dst` (number n is G(n // K, n % K)), of phase number `phase`.

    `after`: task numbers, all below this task's own, that must have ended at `src`. A transfer ends at its receiver
    when its last byte was read. At its sender it ends when its last byte has left the GPU, as in NCCL, whose sends end
    with their kernels, for which the next phase waits; for a transfer to the same GPU in the same phase already when
    that byte was handed to the kernel, so that no link waits for a thread. Transfers of one pair with different
    `stripe` numbers go over different connections, so that a hash may put them on different paths.
    """

    src: int
    dst: int
    bytes: int
    phase: int
    after: tuple[int, ...] = ()
    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Compute:
    """`seconds` of computing on GPU number `gpu`: a gap in which this GPU's later tasks wait."""

    gpu: int
    seconds: float
    phase: int
    after: tuple[int, ...] = ()


Task = Transfer | Compute
