"""Memory of large arrays."""

import ctypes
from contextlib import suppress

# parameters of mallopt(3), <malloc.h>
_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Make the C library keep freed memory for this process's next arrays.

    glibc maps and unmaps each array above 32 MiB by itself, and the page faults of new memory were 6 of 16 s of a
    dry-run of 1,024 GPUs. Another C library is left as it is.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_TOP_PAD, 2**26)
