"""Connections: what the drivers have in common; a tool that uses one of them does not load the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from remoting.addresses import split_address
from remoting.command import RemotingCommand
from remoting.errors import Withdrawn

__all__ = ["Hook", "check_holds", "split_address"]


def check_holds(addr: str, unless: Callable[[], bool] | None) -> None:
    """Ask right before a request is sent whether it holds no more.

    Raises:
        Withdrawn: If ``unless`` says so.
    """
    if unless is not None and unless():
        raise Withdrawn(f"not sent to {addr}: it holds no more")


class Hook(Protocol):
    """Sees each request before it is sent and each answer before its caller does."""

    def before(self, addr: str, request: RemotingCommand) -> RemotingCommand:
        """Return the request to send in its place."""
        ...

    def after(self, addr: str, request: RemotingCommand, answer: RemotingCommand) -> None: ...
