"""Connections: what the drivers have in common; a tool that uses one of them does not load the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Protocol

from routekeeper.remoting.addresses import split_address
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import LocalProtocolError, RemotingError, Withdrawn
from routekeeper.remoting.line_limit import LimitedLog

__all__ = ["Hook", "Hooks", "check_holds", "split_address"]

log = logging.getLogger(__name__)


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


class Hooks:
    """The hooks of one client; one that fails stops its request, but hides no answer.

    Args:
        clock: Seconds, for the bound on log lines.
    """

    def __init__(self, hooks: tuple[Hook, ...], clock: Callable[[], float]) -> None:
        self._hooks = hooks
        self._log = LimitedLog(log, clock)

    def before(self, addr: str, request: RemotingCommand) -> RemotingCommand:
        """Return the request to send.

        Raises:
            LocalProtocolError: If a hook failed or returned something else; nothing was sent.
        """
        for hook in self._hooks:
            try:
                changed = hook.before(addr, request)
            except RemotingError:
                raise
            except Exception as error:  # the user's code, in the middle of whatever sends the request
                raise LocalProtocolError(f"hook {type(hook).__name__} failed: {error!r}") from error
            if not isinstance(changed, RemotingCommand):
                if isinstance(changed, Coroutine):
                    changed.close()
                raise LocalProtocolError(
                    f"before of hook {type(hook).__name__} returned {type(changed).__name__},"
                    " allowed a RemotingCommand"
                )
            request = changed
        return request

    def after(self, addr: str, request: RemotingCommand, answer: RemotingCommand) -> None:
        """Show an answer; an exception is logged: the answer says what became of the request."""
        for hook in self._hooks:
            name = type(hook).__name__
            try:
                hook.after(addr, request, answer)
            except Exception as error:  # the user's code
                self._log.write(
                    logging.WARNING, name, "hook failed after an answer hook=%s error=%r", name, error
                )
