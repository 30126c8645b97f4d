"""A Mininet topology of a user's, the example of docs/mininet-users.md: workload, fault and shell, by its hosts' names.

        s1
      /    \\
    s2      s3
   /  \\    /  \\
  h1  h2  h3  h4
"""

from pathlib import Path

from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS
from tests.emulation.programs import ROOT, RUN_EXPERIMENT, Program, finished
from tests.emulation.runs import Stored, overrides

TOPO = f"{ROOT}/docs/examples/mininet/two_racks.py:TwoRacks"


def test_topology_carries_the_default_experiment(tmp_path: Path) -> None:
    argv = [*RUN_EXPERIMENT, "run", "--topo", f"{TOPO},bw=10", "--out", str(tmp_path / "out")]
    done = finished([*argv, *overrides("attempts=1", "workloads.*.duration=300ms")], 240.0)
    stored = Stored(tmp_path / "out", done.stdout + done.stderr)
    assert "Traceback" not in stored.output
    (fabric,) = stored.run.fabrics
    assert (fabric.kind, fabric.switches, fabric.rail_bps) == ("TwoRacks", ("s1", "s2", "s3"), 10_000_000)
    stored.assert_recovered(faults=1)
    assert not stored.run.rows(CONNECTIVITY_CHECKS)[0].mismatches
    assert (stored.folder / "plugins/TwoRacks.py").exists()
    predicted = finished([*RUN_EXPERIMENT, "predict", str(stored.folder / "spec.yaml"), "--json"], 60.0)
    assert predicted.returncode == 0, predicted.stderr


def test_shell_knows_the_names_of_the_topology() -> None:
    # quickstart's faults name GPUs that this topology lacks, but a shell injects none
    with Program([*RUN_EXPERIMENT, "shell", "quickstart", "--topo", f"{TOPO},bw=10"]) as shell:
        shell.await_text("mininet>", 60.0)
        shell.type("h1 ping -c 1 -W 10 h4")
        shell.await_text(" 0% packet loss", 20.0)
        shell.type("exit")
