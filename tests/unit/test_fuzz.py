"""Mutated inputs are answered with a documented exit status, in one line, with bounded time and memory."""

import os
import subprocess
import sys

from railyard.core.installation import PROJECT


def test_mutated_inputs_are_answered_in_one_line() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--count", "500", "--seed", "1"]
    done = subprocess.run(command, cwd=PROJECT, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stdout.decode()
