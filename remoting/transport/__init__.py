"""Connections of clients and servers. This file has code that clients and servers share.

The asyncio client is in ``transport.aio``, and the blocking client in ``transport.blocking``. A tool that
imports only one of these modules does not load the other module.
"""

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
    """Check right before a request is sent that its caller still wants to send it.

    Raises:
        Withdrawn: If ``unless`` returns True.
    """
    if unless is not None and unless():
        raise Withdrawn(f"not sent to {addr}: it holds no more")


class RPCHook(Protocol):
    """Hook that sees the requests of a client or of a server, and their answers.

    In a client, ``before_request`` is called right before a request is sent. ``after_response`` is called
    before the caller gets the answer. In a server, the two methods are called before and after the handler.
    """

    def before_request(self, remote: str, request: RemotingCommand) -> RemotingCommand:
        """Return the request to use in place of ``request``: the same object or a changed copy.

        A client's hook may change everything except the opaque. A server's hook may change only
        ``ext_fields``.

        Args:
            remote: ``host:port`` of the other side.

        Raises:
            RequestRefused: If the request must not be sent (client) or not be served (server).
        """
        ...

    def after_response(self, remote: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Look at an answer; a hook cannot change it."""


class Hooks:
    """The hooks of one client.

    An exception of a hook can stop a request, but it never hides an answer from the caller.

    Args:
        clock: Returns seconds; used to limit the number of log lines.
    """

    def __init__(self, hooks: tuple[RPCHook, ...], clock: Callable[[], float]) -> None:
        self._hooks = hooks
        self._log = LimitedLog(log, clock)

    def before_request(self, remote: str, request: RemotingCommand) -> RemotingCommand:
        """Pass a request through all hooks; return the request to send.

        Raises:
            LocalProtocolError: If a hook refuses the request, fails, or returns an object that is no request.
                Nothing was sent.
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
            except Exception as error:  # the hook is user code, so it may raise anything
                raise LocalProtocolError(f"hook {type(hook).__name__} failed: {error!r}") from error
            if not isinstance(changed, RemotingCommand):
                raise LocalProtocolError(
                    f"before_request of hook {type(hook).__name__} returned {describe_and_close(changed)},"
                    " allowed a RemotingCommand"
                )
            request = changed
        return request

    def after_response(self, remote: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Show an answer to the hooks, and log their exceptions.

        The caller gets the answer in any case, because the answer says whether the request succeeded.
        """
        for hook in self._hooks:
            name = type(hook).__name__
            try:
                hook.after_response(remote, request, response)
            except Exception as error:  # the hook is user code, so it may raise anything
                self._log.write(
                    logging.WARNING, name, "hook failed after an answer hook=%s error=%r", name, error
                )


def describe_and_close(returned: object) -> str:
    """Return the type name of an object that a hook returned instead of a request.

    If the object is a coroutine, close it, so that Python does not warn about it.
    """
    if isinstance(returned, Coroutine):
        returned.close()
    return type(returned).__name__
