"""Load of the machine: shares are within 0 and 1, and work differs from idling."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from railyard.core import host, host_load
from railyard.core.host_load import LoadMeter
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import FabricSpec


def test_cpu_time_of_finished_children_counts_as_ours() -> None:
    """Otherwise the load of every iperf3 and worker would count as foreign."""
    cores = psutil.cpu_count() or 1
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    with LoadMeter() as meter:
        subprocess.run([sys.executable, "-c", burn], check=True)
    assert 0.5 / (20 * cores) < meter.load.busy <= 1
    assert 0 <= meter.load.foreign <= meter.load.busy
    assert 0 <= meter.load.lag_p99_ms < 1000


def test_a_stretch_too_short_for_a_sample_has_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_load, "SAMPLE_S", 60.0)
    with LoadMeter() as meter:
        pass
    assert meter.load.lag_p99_ms == 0


class SetClock:
    """A clock of CPU times that a test sets."""

    now = host_load._NOTHING

    def read(self) -> host_load._Cpu:
        return self.now


@pytest.mark.parametrize(
    ("busy_s", "foreign", "resolution"),
    [
        ([0.04], 1.0, 0.5),  # neither core has had a tick of its idle time
        ([0.0, 0.04, 0.0, 0.04], 0.5, 0.25),
        ([0.04, -0.04, 0.04, -0.04], 0.0, 0.25),  # idle ticks of the time between are counted late
    ],
)
def test_ticks_of_short_times_even_out_and_are_their_resolution(
    busy_s: list[float], foreign: float, resolution: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of 20 ms on two cores."""
    monkeypatch.setattr(host_load, "CpuClock", SetClock)
    monkeypatch.setattr(host_load, "_own_seconds", lambda: 0.0)
    monkeypatch.setattr(host_load, "usable_cores", lambda: 2.0)
    monkeypatch.setattr(host_load, "SAMPLE_S", 60.0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    meter = LoadMeter()
    for seconds in busy_s:
        with meter:
            before = SetClock.now
            monkeypatch.setattr(SetClock, "now", before._replace(at=before.at + 0.02, busy=before.busy + seconds))
    assert meter.load.foreign == pytest.approx(foreign)
    assert meter.load.resolution == pytest.approx(resolution)


def test_a_pause_until_the_end_counts() -> None:
    class LateEnd(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            time.sleep(0.05)
            return True

    meter = LoadMeter()
    meter._cpu, meter._end = host_load.CpuClock().read, LateEnd()
    meter._watch()
    assert meter.load.pause_ms >= 50 - 1e3 * (host_load.SAMPLE_S + host_load.SLEEP_S)


def test_meter_entered_twice_excludes_the_time_between() -> None:
    meter, begun_s = LoadMeter(), time.monotonic()
    with meter:
        time.sleep(0.05)
    elapsed, first, left_s = meter.elapsed_s, meter.load.lag_p99_ms, time.monotonic()
    time.sleep(0.1)
    entered_s = time.monotonic()
    with meter:
        time.sleep(0.05)
    assert elapsed < meter.elapsed_s <= time.monotonic() - begun_s - (entered_s - left_s)
    assert meter.load.lag_p99_ms >= first, "the worst of both"


def test_a_pause_is_found_but_for_a_sample() -> None:
    """The process that holds the meter is stopped for 100 ms and continued by another one."""
    stop = "import os, signal, time; p = os.getppid(); os.kill(p, 19); time.sleep(0.1); os.kill(p, 18)"
    with LoadMeter() as meter:
        time.sleep(0.1)
        subprocess.run([sys.executable, "-c", stop], check=True)
        time.sleep(0.1)
    assert meter.load.pause_ms >= 100 - 2 * host_load.SAMPLE_S * 1e3
    assert 0 < meter.load.paused <= 1


def test_tolerated_pause_does_not_count() -> None:
    stop = "import os, signal, time; p = os.getppid(); os.kill(p, 19); time.sleep(0.1); os.kill(p, 18)"
    with LoadMeter(late_s=30.0) as meter:
        subprocess.run([sys.executable, "-c", stop], check=True)
        time.sleep(0.1)
    assert meter.load.paused == 0
    assert meter.load.pause_ms >= 100 - 2 * host_load.SAMPLE_S * 1e3


def test_threads_may_be_later_where_frames_take_longer() -> None:
    plan = make_plan(
        FabricSpec.model_validate({"kind": "rail-only", "domains": 2, "rails": 2, "rail_rate": "1Mbit"}), 0
    )
    assert host_load.tolerated_lateness_s(plan.frame_s) == pytest.approx(0.018)
    assert host_load.tolerated_lateness_s(0.0) == host_load.tolerated_lateness_s(0.019) == 0.005


def test_a_burst_of_150_ms_fills_the_busiest_100_ms() -> None:
    with LoadMeter() as meter:
        time.sleep(0.4)
        end = time.process_time() + 0.15
        while time.process_time() < end:
            pass
        time.sleep(0.4)
    load = meter.load
    assert load.busy_100ms >= load.busy
    assert load.busy_100ms > 0.5 / (psutil.cpu_count() or 1)


def cgroup(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    for name, text in {"cpu.stat": "nr_throttled 0\nthrottled_usec 0\n", **files}.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("kind", "own", "files"),
    [
        ("cgroup2 cgroup2 rw", "0::/top/mine", {"cpu.max": "150000 100000\n"}),
        ("cgroup cgroup rw,cpu", "1:cpu:/top/mine", {"cpu.cfs_quota_us": "150000\n", "cpu.cfs_period_us": "100000\n"}),
    ],
)
def test_quota_of_a_parent_cgroup_limits_usable_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, own: str, files: dict[str, str]
) -> None:
    top = cgroup(tmp_path / "mount" / "top", files)
    mine = cgroup(top / "mine", {})
    (tmp_path / "mountinfo").write_text(f"31 23 0:26 / {tmp_path}/mount rw shared:4 - {kind}\n")
    (tmp_path / "cgroup").write_text(f"9:name=systemd:/\n{own}\n")
    assert host.cpu_cgroups(tmp_path) == [mine, top]
    monkeypatch.setattr(host, "cpu_cgroups", lambda: [mine, top])
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    assert host.usable_cores() == 1.5


def test_throttled_time_is_read_from_both_versions_of_cgroups(tmp_path: Path) -> None:
    (tmp_path / "v1").write_text("nr_periods 9\nnr_throttled 2\nthrottled_time 1500000000\n")
    (tmp_path / "v2").write_text("usage_usec 9\nnr_throttled 2\nthrottled_usec 1500000\n")
    assert [host_load._throttled_s(tmp_path / version) for version in ("v1", "v2")] == [1.5, 1.5]


def test_time_throttled_outlives_its_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = cgroup(tmp_path / "mine", {})
    monkeypatch.setattr(host_load, "cpu_cgroups", lambda: [mine])
    with LoadMeter() as meter:
        (mine / "cpu.stat").write_text("throttled_usec 50000\n")
        time.sleep(2 * host_load.STEP_S)
        (mine / "cpu.stat").unlink()
        time.sleep(2 * host_load.STEP_S)
    assert meter._throttled_s == pytest.approx(0.05)
    assert meter.load.throttled > 0.0
