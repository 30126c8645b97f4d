"""Attacks of a hostile Dask worker on the process that calls a sweep: none runs code in it.

The scheduler, the worker (another user) and the sweep's client are real processes on loopback.
"""

import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest

from railyard.experiments.sweep.answers import MOST_ANSWER_BYTES, OUTCOME, BadAnswer, Outcome, files, read
from railyard.experiments.sweep.machine import identify
from tests.emulation.fabrics import eventually

ROOT = Path(__file__).parents[4]
HOSTILE = """
import os, pickle
from distributed import get_worker
from railyard.experiments.sweep import machine, worker

class Evil:
    def __init__(self, name):
        self.name = name
    def __reduce__(self):
        return exec, (f"import os, sys; open('{folder}/{self.name}-%d' % os.getpid(), 'w').close()",)

class EvilError(Exception):
    def __reduce__(self):
        return Evil("exception").__reduce__()

def do(task):
    if task.name == "result":
        return Evil("result")
    if task.name == "exception":
        raise EvilError
    if task.name == "event":
        forged = pickle.dumps(Evil("event"))
        get_worker().log_event("warn", {"message": forged, "category": forged})
        get_worker().log_event("print", {"args": ("\\x1b]0;forged\\x07",), "file": 1})
    return b"junk"

def stop(sweep):
    return Evil("stop")

worker.do, machine.stop = do, stop
open("{folder}/ready", "w").close()
"""
CLIENT = """
import json, os, sys
from railyard.experiments.sweep.cluster import Cluster
from railyard.experiments.sweep.machine import Task
cluster = Cluster(sys.argv[1])
(name,) = cluster.names()
for attack in sys.argv[2:]:
    try:
        print(cluster.submit(name, Task(attack, {"name": attack})).result())
    except Exception as error:
        print(attack, cluster.lost(error) if type(error).__name__ == "Lost" else error)
print("pid", os.getpid(), cluster.stop())
cluster.close()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder that every user can write to, which pytest's own can't be."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture
def hostile(folder: Path) -> Iterator[str]:
    """Return the address of a scheduler with a worker of another user that attacks."""
    pytest.importorskip("distributed", reason="needs Dask: script/bootstrap cluster")
    preload = folder / "hostile.py"
    preload.write_text(HOSTILE.replace("{folder}", str(folder)))
    address_file = folder / "scheduler.json"
    scheduler = ["dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file"]
    worker = ["dask_worker", "--nthreads", "1", "--no-nanny", "--no-dashboard", "--resources", "railyard=1"]
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    with ExitStack() as stack:
        start(stack, folder, [], *scheduler, str(address_file))
        eventually(lambda: address_file.exists() and address_file.stat().st_size > 0, 30)
        address = str(json.loads(address_file.read_text())["address"])
        start(stack, folder, user, *worker, address, "--preload", str(preload))
        eventually((folder / "ready").exists, 60)
        yield address


def start(stack: ExitStack, folder: Path, enter: list[str], program: str, *arguments: str) -> None:
    argv = [*enter, sys.executable, "-m", f"distributed.cli.{program}", *arguments]
    environment = os.environ | {"TMPDIR": str(folder), "HOME": str(folder)}
    output = subprocess.DEVNULL
    process = stack.enter_context(subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=output, stderr=output))
    stack.callback(process.kill)


def test_no_attack_of_a_worker_runs_code_in_the_sweep(hostile: str, folder: Path) -> None:
    attacks = ["result", "exception", "event", "junk"]
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, hostile, *attacks], cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=100,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "result it answered with a pickled object, which isn't read",
        "exception its worker is gone",
        "event its answer is no run's: JSON: Invalid JSON: expected value at line 1 column 1",
        "junk its answer is no run's: JSON: Invalid JSON: expected value at line 1 column 1",
    ], (done.stdout, done.stderr)
    _, pid, is_stopped = lines[4].split()
    assert is_stopped == "False"
    assert [path.name for path in folder.glob(f"*-{pid}")] == []
    assert "forged" not in done.stdout + done.stderr


GUARD = """
import pickle, sys
from distributed.protocol import dumps, loads, to_serialize
from distributed.protocol.serialize import ToPickle
import socket
from pathlib import Path
from railyard.core.worker import Message, Pipe
from railyard.experiments.sweep.answers import Refused, refuse_pickles
class Made(Message):
    path: Path
