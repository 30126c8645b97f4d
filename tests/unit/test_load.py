"""Load of the machine: shares are within 0 and 1, and work differs from idling."""

import subprocess
import sys
import time

import psutil
import pytest

from railyard.core import host_load
from railyard.core.host_load import LoadMeter


def test_a_busy_stretch_is_busier_than_it_would_be_idle() -> None:
    cores = psutil.cpu_count() or 1
    with LoadMeter() as meter:
        end = time.process_time() + 0.5
        while time.process_time() < end:
            pass
        lasted_at_least = 0.5
    assert 0.5 * lasted_at_least / (10 * cores) < meter.load.busy <= 1
    assert 0 <= meter.load.foreign <= 1
    assert 0 <= meter.load.lag_p99_ms < 1000


def test_what_a_finished_child_used_is_our_own() -> None:
    """Otherwise the load of every iperf3 and worker would count as foreign."""
    burn = "import time\nwhile time.process_time() < 0.6: pass"
    with LoadMeter() as meter:
        subprocess.run([sys.executable, "-c", burn], check=True)
    assert meter.load.busy >= meter.load.foreign


def test_a_stretch_too_short_for_a_sample_has_no_lag() -> None:
    with LoadMeter() as meter:
        pass
    assert meter.load.lag_p99_ms == 0


def test_meter_entered_twice_excludes_the_time_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    idle_s = iter([0.0, 0.0, 1000.0, 2000.0])  # busy throughout, then idle throughout
    monkeypatch.setattr(host_load, "_machine_seconds", lambda: (next(idle_s), 0.0))
    meter = LoadMeter()
    with meter:
        time.sleep(0.05)
    assert meter.load.busy == 1
    first = meter.load.lag_p99_ms
    with meter:
        time.sleep(0.05)
    assert 0.2 < meter.load.busy < 0.8
    assert meter.load.lag_p99_ms >= first, "the worst of both"
