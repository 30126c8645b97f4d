"""An experiment in a script: run with overrides, its tables as pandas DataFrames, and its folder read back."""

import tempfile
from pathlib import Path

import railyard as ry

with tempfile.TemporaryDirectory() as folder:
    changes = {"repeats": 2, "domains": 2, "rails": 2, "rail_rate": "20Mbit", "duration": "300ms", "attempts": 1}
    run = ry.run("collectives", overrides=changes, out=Path(folder, "run"))
    print(run.results.groupby(["workload", "fabric"])["ratio"].median())
    print(run.verdict, run.passed, [check.name for check in run.checks if not check.passed])
    print(ry.load(Path(folder, "run")).recoveries)
