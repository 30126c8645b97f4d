"""Waiting for a condition."""

import subprocess
import time

import pytest

from railyard.core import watch
from railyard.core.errors import CheckFailed
from railyard.core.wait import poll, sleep_until, wait_until


def test_wait_until_returns_the_first_true_result() -> None:
    results = iter([0, None, "", "there", "never read"])
    assert wait_until(lambda: next(results), "it", within_s=60, poll_s=0) == "there"


def test_wait_until_names_its_condition_in_a_late_message() -> None:
    with pytest.raises(CheckFailed, match=r"^waited 0 s for rail0 to listen$"):
        wait_until(lambda: False, "rail0 to listen", within_s=0, error=CheckFailed)
    calls: list[int] = []
    with pytest.raises(CheckFailed, match=r"for [1-9]\d* calls$"):
        wait_until(lambda: calls.append(1), lambda: f"{len(calls)} calls", 0.01, 0.001, CheckFailed)


def test_poll_checks_at_least_once_and_returns_the_last_result() -> None:
    assert poll(lambda: "", within_s=0) == ""
    assert poll(lambda: "now", within_s=0) == "now"


def test_an_error_of_the_check_ends_the_wait() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 // 0, "nothing", within_s=60)


def test_sleep_until_returns_at_its_time_or_at_once() -> None:
    end_s = time.monotonic() + 0.05
    sleep_until(end_s)
    assert time.monotonic() >= end_s
    sleep_until(end_s)


def test_sleep_until_ends_when_a_watched_process_dies() -> None:
    with subprocess.Popen(["sleep", "0.5"]) as process:
        watched = watch.add("a worker", process.pid)
        try:
            process.kill()
            with pytest.raises(watch.ProcessMissing, match=r"^a worker died \(signal 9\)$"):
                sleep_until(time.monotonic() + 3600)
        finally:
            watched.release()
