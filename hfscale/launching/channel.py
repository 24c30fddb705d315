"""Sockets between caller, server and supervisors: who holds an end is alive, so no other process may hold it."""

from __future__ import annotations

import json
import os
import socket
import struct
import weakref

_private: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_LENGTH = struct.Struct("!I")


def private_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends that children forked from this process (DataLoader workers, ranks) do not keep."""
    ours, theirs = socket.socketpair()
    return keep_private(ours), keep_private(theirs)


def keep_private(end: socket.socket) -> socket.socket:
    """Close `end` in every process that is forked from this one; programs that are executed never get it (PEP 446)."""
    _private.add(end)
    return end


def send_message(end: socket.socket, message: dict) -> None:
    data = json.dumps(message).encode()
    end.sendall(_LENGTH.pack(len(data)) + data)


def receive_message(end: socket.socket) -> dict | None:
    """The next message, or None when the other side is gone."""
    try:
        (length,) = _LENGTH.unpack(_receive_exactly(end, _LENGTH.size))
        return json.loads(_receive_exactly(end, length))
    except (EOFError, ConnectionError):
        return None


def _receive_exactly(end: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = end.recv(length - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _close_in_forked_child() -> None:
    for end in list(_private):
        end.close()


if hasattr(os, "register_at_fork"):  # not on Windows, where a launch is refused in a sentence
    os.register_at_fork(after_in_child=_close_in_forked_child)
