"""Mutated inputs are answered with a documented exit status, in one line, with bounded time and memory."""

import os
import subprocess
import sys

import pytest

from railyard.core.installation import PROJECT
from tests.fuzz.answer import Answer


def test_mutated_inputs_are_answered_in_one_line() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--count", "30", "--seed", "1"]
    done = subprocess.run(command, cwd=PROJECT, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stdout.decode()


@pytest.mark.parametrize(
    ("idle_s", "problems"),
    [(40.0, ["waited for 29.0 s"]), (12.0, ["waited for 12.0 s"]), (3.0, [])],
    ids=["idle", "half idle", "busy"],
)
def test_wait_is_bad_unless_the_machine_was_busy(idle_s: float, problems: list[str]) -> None:
    answer = Answer(1, "spec", 0, "", wall_s=30.0, cpu_s=1.0, idle_s=idle_s, peak_bytes=0, command="")
    assert answer.problems() == problems
