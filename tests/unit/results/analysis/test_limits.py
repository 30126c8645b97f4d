"""A worker with many sockets isn't held to the number that a shell starts with."""

import subprocess
import sys

SCRIPT = """
import os, resource
from railyard.core.host import raise_open_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
raise_open_file_limit()
print(len([os.dup(0) for _ in range(900)]))
"""


def test_more_files_than_the_first_limit_can_be_opened() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("900\n", "")
