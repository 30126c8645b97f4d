"""The key file of sweeps between machines, and the options that go with it."""

import datetime
import os
import stat
from pathlib import Path

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.errors import BadInput, MissingRequirement
from railyard.experiments.sweep import access
from tests.unit.messages import messages

pytest.importorskip("cryptography", reason="needs Dask's extra: script/bootstrap cluster")
from railyard.experiments.sweep import keys

OTHER = keys.make()  # of another file
THIRD = keys.make()
AFTER = keys.VALID + datetime.timedelta(days=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a key file."""
    path = tmp_path / "sweep.pem"
    with pytest.raises(MissingRequirement):
        keys.load(path)
    return path


def test_missing_key_file_is_made_and_its_use_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "a b.pem"
    umask = os.umask(0)
    try:
        with pytest.raises(MissingRequirement) as made:
            keys.load(path)
    finally:
        os.umask(umask)
    file = f"'{path}'"
    assert f"dask scheduler --tls-ca-file {file} --tls-cert {file} --tls-key {file}" in str(made.value)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "PRIVATE KEY" not in str(made.value)


def test_made_key_file_is_read_again_and_not_shown(path: Path) -> None:
    read = keys.load(path)
    assert read.content() == path.read_bytes()
    secret = read.private_key.splitlines()[1]
    assert secret not in repr(read) + str(read) + repr(read.security())


def test_a_file_that_is_there_is_never_replaced(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(BadInput, match="can't be made: File exists"):
        keys._write(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777, 0o601])
def test_key_file_open_to_others_names_the_remedy(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(BadInput, match=rf"\(mode {mode:04o}\): chmod 600 {path}"):
        keys.load(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_key_file_of_another_user_is_refused(path: Path) -> None:
    os.chown(path, 65533, -1)
    with pytest.raises(BadInput, match=r"\(id 65533\)"):
        keys.load(path)
    os.chown(path.parent, 65533, -1)
    assert keys.load(path).path == path


def shifted(monkeypatch: pytest.MonkeyPatch, by: datetime.timedelta) -> None:
    """Let the clock that keys are checked with be ahead."""

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Clock":
            now = datetime.datetime.now(tz) + by
            return cls.fromtimestamp(now.timestamp(), tz)

    monkeypatch.setattr(keys, "datetime", Clock)


@pytest.mark.parametrize(("days", "problem"), [(-3, "valid before"), (-1, ""), (AFTER.days, "expired")])
def test_a_file_has_its_time_and_a_clock_may_be_a_day_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch, days: int, problem: str
) -> None:
    shifted(monkeypatch, datetime.timedelta(days=days))
    if not problem:
        assert keys.load(path).path == path
        return
    with pytest.raises(BadInput, match=problem):
        keys.load(path)


MALFORMED = {
    "empty": b"",
    "no text": b"\x00\xff" * 100,
    "broken key": b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    "certificate alone": OTHER.certificate.encode(),
    "key alone": OTHER.private_key.encode(),
    "two certificates": OTHER.content() + THIRD.certificate.encode(),
    "certificate of another key": (OTHER.private_key + THIRD.certificate).encode(),
    "large file": bytes(70_000),
}


def test_a_malformed_file_is_refused_in_a_line(tmp_path: Path, data_regression: DataRegressionFixture) -> None:
    path = tmp_path / "bad.pem"

    def load(content: bytes) -> None:
        path.write_bytes(content)
        path.chmod(0o600)
        keys.load(path)

    errors = messages(load, MALFORMED)
    assert all(map(str.isprintable, errors.values()))
    data_regression.check({case: error.replace(str(path), "PATH") for case, error in errors.items()})


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "loop", "unwritable"])
def test_pipe_in_place_of_a_key_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "folder":
        path.mkdir(mode=0o700)
    if kind == "pipe":
        os.mkfifo(path, 0o600)
    if kind == "device":
        path = Path("/dev/null")
    if kind == "loop":
        path.symlink_to(path)
    if kind == "unwritable":
        path = Path("/proc/sweep.pem")
    with pytest.raises(BadInput, match=r"--keys: .*(regular file|can't be read|can't be made)"):
        keys.load(path)


def test_keys_in_memory_are_read_from_no_file_on_a_disk() -> None:
    security = OTHER.security()
    (file,) = {
        value
        for role in ("client", "scheduler", "worker")
        for name, value in security.get_tls_config_for_role(role).items()
        if name != "ciphers"
    }
    assert file.startswith(f"/proc/{os.getpid()}/fd/")
    assert security.require_encryption
    assert security.get_connection_args("client")["ssl_context"]
    os.close(int(file.rpartition("/")[2]))


KEY_FILE = Path("k.pem")
NOT_TOGETHER = {
    "tcp": ("tcp://h:1", None, False),
    "tcp with a key": ("tcp://h:1", KEY_FILE, False),
    "insecure tcp with a key": ("tcp://h:1", KEY_FILE, True),
    "insecure tls": ("tls://h:1", KEY_FILE, True),
    "insecure ssh": ("ssh:h1,h2", None, True),
    "ssh with a key": ("ssh:h1,h2", KEY_FILE, False),
    "this machine with a key": ("local", KEY_FILE, False),
    "insecure on this machine": ("local", None, True),
    "http": ("http://h:1", None, False),
    "tls without a port": ("tls://h", KEY_FILE, False),
}


def test_options_that_do_not_belong_together_are_refused(data_regression: DataRegressionFixture) -> None:
    data_regression.check(messages(lambda case: access.check(*case), NOT_TOGETHER))


@pytest.mark.parametrize(
    ("on", "file", "insecure"),
    [
        ("local", "", False),
        ("ssh:h1", "", False),
        ("tls://h:1", "", False),
        ("tls://h:1", "k.pem", False),
        ("tcp://h:1", "", True),
    ],
)
def test_options_that_belong_together_are_taken(on: str, file: str, insecure: bool) -> None:
    access.check(on, Path(file) if file else None, insecure)
