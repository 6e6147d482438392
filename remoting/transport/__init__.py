"""Connections: what the drivers have in common; a tool that uses one of them does not load the other."""

from __future__ import annotations

from typing import Protocol

from remoting.command import RemotingCommand
from remoting.errors import LocalProtocolError


class Hook(Protocol):
    """Sees each request before it is sent and each answer before its caller does."""

    def before(self, addr: str, request: RemotingCommand) -> RemotingCommand:
        """Return the request to send in its place."""
        ...

    def after(self, addr: str, request: RemotingCommand, answer: RemotingCommand) -> None: ...


def split_address(addr: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port``.

    Raises:
        LocalProtocolError: If it is neither.
    """
    host, _, port = addr.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise LocalProtocolError(f"address {addr!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
