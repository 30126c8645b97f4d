"""A tiny multi-rail experiment by the command line: two nodes, two rails, an allreduce, a NIC cut, a training.

  n0    n1
 |  \\  /  |
 |   \\/   |
 |   /\\   |
rail0   rail1
"""

from pathlib import Path

from railyard.experiments.measures.allreduce.records import AllreduceResults
from tests.emulation.programs import RUN_EXPERIMENT, Program, finished
from tests.emulation.runs import run_experiment
from tests.emulation.test_cli import BUILT_S, PROMPT

TINY = {
    "name": "tiny",
    "attempts": 1,
    "fabrics": [{"kind": "multi-rail", "nodes": 2, "rails": [{"kind": "tcp", "rate": "40Mbit"}] * 2}],
    "workloads": [
        {
            "kind": "allreduce",
            "policies": ["nezha", "single"],
            "sizes": ["2KiB", "8MiB"],
            "operations": 10,
            "learning": 10,
            "point": "50ms",
        },
        {"kind": "training", "model": "alexnet", "volume": 0.02, "steps": 1, "policies": ["nezha"], "learning": 10},
    ],
    "faults": [{"kind": "link-down", "target": "tcp1 of n1", "size": "8MiB", "after": "800ms", "learning": 10}],
}

FOUR_NODES = "fabrics=[{kind: multi-rail, nodes: 4, rails: [{kind: tcp, rate: 10Mbit}, {kind: tcp, rate: 10Mbit}]}]"


def test_run_measures_all_and_every_sum_is_right(tmp_path: Path) -> None:
    stored = run_experiment(TINY, tmp_path)
    results = AllreduceResults.of(stored.run)
    measured = {(point.policy, point.size) for point in results.points}
    assert measured == {(policy, size) for policy in ("nezha", "single:tcp0") for size in (2048, 8 * 2**20)}
    assert all(point.wrong == 0 and point.checked > 0 and point.mean_s > 0 for point in results.points)
    (cut,) = results.cuts
    assert (cut.wrong, cut.error) == (0, "")
    assert cut.home_ms is not None, "after its repair the rail carries again"
    assert {rates.link for rates in results.rates} == {"tcp0", "tcp1"}
    (training,) = results.trainings
    assert training.step_s > training.compute_s > 0
    rows = stored.rows("results.csv")
    metrics = {"completion_time", "throughput", "iteration_time", "samples_per_s", "operation_time_longest"}
    assert {row["metric"] for row in rows} >= metrics
    assert "allreduce 8MiB" in {row["workload"] for row in rows}
    (recovery,) = stored.rows("recovery.csv")
    assert (recovery["fault"], recovery["target"], recovery["recovered"]) == ("link-down", "tcp1 of n1", "yes")
    stored.assert_only_the_machine_failed()
    assert "tcp+tcp, 2 nodes" in stored.output


def test_live_commands_work_on_a_multi_rail_fabric(tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        argv = [*RUN_EXPERIMENT, *words]
        done = finished(argv, 60, cwd=tmp_path)
        return done.returncode, done.stdout + done.stderr

    live, pcap = "shell-multirail-quick", tmp_path / "n0.pcap"
    with Program([*RUN_EXPERIMENT, "shell", "multirail-quick", "-o", FOUR_NODES]) as shell:
        shell.await_text(PROMPT, BUILT_S)
        shell.type("n0 ping -i 0.05 -c 200 n1 > /dev/null &")
        status, text = run("ps")
        assert status == 0
        assert live in text
        assert "4 nodes" in text
        assert run("exec", live, "n0", "ping", "-c", "1", "-W", "5", "n3")[0] == 0
        assert run("exec", live, "rail1", "ovs-vsctl", "br-exists", "rail1") == (0, "")
        status, text = run("exec", live, "d0g0", "true")
        assert (status, text.startswith(f"error: GPU: 'd0g0' is not in {live}: allowed are n0, ")) == (2, True)
        status, text = run("capture", live, "n0:rail0", "--seconds", "1", "--out", str(pcap))
        assert (status, "n0    n1  ICMP" in text, pcap.exists()) == (0, True, True), text
        status, text = run("trace", live, "n0", "n1")
        assert (status, text.startswith(f"error: RUN: '{live}' has no GPUs to trace between")) == (2, True)
        shell.type("exit")
        assert shell.end(BUILT_S) == 0
