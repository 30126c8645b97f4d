"""Messages between a script and its fabric: records and errors arrive as they were sent."""

import socket
from collections.abc import Iterator

import pytest

import railyard as ry
from railyard.core.worker import Message, Pipe
from railyard.experiments.api import experiment
from railyard.experiments.api import messages as m
from tests.unit.sample_runs import sample_run


@pytest.fixture
def pipes() -> Iterator[tuple[Pipe, Pipe]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Pipe(ours, [m.Answer, m.Refused], reads_ahead=True), Pipe(theirs, m.REQUESTS)


def test_records_of_a_run_arrive_unchanged(pipes: tuple[Pipe, Pipe]) -> None:
    run, (ours, theirs) = sample_run(repeats=1), pipes
    theirs.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_000_000)
    theirs.send(m.Answer(number=3, value=run))
    received = ours.receive()
    assert (received.number, received.value) == (3, run)


def test_request_survives_the_socket(pipes: tuple[Pipe, Pipe]) -> None:
    ours, theirs = pipes
    request: Message = m.RunWorkload(number=1, workload={"kind": "collective"}, repeats=2, seed=3)
    ours.send(request)
    assert theirs.receive() == request


@pytest.mark.parametrize(
    "error",
    [
        ry.BadInput("domains", 1, "must be 2 or more"),
        ry.BadInput("target", "d9g9", "is no GPU"),
        ry.MachineLacks("etcd is missing", "sudo script/bootstrap"),
        ry.CheckFailed("link-down at d0g1 had no effect"),
        ry.RailyardError("the controller died"),
        KeyboardInterrupt(),
    ],
)
def test_error_arrives_with_its_type_and_text(pipes: tuple[Pipe, Pipe], error: BaseException) -> None:
    ours, theirs = pipes
    theirs.send(m.Refused.of(7, error))
    received = ours.receive().error
    assert (type(received), str(received)) == (type(error), str(error))
    assert vars(received).keys() >= vars(error).keys()


def test_field_of_bad_input_has_no_section_of_an_experiment() -> None:
    error = m.Refused.of(1, ry.BadInput("faults.0.target", "d9g9", "is no GPU")).error
    assert isinstance(error, ry.BadInput)
    assert error.field == "target"


def test_defect_is_described_in_one_line() -> None:
    error = m.Refused.of(1, ZeroDivisionError("division by zero")).error
    assert isinstance(error, ry.RailyardError)
    assert str(error).startswith("ZeroDivisionError: division by zero (unexpected")


@pytest.mark.parametrize(
    ("status", "line", "kind"),
    [
        (2, "error: fabrics.0.rail_rate: '10Gbit' is too much", ry.BadInput),
        (3, "error: etcd is missing; sudo script/bootstrap", ry.MachineLacks),
        (1, "error: the controller died", ry.RailyardError),
        (137, "", ry.RailyardError),
    ],
)
def test_failed_run_raises_the_error_of_its_status(status: int, line: str, kind: type[ry.RailyardError]) -> None:
    error = experiment._failure(status, line)
    assert type(error) is kind
    assert str(error) in line or not line
    assert error.exit_status == status
