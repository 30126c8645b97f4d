"""The benchmark of allreduces by processor time: its table, and the duty cycle of its nodes."""

import time

from rich.console import Console

from benchmarks import allreduce_cores
from benchmarks.allreduce_cores import LoopbackRanks, RingThroughput
from tests.unit.shown import table_rows


def test_table_compares_two_rails_with_a_single() -> None:
    rows = [
        RingThroughput(rails=1, cores=0.5, throughputs=(90.0, 100.0, 110.0)),
        RingThroughput(rails=2, cores=0.5, throughputs=(120.0,)),
        RingThroughput(rails=1, cores=1.0, throughputs=(150.0,)),
        RingThroughput(rails=2, cores=1.0, throughputs=(300.0,)),
    ]
    console = Console(width=120)
    with console.capture() as capture:
        console.print(allreduce_cores.table_of(rows))
    shown = table_rows(capture.get())
    assert {"100", "(90–110)", "1.20", "40%"} <= set(shown["0.5"])
    assert {"2.00", "100%"} <= set(shown["1"])


class RecordedRanks(LoopbackRanks):
    """Ranks without processes, which record when they are stopped and continued."""

    def __init__(self) -> None:
        self.signals: list[str] = []

    def pause(self) -> None:
        self.signals.append("pause")

    def resume(self) -> None:
        self.signals.append("resume")


def test_nodes_run_again_after_a_part_of_every_period() -> None:
    ranks = RecordedRanks()
    with ranks.running_part(0.25):
        time.sleep(3 * allreduce_cores.PERIOD_S)
    assert ranks.signals[:2] == ["pause", "resume"]
    assert ranks.signals[-1] == "resume"
    with ranks.running_part(1.0):
        assert len(ranks.signals) >= 2
