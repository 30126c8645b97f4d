"""Fabrics over several machines beside the same on one, and a large one. Machines are network namespaces here."""

import signal
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from railyard.core.records import Recovered
from railyard.experiments.measures.faults.records import RECOVERIES
from railyard.results.analysis.comparison import MIN_VALUES, values_of
from railyard.results.analysis.fidelity import judge
from railyard.results.runs.records import Run
from tests.emulation.machines import Machines, machines
from tests.emulation.programs import RUN_EXPERIMENT
from tests.emulation.runs import Stored, run_command

pytestmark = pytest.mark.alone
RUN_S = 280.0
TRIES = 6
LOADS = [
    {"kind": "collective", "collective": "all-to-all", "algorithm": "two-phase", "duration": "3s"},
    {"kind": "collective", "collective": "all-reduce", "algorithm": "ring", "duration": "3s"},
]
CUT = {"kind": "link-down", "target": "d2g0", "at": "700ms", "repair": "1s"}
FAULTS = {"faults": [CUT], "fault_repeats": 10, "heartbeats": "off", "reroute": "on"}


def run_on(joined: Machines, count: int, folder: Path, keys: dict[str, Any]) -> Path:
    """Run an experiment on that many machines; return its folder."""
    hosts = {"hosts": count, "underlay": {"interface": "eth0"}} if count > 1 else {}
    folder.mkdir()
    argv = run_command({"name": "compared", **hosts, **keys}, folder, "--no-queue")
    with ExitStack() as stack:
        for number in range(2, count + 1):
            stack.enter_context(joined.agent(number, "--once"))
        run = stack.enter_context(joined.program(1, *argv))
        assert run.end(RUN_S) in (0, 1), run.output
    return folder / "out"


def check_recovered(run: Run) -> None:
    """Every fault has recovered, unless its interval is invalid because of the machine; TCP lost nothing at any."""
    disturbed = judge(run).disturbed
    for row in run.rows(RECOVERIES):
        assert row.recovered is not Recovered.NO or row.interval in disturbed, row
        assert row.lost_bytes == row.connections_lost == 0, row


def believed(
    joined: Machines, count: int, folder: Path, keys: dict[str, Any], metrics: Sequence[str]
) -> dict[str, list[float]]:
    """Return the values of each row whose own verdict is ok, as `compare` takes them.

    It runs the experiment again while a row has too few of them, and fails after `TRIES` runs.
    """
    found = defaultdict[str, list[float]](list)
    for attempt in range(TRIES):
        out = run_on(joined, count, folder / f"on-{count}-{attempt}", keys)
        Stored(out).assert_no_byte_is_missing()
        Stored(out).assert_ports_counted_every_byte()
        run = Stored(out).run
        check_recovered(run)
        for key, values in values_of(run).items():
            if key.metric in metrics:
                found[f"{key.label} {key.metric}"] += values.believed
        if found and all(len(values) >= MIN_VALUES for values in found.values()):
            return dict(found)
    pytest.fail(f"the machine was too busy: { ({row: len(values) for row, values in found.items()}) } values are ok")


@pytest.mark.parametrize(("size", "rate"), [(4, "15Mbit"), (8, "2Mbit")])
def test_collectives_take_as_long_on_several_machines(size: int, rate: str, tmp_path: Path) -> None:
    fabric = {"kind": "rail-only", "domains": size, "rails": size, "rail_rate": rate}
    keys = {"fabrics": [fabric], "workloads": LOADS, "repeats": MIN_VALUES}
    with machines(3) as joined:
        took = {n: believed(joined, n, tmp_path, keys, ["completion_time"]) for n in (1, 2, 3)}
    ratios = {n: {row: median(took[n][row]) / median(values) for row, values in took[1].items()} for n in (2, 3)}
    print(f"{size}x{size}, of one machine: {ratios}; values: {took}")
    for count in (2, 3):
        assert ratios[count] == pytest.approx(dict.fromkeys(took[1], 1.0), abs=0.02), count


