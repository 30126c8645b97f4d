"""Temporary folders that go with their process, whatever ends it.

Another process waits for the end of a pipe that this one holds open, and then removes the folder. So `kill -9` leaves
nothing in /tmp.
"""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_REMOVER: Final = """
read -r nothing
for attempt in 1 2 3 4 5; do
    rm -rf -- "$1" 2>/dev/null
    sleep 1
    [ -e "$1" ] || exit
done
"""
"""Removes again what programs of a killed process write while they end."""


@contextmanager
def folder(prefix: str) -> Iterator[Path]:
    """Make a temporary folder for its owner alone, and remove it at the end of the block or of this process.

    OSError if there is no room for it.
    """
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as path:
        argv = ["sh", "-c", _REMOVER, "remover", path]
        remover = subprocess.Popen(
            argv,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process, which removes the folder itself
        )
        try:
            yield Path(path)
        finally:
            remover.kill()
            remover.communicate()
