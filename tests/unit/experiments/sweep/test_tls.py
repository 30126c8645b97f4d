"""Attacks on the connections of a sweep between machines, without the key and with it.

    strangers, impostors ── loopback ── scheduler and worker, started as docs/sweeps.md says ── a sweep's client

All of them are real processes.
"""

import re
import secrets
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.errors import MissingRequirement
from tests.dask_programs import Programs
from tests.emulation.fabrics import eventually

pytest.importorskip("distributed", reason="needs Dask: script/bootstrap cluster")
from railyard.experiments.sweep import keys

DOCS = (Path(__file__).parents[4] / "docs" / "sweeps.md").read_text()
SCHEDULER, WORKER = [line.split() for line in re.findall(r"^dask (.*)$", DOCS, re.MULTILINE)]
CLIENT = "tests.dask_client"
GOOD = "machines: 1 workers: 1 ends: True\n"
IDLE_SOCKETS = 200
PORT = re.compile(r"Scheduler at: +(tcp|tls)://.*:(\d+)$", re.MULTILINE)


class Place:
    """A scheduler and a worker with a key, and another scheduler without one."""

    def __init__(self, programs: Programs) -> None:
        self.programs, self.folder = programs, programs.folder
        self.key_file, self.other_file = self.folder / "sweep.pem", self.folder / "other.pem"
        for path in (self.key_file, self.other_file):
            with suppress(MissingRequirement):  # it says that the file was made
                keys.load(path)
        self.port = self._start("scheduler", self._words(SCHEDULER))
        self.plain_port = self._start("plain", ["--dashboard-address", "localhost:0"])
        self.address = f"tls://127.0.0.1:{self.port}"
        self.start_worker("worker", self._words(WORKER))
        eventually(lambda: "Registered to" in programs.log("worker"), 60)

    def _words(self, command: list[str]) -> list[str]:
        """Return the words of a documented command, with this scheduler and this key file."""
        words = [str(self.key_file) if word == "sweep.pem" else word for word in command[1:]]
        return [self.address if word == "tls://SCHEDULER:8786" else word for word in words]

    def _start(self, name: str, words: list[str]) -> int:
        module = "distributed.cli.dask_scheduler"
        self.programs.start(name, module, *words, "--host", "127.0.0.1", "--port", "0")
        eventually(lambda: PORT.search(self.programs.log(name)), 60)
        match = PORT.search(self.programs.log(name))
        assert match
        return int(match[2])

    def start_worker(self, name: str, words: list[str]) -> int:
        return self.programs.start(name, "distributed.cli.dask_worker", *words)

    def client(self, *words: str, **environment: str) -> tuple[int, str]:
        return self.programs.run("client", CLIENT, *words, environment=environment)

    def assert_works(self) -> None:
        """A sweep with the key still finds one machine and one worker, and ends in order."""
        assert self.client(self.address, str(self.key_file)) == (0, GOOD)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with TemporaryDirectory() as name, Programs(Path(name)) as programs:
        yield Place(programs)


def test_a_client_with_the_key_reaches_the_worker(place: Place) -> None:
    place.assert_works()


def test_a_client_that_cannot_connect_gets_one_line(place: Place, data_regression: DataRegressionFixture) -> None:
    key_file = str(place.key_file)
    names = ("CA_FILE", "CLIENT__CERT", "CLIENT__KEY")

    def configured(file: str) -> dict[str, str]:
        return {f"DASK_DISTRIBUTED__COMM__TLS__{name}": str(place.folder / file) for name in names}

    answers = {
        "another key": place.client(place.address, str(place.other_file)),
        "no key": place.client(place.address),
        "no TLS": place.client(f"tcp://127.0.0.1:{place.port}"),
        "scheduler without TLS": place.client(f"tls://127.0.0.1:{place.plain_port}", key_file),
        "port 65536": place.client("tls://127.0.0.1:65536", key_file),
        "port 0": place.client("tcp://127.0.0.1:0", key_file),
        "colon in the host": place.client("tls://a:b:1", key_file),
        "another key in Dask's configuration": place.client(place.address, **configured("other.pem")),
        "missing key in Dask's configuration": place.client(place.address, **configured("none.pem")),
    }
    assert place.client(place.address, **configured("sweep.pem")) == (0, GOOD)
    lines: dict[str, str] = {}
    for case, (status, output) in answers.items():
        assert output.count("\n") == 1, output
        line = output.strip().replace(str(place.folder), "FOLDER").replace(f":{place.plain_port}", ":PLAIN")
        lines[case] = f"status {status}: {line}".replace(f":{place.port}", ":PORT")
    data_regression.check(lines)


