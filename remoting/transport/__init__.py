"""Connections: what the drivers have in common; a tool that uses one of them does not load the other."""

from __future__ import annotations

from typing import Protocol

from remoting.addresses import split_address
from remoting.command import RemotingCommand

__all__ = ["Hook", "split_address"]


class Hook(Protocol):
    """Sees each request before it is sent and each answer before its caller does."""

    def before(self, addr: str, request: RemotingCommand) -> RemotingCommand:
        """Return the request to send in its place."""
        ...

    def after(self, addr: str, request: RemotingCommand, answer: RemotingCommand) -> None: ...
