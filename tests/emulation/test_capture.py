"""`capture` on a live run: a ping between two GPUs, recorded at the GPU's end and at the switch's end of a link."""

import subprocess
from collections import Counter
from pathlib import Path

from railyard.experiments.commands.capture import FLOW, read
from tests.emulation.programs import RUN_EXPERIMENT, Program
from tests.emulation.test_cli import BUILT_S, PROMPT, SHELL


def test_ping_is_captured_at_both_ends_of_a_link(tmp_path: Path, slow: float) -> None:
    links = {"d0g1:rail0": tmp_path / "gpu.pcap", "rail1:d0g1": tmp_path / "switch.pcap"}
    capture = [*RUN_EXPERIMENT, "capture", "shell-moe-slowdown"]
    with Program(SHELL) as shell:
        shell.await_text(PROMPT, BUILT_S * slow)
        shell.type("d0g1 ping -i 0.05 d1g1 > /dev/null &")
        for link, out in links.items():
            command = [*capture, link, "--out", str(out), "--seconds", "1"]
            done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith(f"{link}: ")
            assert done.stdout.endswith(f"{out}\n")
            sent = Counter(read(out.read_bytes())[FLOW].itertuples(index=False, name=None))
            assert sent["d0g1", "d1g1", "ICMP", ""] > 5
            assert sent["d1g1", "d0g1", "ICMP", ""] > 5
        for link in links:
            wrong = subprocess.run([*capture, f"{link}0"], capture_output=True, text=True, cwd=tmp_path, check=False)
            assert wrong.returncode == 2
            assert wrong.stderr.startswith(f"error: LINK: '{link}0' is not known")
        shell.type("exit")
        assert shell.end(BUILT_S * slow) == 0
    assert sorted(tmp_path.iterdir()) == sorted(links.values())
