"""Connections: the parts that both drivers share. A tool that uses one driver does not load the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Protocol

from routekeeper.remoting.addresses import split_address
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import LocalProtocolError, RemotingError, RequestRefused, Withdrawn
from routekeeper.remoting.line_limit import LimitedLog

__all__ = ["Hooks", "RPCHook", "check_holds", "split_address"]

log = logging.getLogger(__name__)


def check_holds(addr: str, unless: Callable[[], bool] | None) -> None:
    """Check, right before a request is sent, that it still holds.

    Raises:
        Withdrawn: ``unless`` says that the request no longer holds.
    """
    if unless is not None and unless():
        raise Withdrawn(f"not sent to {addr}: it holds no more")


class RPCHook(Protocol):
    """A hook that sees the requests of a client, or those of a server, with their answers.

    In a client, ``before_request`` is called right before a request is sent, and ``after_response`` before
    the caller gets the answer. In a server, they are called before and after the handler.
    """

    def before_request(self, remote: str, request: RemotingCommand) -> RemotingCommand:
        """Return the request to use instead: the same one, or a changed copy.

        A client's hook may change everything but the opaque, a server's only ``ext_fields``.

        Args:
            remote: ``host:port`` of the other side.

        Raises:
            RequestRefused: The request must not be sent, or not be served.
        """
        ...

    def after_response(self, remote: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Read an answer, which cannot be changed."""


class Hooks:
    """The hooks of one client. A hook that fails stops its request; it never hides an answer.

    Args:
        clock: Returns seconds, for the limit on log lines.
    """

    def __init__(self, hooks: tuple[RPCHook, ...], clock: Callable[[], float]) -> None:
        self._hooks = hooks
        self._log = LimitedLog(log, clock)

    def before_request(self, remote: str, request: RemotingCommand) -> RemotingCommand:
        """Return the request to send.

        Raises:
            LocalProtocolError: If a hook refused, failed or returned something else; nothing was sent.
        """
        for hook in self._hooks:
            try:
                changed = hook.before_request(remote, request)
            except RequestRefused as refusal:
                raise LocalProtocolError(
                    f"hook {type(hook).__name__} refused the request: {refusal}"
                ) from refusal
            except RemotingError:
                raise
            except Exception as error:  # the user's code, in the middle of a call that sends the request
                raise LocalProtocolError(f"hook {type(hook).__name__} failed: {error!r}") from error
            if not isinstance(changed, RemotingCommand):
                raise LocalProtocolError(
                    f"before_request of hook {type(hook).__name__} returned {describe_and_close(changed)},"
                    " allowed a RemotingCommand"
                )
            request = changed
        return request

    def after_response(self, remote: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Show an answer to the hooks. An exception is only logged, because the answer has the request's
        outcome.
        """
        for hook in self._hooks:
            name = type(hook).__name__
            try:
                hook.after_response(remote, request, response)
            except Exception as error:  # the user's code
                self._log.write(
                    logging.WARNING, name, "hook failed after an answer hook=%s error=%r", name, error
                )


def describe_and_close(returned: object) -> str:
    """Return the type of an object that a hook returned in place of a request; close it if it is a
    coroutine.
    """
    if isinstance(returned, Coroutine):
        returned.close()
    return type(returned).__name__