@pytest.mark.parametrize(("size", "rate"), [(4, "5Mbit"), (8, "1Mbit")])
def test_recovery_takes_as_long_on_several_machines(size: int, rate: str, tmp_path: Path) -> None:
    fabric = {"kind": "rail-only", "domains": size, "rails": size, "rail_rate": rate}
    steps = ("detect_ms", "decided_ms", "reroute_ms", "first_packet_ms")
    with machines(3) as joined:
        took = {n: believed(joined, n, tmp_path, {"fabrics": [fabric], **FAULTS}, steps) for n in (1, 2, 3)}
    assert not [row for found in took.values() for row, values in found.items() if inf in values], "a step never came"
    medians = {n: {row: median(values) for row, values in found.items()} for n, found in took.items()}
    print(f"{size}x{size}: {medians}")
    for count in (2, 3):
        assert medians[count] == pytest.approx(medians[1], abs=5.0), count


def test_faults_of_each_kind_on_two_machines(tmp_path: Path) -> None:
    """Machine 2 has the domains 2 and 3, and the rail switches 1 and 3. A fault without effect would fail the run.

    Only heartbeats, which several machines can't have, detect that an HB port is down.
    """
    fabric = {"kind": "rail-only", "domains": 4, "rails": 4, "rail_rate": "5Mbit"}
    targets = {
        "link-down": "d0g1", "link-slow": "d2g0", "link-flapping": "d2g2", "hb-port-down": "d3g1",
        "rail-switch-crash": "rail1", "rail-switch-reboot": "rail3", "gpu-crash": "d3g0", "server-crash": "hb2",
    }  # fmt: skip
    faults = [{"kind": kind, "target": target, "at": "700ms", "repair": "1s"} for kind, target in targets.items()]
    with machines(2) as joined:
        out = run_on(
            joined, 2, tmp_path / "on-2", {"fabrics": [fabric], **FAULTS, "faults": faults, "fault_repeats": 1}
        )
    stored = Stored(out)
    found = {row["fault"]: row for row in stored.rows("recovery.csv")}
    for kind, row in found.items():
        print(kind, {step: row[step] for step in ("detect_ms", "first_packet_ms", "goodput_ms", "recovered")})
    assert list(found) == list(targets), stored.summary["reasons"]
    assert (found["hb-port-down"]["detect_ms"], found["hb-port-down"]["recovered"]) == ("", "no")
    is_rerouted = set(targets) - {"link-slow", "link-flapping", "hb-port-down"}
    assert {kind for kind, row in found.items() if row["recovered"] in ("yes", "unaffected")} >= is_rerouted


def test_a_thousand_gpus_are_built_pinged_across_and_taken_down(tmp_path: Path) -> None:
    fabric = {"kind": "rail-only", "domains": 128, "rails": 8, "rail_rate": "auto"}
    load = {"kind": "collective", "collective": "all-reduce", "algorithm": "ring", "duration": "60s"}
    keys = {"name": "large", "fabrics": [fabric], "workloads": [load], "attempts": 1}
    keys |= {"hosts": 4, "underlay": {"interface": "eth0", "wait": "60s"}}
    with machines(4) as joined, ExitStack() as stack:
        agents = [stack.enter_context(joined.agent(number, "--once")) for number in (2, 3, 4)]
        run = stack.enter_context(joined.program(1, *run_command(keys, tmp_path, "--no-queue")))
        run.await_text("calibrating", RUN_S)
        for far in ("d32g1", "d64g2", "d96g3", "d127g7"):  # a domain of each other machine
            ping = [*RUN_EXPERIMENT, "exec", "large", "d0g0", "ping", "-c", "2", "-W", "5", far]
            print(joined.output(1, *ping).strip().splitlines()[-2])
        run.process.send_signal(signal.SIGINT)
        assert run.end(120.0) == 130, run.output
        assert [agent.end(60.0) for agent in agents] == [0, 0, 0]
        for number in range(1, 5):
            assert "vxlan" not in joined.output(number, "ip", "-d", "link")
    print(next(line for line in run.output.splitlines() if "building" in line))
