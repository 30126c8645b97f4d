"""`capture` on a live run: a ping between two GPUs, recorded at the GPU's end and at the switch's end of a link."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest

import railyard as ry
from railyard.experiments.commands.capture import FLOW, read
from tests.emulation.programs import RUN_EXPERIMENT, finished


@pytest.mark.fabric(kind="rail-only", domains=2, rails=2, rail_rate="20Mbit")
def test_ping_is_captured_at_both_ends_of_a_link(fabric: ry.Fabric, tmp_path: Path) -> None:
    links = {"d0g1:rail0": tmp_path / "gpu.pcap", "rail1:d0g1": tmp_path / "switch.pcap"}
    capture = [*RUN_EXPERIMENT, "capture", "script"]
    ping = ["ping", "-i", "0.05", fabric.addresses["d1g1"]]
    with fabric.processes("d0g1").popen(ping, stdout=subprocess.DEVNULL):
        for link, out in links.items():
            command = [*capture, link, "--out", str(out), "--seconds", "1"]
            done = finished(command, 60, cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith(f"{link}: ")
            assert done.stdout.endswith(f"{out}\n")
            sent = Counter(read(out.read_bytes())[FLOW].itertuples(index=False, name=None))
            assert sent["d0g1", "d1g1", "ICMP", ""] > 5
            assert sent["d1g1", "d0g1", "ICMP", ""] > 5
    for link in links:
        wrong = finished([*capture, f"{link}0"], 60, cwd=tmp_path)
        assert wrong.returncode == 2
        assert wrong.stderr.startswith(f"error: LINK: '{link}0' is not known")
    assert sorted(tmp_path.iterdir()) == sorted(links.values())