@pytest.mark.parametrize("kind", ["no key", "another key", "plain"])
def test_a_strangers_worker_cannot_join(place: Place, kind: str) -> None:
    words = ["--nthreads", "1", "--no-nanny", "--resources", "railyard=1", "--death-timeout", "3"]
    address = f"tcp://127.0.0.1:{place.port}" if kind == "plain" else place.address
    if kind == "another key":
        words += keys.dask_options(place.other_file).split()
    before = place.programs.log("scheduler")
    status, output = place.programs.run("stranger", "distributed.cli.dask_worker", address, *words)
    assert status != 0
    assert "Registered to" not in output
    assert "Register worker" not in place.programs.log("scheduler").removeprefix(before)
    place.assert_works()


def connected(place: Place) -> socket.socket:
    return socket.create_connection(("127.0.0.1", place.port), 10)


def with_key(place: Place) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=place.key_file)
    context.check_hostname = False
    context.load_cert_chain(place.key_file)
    return context.wrap_socket(connected(place))


HELLO = bytes.fromhex("160301020001")  # the header of a TLS record of 512 bytes, and the first byte of a ClientHello


@pytest.mark.parametrize(
    "words",
    [
        secrets.token_bytes(100_000),
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        HELLO,
        HELLO + bytes(511),
        HELLO + secrets.token_bytes(511),
        b"\x80" + b"\xff" * 70_000,
    ],
    ids=["random", "http", "half a hello", "zeros", "random hello", "long record"],
)
def test_garbage_on_the_port_harms_nobody(place: Place, words: bytes) -> None:
    with ExitStack() as stack:
        for _ in range(10):
            connection = stack.enter_context(connected(place))
            with suppress(OSError):  # it may be closed already
                connection.sendall(words)
        place.assert_works()


def test_idle_sockets_keep_nobody_out(place: Place) -> None:
    with ExitStack() as stack:
        for _ in range(IDLE_SOCKETS):
            stack.enter_context(connected(place))
        place.assert_works()


@pytest.mark.parametrize("moment", ["connected", "in the hello", "after TLS", "in a message", "huge message"])
def test_a_worker_that_dies_in_the_handshake_harms_nobody(place: Place, moment: str) -> None:
    """Its connections are reset at this moment. From the third on, it has the key."""
    for _ in range(5):
        is_encrypted = moment not in ("connected", "in the hello")
        connection = with_key(place) if is_encrypted else connected(place)
        if moment == "in the hello":
            connection.sendall(HELLO)
        if moment == "in a message":
            connection.sendall(struct.pack("<QQ", 1000, 1))
        if moment == "huge message":
            connection.sendall(struct.pack("<QQ", 2**62, 2**62))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # so that it resets
        connection.close()
    place.assert_works()


def test_an_impostor_with_another_certificate_gets_no_word(place: Place) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place.other_file)
    received = list[bytes]()

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = listener.accept()
                with suppress(OSError), connection, context.wrap_socket(connection, server_side=True) as encrypted:
                    received.append(encrypted.recv(1000))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=[listener])
        thread.start()
        address = f"tls://127.0.0.1:{listener.getsockname()[1]}"
        status, output = place.client(address, str(place.key_file))
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert (status, output.count("\n")) == (3, 1), output
    assert f"{address} has another certificate" in output
    assert b"".join(received) == b""


def test_the_key_is_in_no_command_line_environment_or_log(place: Place) -> None:
    place.assert_works()
    secret = keys.load(place.key_file).private_key.splitlines()[1].encode()
    for process in psutil.process_iter():
        for name in ("cmdline", "environ"):
            with suppress(OSError):  # it has ended
                assert secret not in Path(f"/proc/{process.pid}/{name}").read_bytes(), process
    for path in place.folder.rglob("*"):
        if path.is_file() and path != place.key_file:
            assert secret not in path.read_bytes(), path


OLD = "import sys; sys.modules['railyard.experiments.sweep.worker'] = None"
"""Makes of a worker one of a version that lacks the module."""


def test_a_worker_of_an_older_version_is_named_and_gets_no_runs(place: Place) -> None:
    preload = place.folder / "old.py"
    preload.write_text(OLD)
    old = place.start_worker("old", [*place._words(WORKER), "--preload", str(preload)])
    try:
        eventually(lambda: "Registered to" in place.programs.log("old"), 60)
        status, output = place.client(place.address, str(place.key_file))
    finally:
        place.programs.end(old)
    refusal, good = output.splitlines(keepends=True)
    assert re.search(r"the worker tls://\S+ has another version", refusal)
    assert good == GOOD
    assert status == 0
    eventually(lambda: place.client(place.address, str(place.key_file)) == (0, GOOD), 30)
