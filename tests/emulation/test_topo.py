"""A Mininet topology of a user's, the example of docs/mininet-users.md: workload, fault and shell, by its hosts' names.

        s1
      /    \\
    s2      s3
   /  \\    /  \\
  h1  h2  h3  h4
"""

from pathlib import Path

from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS, RECOVERIES
from railyard.results import run_folder
from tests.emulation.programs import ROOT, RUN_EXPERIMENT, Program, finished

TOPO = f"{ROOT}/docs/examples/mininet/two_racks.py:TwoRacks"


def test_topology_carries_the_default_experiment(tmp_path: Path, slow: float) -> None:
    argv = [*RUN_EXPERIMENT, "run", "--topo", f"{TOPO},bw=10", "--out", str(tmp_path / "out"), "-o", "attempts=1"]
    done = finished([*argv, "-o", "workloads.*.duration=300ms"], 240.0 * slow)
    assert (tmp_path / "out/summary.json").exists(), done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    run = run_folder.load(tmp_path / "out")
    (fabric,) = run.fabrics
    assert (fabric.kind, fabric.switches, fabric.rail_bps) == ("TwoRacks", ("s1", "s2", "s3"), 10_000_000)
    assert run.flows
    assert all(flow.delivered == flow.bytes for flow in run.flows)
    (check, *_) = run.rows(CONNECTIVITY_CHECKS)
    assert not check.mismatches
    assert len(run.rows(RECOVERIES)) == 1
    assert (tmp_path / "out/plugins/TwoRacks.py").exists()
    predicted = finished([*RUN_EXPERIMENT, "predict", str(tmp_path / "out/spec.yaml"), "--json"], 60.0 * slow)
    assert predicted.returncode == 0, predicted.stderr


def test_shell_knows_the_names_of_the_topology(slow: float) -> None:
    # quickstart's faults name GPUs that this topology lacks, but a shell injects none
    with Program([*RUN_EXPERIMENT, "shell", "quickstart", "--topo", TOPO]) as shell:
        shell.await_text("mininet>", 60.0 * slow)
        shell.type("h1 ping -c 1 -W 10 h4")
        shell.await_text(" 0% packet loss", 20.0 * slow)
        shell.type("exit")
