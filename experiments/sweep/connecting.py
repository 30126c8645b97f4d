"""The first connection to a Dask scheduler, and what is wrong if there is none."""

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import Final

from distributed.comm import connect, get_address_host_port
from distributed.security import Security

from railyard.core.errors import BadInput, MissingRequirement
from railyard.experiments.sweep.keys import OPTION, Keys, dask_options

TIMEOUT_S: Final = 10.0  # for the scheduler to answer
_LOOK_S: Final = 3.0  # for another look at what doesn't
_CONFIGURATION: Final = "Dask's configuration (distributed.comm.tls)"


@dataclass(frozen=True)
class _Look:
    """What is at an address: whether it answers, and the certificate that it shows in TLS."""

    answers: bool
    certificate: bytes | None = None


def connected_security(where: str, keys: Keys | None) -> Security:
    """Shake hands with a scheduler, disconnect, and return the settings to do so again.

    `Client` would wait for ever for a scheduler that never says a word. MissingRequirement says what doesn't fit.
    """
    _check_port(where)
    security = keys.security() if keys else Security()
    try:
        arguments = security.get_connection_args("client")
    except (OSError, ValueError) as error:  # of files that Dask's configuration names
        problem = f"--on: the certificates of {_CONFIGURATION} can't be read: {error}"
        raise MissingRequirement(problem, f"correct them, or name a key file with {OPTION} FILE") from error
    is_encrypted = where.startswith("tls://")
    if is_encrypted and arguments["ssl_context"] is None:
        problem = f"--on: {where} needs certificates"
        raise MissingRequirement(problem, f"name a key file with {OPTION} FILE, or certificates in {_CONFIGURATION}")
    if not is_encrypted and security.require_encryption:
        allowed = "isn't encrypted, which Dask's configuration requires (distributed.comm.require-encryption)"
        raise BadInput("--on", where, f"{allowed}: use tls://")

    async def shake() -> None:
        comm = await asyncio.wait_for(connect(where, timeout=TIMEOUT_S, **arguments), TIMEOUT_S)
        await comm.close()

    try:
        asyncio.run(shake())
    except Exception as error:  # whatever is there that isn't Dask makes any error of its decoder
        raise _mismatch(where, keys, _look(where)) from error
    return security


def _check_port(where: str) -> None:
    """Raise BadInput for an address without a port that there can be."""
    try:
        _, port = get_address_host_port(where)
    except ValueError as error:
        raise BadInput("--on", where, "must be local, tls://SCHEDULER:PORT or ssh:HOST,HOST") from error
    if not 0 < port < 2**16:
        raise BadInput("--on", where, "has a port that is not from 1 to 65535")


def no_answer(where: str, keys: Keys | None = None) -> MissingRequirement:
    """Return the error of a scheduler that isn't there."""
    options = f" {dask_options(keys.path)}" if keys and keys.path else ""
    return MissingRequirement(f"--on: no Dask scheduler answers at {where}", f"start one with: dask scheduler{options}")


def _look(where: str) -> _Look:
    """Begin TLS without a certificate of one's own, to see what the other end shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        # a handshake as a whole has the time that the socket has for one operation
        with (
            socket.create_connection(get_address_host_port(where), _LOOK_S) as connection,
            context.wrap_socket(connection) as encrypted,
        ):
            return _Look(answers=True, certificate=encrypted.getpeercert(binary_form=True))
    except ssl.SSLError:  # it has answered with something else
        return _Look(answers=True)
    except OSError:
        return _Look(answers=False)


def _mismatch(where: str, keys: Keys | None, look: _Look) -> MissingRequirement:
    """Return why there is no connection: the security of the two ends differs, or no scheduler is there."""
    if not look.answers:
        return no_answer(where, keys)
    shown = look.certificate
    if not where.startswith("tls://"):
        if shown is None:
            return no_answer(where)
        problem = f"--on: the scheduler at {where} speaks TLS"
        remedy = (
            f"use --on tls://{where.removeprefix('tcp://')} {OPTION} FILE, with the key file that it was started with"
        )
        return MissingRequirement(problem, remedy)
    if shown is None:
        options = dask_options(keys.path) if keys and keys.path else "--tls-ca-file, --tls-cert and --tls-key"
        return MissingRequirement(f"--on: what answers at {where} speaks no TLS", f"start the scheduler with {options}")
    if keys and shown != keys.certificate_bytes():
        problem = f"--on: the scheduler at {where} has another certificate than {keys.path or 'that of this sweep'}"
        return MissingRequirement(problem, "use the key file that it was started with")
    if keys:
        problem = f"--on: {where} has the certificate, and doesn't answer as a Dask scheduler within {TIMEOUT_S:g} s"
        return MissingRequirement(problem, "start one there, or call the sweep again if that machine is busy")
    problem = f"--on: the scheduler at {where} and the certificates of {_CONFIGURATION} don't fit together"
    return MissingRequirement(problem, f"correct them, or name its key file with {OPTION} FILE")
