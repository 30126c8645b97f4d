"""Bytes of a real run by NIC, as its operations make them, beside what was counted."""

import pytest

from railyard.core.errors import BadInput
from railyard.experiments.api.specs import FabricSpec
from railyard.experiments.real_run import carried, carried_table, parse_shape
from railyard.workloads.recording.command_line import TrainingCommand
from railyard.workloads.recording.launcher import Recording, Request

REQUEST = Request(TrainingCommand("python", "train.py", False, ()), 4, 2, "h100", None, 4, False, 60.0, real=True)


def test_shape_of_a_fabric_is_parsed() -> None:
    spec = parse_shape("rail-optimized:2x4", 8)
    assert (spec.kind, spec.domains, spec.rails) == ("rail-optimized", 2, 4)
    assert parse_shape("2x4", 8).kind == "rail-only"


@pytest.mark.parametrize("text", ["2x3", "8", "2x4x1", "torus:2x4"])
def test_a_wrong_shape_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_shape(text, 8)


def test_forwarded_bytes_count_at_the_gpu_that_forwards() -> None:
    """Rank 2, d1g0, sends to rank 1, d0g1: first over rail 0's or rail 1's switch, then over a HB domain."""
    program = [{"op": "send", "communicator": "world", "bytes": 1000, "peer": 1}]
    real = Recording(REQUEST, {"world": ((0, 1, 2, 3),)}, {}, {}, None, "2.13.0", {2: program})
    spec = FabricSpec(kind="rail-only", domains=2, rails=2)
    gpus = ("d0g0", "d0g1", "d1g0", "d1g1")
    sent = {(gpu, nic): 2000 for gpu in gpus for nic in ("hb0", "rail0")}
    rows = carried(spec, real, sent)
    expected = {(row.gpu, row.nic): row.expected for row in rows if row.expected}
    assert sum(expected.values()) == 2000
    assert sum(size for (_, nic), size in expected.items() if nic == "rail0") == 1000
    table = carried_table(rows, spec.mtu)
    assert table.row_count == 8
