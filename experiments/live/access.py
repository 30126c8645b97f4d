"""Access to the live page: who may connect, and by which address.

The socket listens on 127.0.0.1 of the machine, where every user of the machine can connect. So each request needs the
token of the page's address, the host and origin of that address (a page of another site can make a browser send
requests here, but neither of these), and a connection whose other end belongs to one of `users`, as the kernel reports.
"""

import hmac
import socket
import struct
from collections.abc import Collection, Mapping
from typing import Final

HOST: Final = "127.0.0.1"
NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_ESTABLISHED: Final = 1
_HEADER: Final = struct.Struct("=IHHII")
_QUERY: Final = struct.Struct("=BBBxI")  # family, protocol, extensions, states; then the socket
_SOCKET: Final = struct.Struct("!HH4s12x4s12x")  # ports and addresses of its own end and of the other
_ANY_COOKIE: Final = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # interface, cookie
_UID_AT: Final = 64  # in struct inet_diag_msg, whose second byte is the state
_TIMEOUT_S: Final = 1.0


def diagnosis_socket() -> socket.socket:
    """Return a socket that asks the kernel about connections of this network namespace, wherever it is used."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG)


def owner_of(diagnosis: socket.socket, client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the user whose socket is at the client's end of a connection; None if it is no longer open."""
    ends = _SOCKET.pack(client[1], server[1], socket.inet_aton(client[0]), socket.inet_aton(server[0]))
    body = _QUERY.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + ends + _ANY_COOKIE
    diagnosis.settimeout(_TIMEOUT_S)
    diagnosis.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST, 0, 0) + body)
    answer = diagnosis.recv(8192)
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    # a connection that its client has closed has no owner any more: the kernel reports user 0
    if kind != _SOCK_DIAG_BY_FAMILY or answer[_HEADER.size + 1] != _ESTABLISHED:
        return None
    return int(struct.unpack_from("=I", answer, _HEADER.size + _UID_AT)[0])


def refusal(
    path: str, headers: Mapping[str, str], port: int, token: str, user: int | None, users: Collection[int]
) -> str:
    """Return why a request is refused; empty if it is allowed. `headers`: by lower-case name."""
    hosts = {f"{HOST}:{port}", f"localhost:{port}"}
    if user not in users:
        return "another user's connection"
    if headers.get("host") not in hosts:
        return "wrong host"
    if "origin" in headers and headers["origin"] not in {f"http://{host}" for host in hosts}:
        return "wrong origin"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "a request of another site"
    first_part = f"{path}/".split("/")[1]
    # a comparison that ends at the first wrong letter would let the token be guessed letter by letter
    if hmac.compare_digest(first_part.encode(), token.encode()):
        return ""
    return "wrong token"