class Evil:
    def __reduce__(self):
        return print, ("code ran",)
messages = [dumps({"a": wrap(Evil())}) for wrap in (ToPickle, to_serialize)]
bytes_message = dumps({"a": to_serialize(b"data")})
forged = pickle.dumps(Evil())
refuse_pickles()
for message in messages:
    try:
        loads([bytes(frame) for frame in message])
    except Refused:
        print("refused")
for load in (pickle.loads, pickle._loads):
    try:
        load(forged)
    except Refused:
        print("refused")
print(loads([bytes(frame) for frame in bytes_message]))
sender, receiver = [Pipe(end, (Made,)) for end in socket.socketpair()]
sender.send(Made(path=Path("of its own")))
print(receiver.receive().path)
"""


def test_pickle_with_a_call_is_refused() -> None:
    """In messages of Dask, whatever its deserializers are, and in those of Python itself; not in Railyard's own."""
    pytest.importorskip("distributed", reason="needs Dask: script/bootstrap cluster")
    done = subprocess.run([sys.executable, "-c", GUARD], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["refused"] * 4 + ["{'a': b'data'}", "of its own"]


def changed(**values: object) -> bytes:
    outcome = Outcome(0, "", 1, 2, identify(), b"data")
    return json.dumps(json.loads(OUTCOME.dump_json(outcome)) | values).encode()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (pickle.dumps(1), "Invalid JSON"),
        ("text", "must be bytes"),
        (bytes(MOST_ANSWER_BYTES + 1), "more than"),
        (changed(status=-1), "status"),
        (changed(end_ns=1e400), "end_ns"),
        (changed(folder="no base64!"), "folder"),
        (changed(machine={**identify(), "machine": "../../etc"}), "machine.machine"),
        (changed(machine={**identify(), "cores": "many"}), "machine.cores"),
        (changed(more=1), "more"),
    ],
)
def test_a_bad_answer_is_refused_in_a_line(answer: object, problem: str) -> None:
    with pytest.raises(BadAnswer, match=problem) as refused:
        read(OUTCOME, answer)
    assert str(refused.value).isprintable()


def test_a_good_answer_is_read_without_control_characters() -> None:
    outcome = Outcome(3, "\x1b[31mno room", 1, 2, identify(), b"\x00\xff")
    assert read(OUTCOME, OUTCOME.dump_json(outcome)) == outcome
    assert outcome.line == "\\x1b[31mno room"


def tarred(*members: tarfile.TarInfo, mode: Literal["w", "w:gz"] = "w") -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode) as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return data.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 1) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type = kind
    found.size = size if kind == tarfile.REGTYPE else 0
    found.linkname = "/etc/passwd"
    return found


@pytest.mark.parametrize(
    "archive",
    [
        lambda: tarred(member("../../sweep.yaml")),
        lambda: tarred(member("/etc/cron.d/a")),
        lambda: tarred(member("run.json", tarfile.SYMTYPE)),
        lambda: tarred(member("run.json", tarfile.LNKTYPE)),
        lambda: tarred(member("a"), member("a/b")),
        lambda: tarred(member("a/b"), member("a")),
        lambda: tarred(member("a"), member("a")),
        lambda: tarred(member("x" * 300)),
        lambda: tarred(member("run.json", size=10**6), mode="w:gz"),
        lambda: b"no archive" * 100,
    ],
)
def test_an_archive_that_is_no_folder_is_refused(archive: Callable[[], bytes]) -> None:
    with pytest.raises(BadAnswer, match="its folder"):
        list(files(archive()))
