"""Hosts of `sweep --on ssh:` that lie, flood, or end early. Each is an ssh server on loopback with real ssh below."""

import asyncio
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard import __version__
from railyard.core.errors import BadInput, MissingRequirement

pytest.importorskip("asyncssh", reason="needs Dask's extra: script/bootstrap cluster")
pytest.importorskip("distributed", reason="needs Dask: script/bootstrap cluster")
import asyncssh

from railyard.experiments.sweep import connecting, keys, ssh

Behaviour = Callable[[Any], Awaitable[None]]
KEYS = keys.make()


class Server(asyncssh.SSHServer):
    """An ssh server that asks for no login."""

    def begin_auth(self, username: str) -> bool:
        return False


class Host:
    """An ssh server with a given behaviour, which notes the commands that it gets."""

    def __init__(self, folder: Path) -> None:
        self.behaviour: Behaviour = silent
        self.commands = list[str]()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        key = asyncssh.generate_private_key("ssh-ed25519")
        self.port = self._call(self._listen(key))
        (folder / ".ssh").mkdir()
        public = key.export_public_key().decode().strip()
        (folder / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {public}\n")
        (folder / ".ssh" / "config").write_text(f"Host h1 h2\n  HostName 127.0.0.1\n  Port {self.port}\n")

    async def _listen(self, key: Any) -> int:
        self._server = await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[key], server_factory=Server, process_factory=self._process, encoding=None
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def _process(self, process: Any) -> None:
        self.commands.append(process.command)
        try:
            await self.behaviour(process)
        finally:
            process.close()

    def _call(self, answer: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(answer, self._loop).result(30)

    async def _end(self) -> None:
        self._server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.05)  # for the tasks to end

    def close(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def silent(process: Any) -> None:
    await asyncio.sleep(60)


def prints(out: bytes = b"", error: bytes = b"", status: int = 0) -> Behaviour:
    """Return the behaviour of a program that prints this, and ends."""

    async def behave(process: Any) -> None:
        await process.stdin.readline()
        process.stdout.write(out)
        process.stderr.write(error)
        process.exit(status)

    return behave


async def ends_before_the_order(process: Any) -> None:
    process.exit(1)


async def cuts_the_connection(process: Any) -> None:
    process.channel.get_connection().abort()


async def floods(process: Any) -> None:
    while not process.stdout.is_closing():
        process.stdout.write(b"x" * 30_000)
        await process.stdout.drain()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        server = Host(folder)
        yield server
        server.close()


@pytest.fixture
def in_one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "START_S", 1.0)


def line_of(where: str) -> str:
    """Return the error of a sweep whose machines can't be started."""
    with pytest.raises(MissingRequirement) as error, ssh.started(where):
        pass
    assert "sweep-ssh" not in [thread.name for thread in threading.enumerate()]
    assert str(error.value).isprintable()
    return str(error.value)


BEHAVIOURS = {
    "ends before the order": ends_before_the_order,
    "prints nothing": prints(),
    "has no Python": prints(error=b"first\nsh: python: not found\n", status=127),
    "prints control characters": prints(error=b"\x1b]0;forged\x07\n"),
    "has no Railyard": prints(error=b"/usr/bin/python: No module named railyard.experiments.sweep.remote\n"),
    "ends in the line": prints(b"railyard-dask {"),
    "half of JSON": prints(b"railyard-dask {\n"),
    "deep JSON": prints(b"railyard-dask " + b"[" * 5000 + b"\n"),
    "a list": prints(b"railyard-dask []\n"),
    "number as address": prints(b'railyard-dask {"address": 1}\n'),
    "address without TLS": prints(b'railyard-dask {"address": "tcp://127.0.0.1:1"}\n'),
    "command in the address": prints(b'railyard-dask {"address": "tls://a:1; touch /tmp/x"}\n'),
    "option in the address": prints(b'railyard-dask {"address": "tls://a:1\\n--spec"}\n'),
    "long line": prints(b"x" * 100_000),
    "endless line": floods,
}


def test_a_host_that_starts_nothing_is_named_with_the_reason(
    host: Host, data_regression: DataRegressionFixture
) -> None:
    lines: dict[str, str] = {}
    for name, behaviour in BEHAVIOURS.items():
        host.behaviour = behaviour
        lines[name] = line_of("ssh:h1,h2").replace(__version__, "VERSION")
    data_regression.check(lines)
    # there are several reasons, by what is lost first
    host.behaviour = cuts_the_connection
    assert line_of("ssh:h1,h2").startswith("--on: Dask ")


def test_a_host_that_says_nothing_is_given_up(host: Host, in_one_second: None) -> None:
    host.behaviour = silent
    assert "within 1 s; try: ssh h1 true" in line_of("ssh:h1")


def test_a_port_that_accepts_and_says_nothing_is_given_up(
    host: Host, in_one_second: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (tmp_path / ".ssh").mkdir()
        config = f"Host mute\n  HostName 127.0.0.1\n  Port {listener.getsockname()[1]}\n"
        (tmp_path / ".ssh" / "config").write_text(config)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert "within 1 s; try: ssh mute true" in line_of("ssh:mute")


def test_key_goes_to_its_host_only_and_as_input(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "make", lambda: KEYS)
    orders = list[bytes]()

    async def serve(process: Any) -> None:
        orders.append(await process.stdin.readline())
        process.stdout.write(b'Last login\nrailyard-dask {"address": "tls://127.0.0.1:1"}\n' + b"x" * 100_000)
        await process.stdin.read()  # until the sweep ends

    host.behaviour = serve
    host.commands.clear()
    with ssh.started("ssh:h1,h2") as (address, own_keys):
        assert (address, own_keys) == ("tls://127.0.0.1:1", KEYS)
    secret = KEYS.private_key.splitlines()[1]
    assert len(host.commands) == 3
    assert all(re.fullmatch(r"\S+ -m railyard\.experiments\.sweep\.remote", command) for command in host.commands)
    assert all(secret.encode() in order for order in orders)
    assert b"tls://127.0.0.1:1" not in orders[0]
    assert all(b'"scheduler":"tls://127.0.0.1:1"' in order for order in orders[1:])


def test_a_host_that_names_a_silent_port_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(connecting, "_LOOK_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tls://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(MissingRequirement, match=f"answers at {address}"):
            connecting.connected_security(address, KEYS)


def test_an_address_without_hosts_is_refused() -> None:
    with pytest.raises(BadInput, match="--on: 'ssh:,'"), ssh.started("ssh:,"):
        pass
