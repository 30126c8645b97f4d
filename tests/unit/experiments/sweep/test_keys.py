"""The key file of sweeps between machines, and the options that go with it."""

import datetime
import os
import re
import stat
from pathlib import Path

import pytest

from railyard.core.errors import BadInput, MissingRequirement
from railyard.experiments.sweep import access

pytest.importorskip("cryptography", reason="needs Dask's extra: script/bootstrap cluster")
from railyard.experiments.sweep import keys

OTHER = keys.make()  # of another file
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
    with pytest.raises(BadInput, match=rf"--keys: .* is open to other users \(mode {mode:04o}\): chmod 600 {path}"):
        keys.load(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_key_file_of_another_user_is_refused(path: Path) -> None:
    os.chown(path, 65533, -1)
    with pytest.raises(BadInput, match=r"belongs to another user \(id 65533\): use a file of your own"):
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


def test_an_expired_file_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shifted(monkeypatch, AFTER)
    with pytest.raises(BadInput, match=r"has expired on \d{4}-\d\d-\d\d: delete it, and call this again"):
        keys.load(path)


@pytest.mark.parametrize(("days", "is_valid"), [(-1, True), (-3, False)])
def test_a_clock_may_be_a_day_behind(path: Path, monkeypatch: pytest.MonkeyPatch, days: int, is_valid: bool) -> None:
    shifted(monkeypatch, datetime.timedelta(days=days))
    if is_valid:
        assert keys.load(path).path == path
    else:
        with pytest.raises(BadInput, match=r"is not valid before .*: set the clock, which says"):
            keys.load(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "has no private key in PEM"),
        (b"\x00\xff" * 100, "has no private key in PEM"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "has no private key in PEM"),
        (OTHER.certificate.encode(), "has no private key in PEM"),
        (OTHER.private_key.encode(), "has no certificate in PEM"),
        (OTHER.content() + keys.make().certificate.encode(), "has 2 certificates"),
        ((OTHER.private_key + keys.make().certificate).encode(), "has a certificate of another key"),
        (bytes(70_000), "has 70,000 bytes"),
    ],
)
def test_a_malformed_file_is_refused_in_a_line(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "bad.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(BadInput, match=re.escape(f"--keys: {str(path)!r} {problem}")) as refused:
        keys.load(path)
    assert str(refused.value).isprintable()


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


@pytest.mark.parametrize(
    ("on", "file", "insecure", "problem"),
    [
        (
            "tcp://h:1",
            "",
            False,
            "has neither encryption nor a key, .*: use --on tls://h:1 --keys FILE, or add --insec",
        ),
        ("tcp://h:1", "k.pem", False, "--keys: 'k.pem' is for --on tls://SCHEDULER:PORT, and --on is tcp://h:1"),
        ("tcp://h:1", "k.pem", True, "--keys: 'k.pem' is for --on tls://SCHEDULER:PORT"),
        ("tls://h:1", "k.pem", True, "--insecure: 'tls://h:1' is encrypted or on this machine"),
        ("ssh:h1,h2", "", True, "--insecure: 'ssh:h1,h2' is encrypted"),
        ("ssh:h1,h2", "k.pem", False, "a sweep over ssh makes a key of its own"),
        ("local", "k.pem", False, "--keys: 'k.pem' is for --on tls://"),
        ("local", "", True, "--insecure: 'local' is encrypted or on this machine"),
        ("http://h:1", "", False, "--on: 'http://h:1' must be local, tls://SCHEDULER:PORT"),
        ("tls://h", "k.pem", False, "must be local, tls://SCHEDULER:PORT"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(on: str, file: str, insecure: bool, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        access.check(on, Path(file) if file else None, insecure)


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
