"""benchmarks/build_fabric.py, small: it builds, compares, and says what it found. How fast is not for a test."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks import teardown_check
from benchmarks.builders import Railyard, Stock, StockPlain
from railyard.core.host import datapath_choice, detect
from railyard.topologies.build import namespaces
from railyard.topologies.build.network import FabricNet
from railyard.topologies.build.ovs import PrivateSwitch
from railyard.topologies.plan import make_plan
from railyard.topologies.spec import parse_fabric
from tests.emulation.deadlines import scaled

ROOT = Path(__file__).resolve().parents[2]
RUN_S = 60


def test_every_builder_takes_its_turn_and_is_compared(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    argv = [sys.executable, "-m", "benchmarks.build_fabric", "--domains", "2", "--rails", "2", "--repeats", "1"]
    done = subprocess.run(
        [*argv, "--json", str(file)], cwd=ROOT, capture_output=True, text=True, timeout=scaled(RUN_S), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(file.read_text())
    names = [Railyard.name, Stock.name, StockPlain.name]
    built = [(turn["builder"], turn["links"], turn["namespaces"]) for turn in result["turns"]]
    assert built == list(zip(names, [8, 8, 8], [8, 4, 4], strict=True))  # stock's switches have no namespaces
    railyard, *others = result["turns"]
    for other in others:
        ratios = result["times_railyard"][other["builder"]]
        for step in ("build", "stop", "freed"):
            assert ratios[step] == pytest.approx(other[f"{step}_s"] / railyard[f"{step}_s"])
    assert all(f"│ {name} " in done.stdout for name in names)


@pytest.mark.sandbox
def test_remaining_processes_and_links_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = teardown_check.visible()
    teardown_check.wait_until_gone(before)
    monkeypatch.setattr(teardown_check, "TIMEOUT_S", 0.2)
    process = subprocess.Popen(["sleep", "100"])
    namespaces.create(["d0g0"])
    namespaces.run(["ip", "link", "add", "left0", "type", "veth", "peer", "name", "left1"])
    with pytest.raises(RuntimeError) as error:
        teardown_check.wait_until_gone(before)
    for left in ("interface left0", "interface left1", "namespace d0g0", f"process {process.pid} (sleep)"):
        assert left in str(error.value)


@pytest.mark.sandbox
def test_fence_waits_until_the_kernel_frees_namespaces() -> None:
    before = teardown_check.visible()
    names = [f"n{i}" for i in range(20)]
    namespaces.create(names)
    for name in names:
        namespaces.run(["ip", "link", "add", name, "type", "veth", "peer", "name", "far", "netns", name])
    assert teardown_check.visible() - before == {
        f"{what} {name}" for what in ("interface", "namespace") for name in names
    }
    namespaces.remove(names)
    teardown_check.wait_for_kernel()
    assert teardown_check.visible() == before  # each cable's end here went with the end in its namespace


@pytest.mark.sandbox
def test_namespaces_that_are_kept_are_freed_later() -> None:
    before = teardown_check.visible()
    namespaces.create(["kept", "freed"])
    for name in ("kept", "freed"):
        namespaces.run(["ip", "link", "add", name, "type", "veth", "peer", "name", "far", "netns", name])
    with namespaces.kept(["kept"]):
        namespaces.remove(["kept", "freed"])
        teardown_check.wait_for_kernel()
        assert teardown_check.visible() - before == {"interface kept"}
    teardown_check.wait_for_kernel()
    assert teardown_check.visible() == before


@pytest.mark.sandbox
def test_bridges_are_kept_until_the_switches_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(parse_fabric({"kind": "rail-only", "domains": 2, "rails": 2}), 20_000_000)
    net = FabricNet(plan, datapath_choice(detect())[0])
    net.start()
    bridges = {namespaces.path(bridge).stat().st_ino for bridge in plan.hb_bridges}
    kept = list[set[int]]()
    stop = PrivateSwitch.stop

    def checked(switch: PrivateSwitch) -> None:
        assert not namespaces.path("d0g0").exists()
        kept.append(open_files() & bridges)
        stop(switch)

    monkeypatch.setattr(PrivateSwitch, "stop", checked)
    net.stop()
    assert kept == [bridges, bridges]


def open_files() -> set[int]:
    """Return the inodes of the open files of this process."""
    found = set[int]()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that by which they were listed
            found.add(link.stat().st_ino)
    return found
