"""The key file of a sweep between machines: a private key and its self-signed certificate, in one PEM file.

Scheduler, workers and the sweep use the same file: each shows the certificate, and trusts that certificate alone. Who
holds the key can take any of these parts, so the file is for its owner alone.
"""

import os
import shlex
import ssl
import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from railyard.core.errors import BadInput, MissingRequirement
from railyard.core.safe_files import Folder, read_input

if TYPE_CHECKING:
    from distributed.security import Security

OPTION: Final = "--keys"
VALID: Final = timedelta(days=365)
_CLOCK_ERROR: Final = timedelta(days=2)  # of machines whose clock is behind
_NAME: Final = "railyard-sweep"
_MOST_BYTES: Final = 64 * 1024
_PRIVATE: Final = 0o600
_RENEW: Final = "delete it, and call this again to make another"
_OTHER_FILE: Final = "name a file that this option has made, or one that isn't there"


@dataclass(frozen=True)
class Keys:
    """A private key and its certificate, as PEM. `path`: the file that has both; None if they are in memory alone."""

    private_key: str = field(repr=False)
    certificate: str
    path: Path | None = None

    def certificate_bytes(self) -> bytes:
        """Return the certificate as a TLS connection shows it."""
        return ssl.PEM_cert_to_DER_cert(self.certificate)

    def security(self) -> "Security":
        """Return Dask's settings, with which nothing but TLS with this certificate is used."""
        # this import takes half a second
        from distributed.security import Security

        file = str(self.path or self._memory_file())
        return Security(
            require_encryption=True,
            tls_ca_file=file,
            tls_client_cert=file,
            tls_client_key=file,
            tls_scheduler_cert=file,
            tls_scheduler_key=file,
            tls_worker_cert=file,
            tls_worker_key=file,
        )

    def content(self) -> bytes:
        """Return what a key file has."""
        return f"{self.private_key}{self.certificate}".encode()

    def _memory_file(self) -> Path:
        """Return the path of a file in memory, for this user's processes while this one lives.

        OpenSSL reads keys from files alone, and one on a disk would be left by a `kill -9`.
        """
        number = os.memfd_create(_NAME)
        with os.fdopen(os.dup(number), "wb") as file:
            file.write(self.content())
        return Path(f"/proc/{os.getpid()}/fd/{number}")


def make() -> Keys:
    """Make a key and a certificate of a year, in memory."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    now = datetime.now(tz=UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_ERROR)
        .not_valid_after(now + VALID)
        .sign(key, hashes.SHA256())
    )
    private_key = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Keys(private_key.decode(), certificate.public_bytes(serialization.Encoding.PEM).decode())


def load(path: Path) -> Keys:
    """Return the keys of a file. MissingRequirement if it was not there, and was made; BadInput for a bad one."""
    path = path.absolute()
    try:
        _check_private(path)
    except FileNotFoundError:
        _write(path)
        message = f"{OPTION}: {path} was not there; it was made now, for you alone to read"
        remedy = f"copy it to the other machines, and start Dask with it: dask scheduler {dask_options(path)}"
        raise MissingRequirement(message, remedy) from None
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        raise BadInput(OPTION, str(path), f"can't be read: {problem}") from error
    content = read_input(path, OPTION, _MOST_BYTES)
    return _read(content, path)


def dask_options(path: Path | str) -> str:
    """Return the options of `dask scheduler` and `dask worker` for a key file."""
    file = shlex.quote(str(path))
    return f"--tls-ca-file {file} --tls-cert {file} --tls-key {file}"


def _check_private(path: Path) -> None:
    """Raise BadInput unless the file is its user's alone."""
    status = path.stat()
    owners = {os.geteuid(), 0}
    if os.geteuid() == 0:
        # a file that `_write` has made in a user's folder is that user's
        owners.add(path.parent.stat().st_uid)
    if not stat.S_ISREG(status.st_mode):
        raise BadInput(OPTION, str(path), "must be a regular file")
    if status.st_uid not in owners:
        raise BadInput(OPTION, str(path), f"belongs to another user (id {status.st_uid}): use a file of your own")
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadInput(OPTION, str(path), f"is open to other users (mode {mode:04o}): chmod 600 {path}")


def _write(path: Path) -> None:
    try:
        with Folder(path.parent) as folder:
            folder.write_new(path.name, make().content(), _PRIVATE)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        raise BadInput(OPTION, str(path), f"can't be made: {problem}") from error


def _read(content: bytes, path: Path) -> Keys:
    """Return what a file has. BadInput unless it is one private key and its certificate, which is valid today."""
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except TypeError as error:
        raise BadInput(OPTION, str(path), f"has an encrypted key, which Dask can't use: {_OTHER_FILE}") from error
    except Exception as error:  # of several types, for what is no PEM, or of an algorithm that isn't known
        raise BadInput(OPTION, str(path), f"has no private key in PEM: {_OTHER_FILE}") from error
    try:
        certificates = x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise BadInput(OPTION, str(path), f"has no certificate in PEM: {_OTHER_FILE}") from error
    if len(certificates) != 1:
        raise BadInput(OPTION, str(path), f"has {len(certificates)} certificates, and must have one: {_OTHER_FILE}")
    (certificate,) = certificates
    if certificate.public_key() != key.public_key():
        raise BadInput(OPTION, str(path), f"has a certificate of another key: {_OTHER_FILE}")
    now = datetime.now(tz=UTC)
    if now > certificate.not_valid_after_utc:
        raise BadInput(OPTION, str(path), f"has expired on {certificate.not_valid_after_utc:%Y-%m-%d}: {_RENEW}")
    if now < certificate.not_valid_before_utc:
        start = f"{certificate.not_valid_before_utc:%Y-%m-%d}"
        raise BadInput(OPTION, str(path), f"is not valid before {start}: set the clock, which says {now:%Y-%m-%d}")
    private_key = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Keys(private_key.decode(), certificate.public_bytes(serialization.Encoding.PEM).decode(), path)
