"""Hooks of one server, which are called before and after each request, with a limit on their time.

Hooks run on the server's event loop, and a hook that takes too long cannot be interrupted. Therefore the time
of hooks is measured. A call above :data:`CALL_MAX_S` is counted and logged. All hooks together may use
:data:`SHARE` of the loop's time; when they have used more, requests are refused with code 2. So no request is
served without its hooks, and the loop always has time for leases and elections.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from routekeeper.remoting.codes import ResponseCode
from routekeeper.remoting.command import SUCCESS, RemotingCommand
from routekeeper.remoting.errors import RequestRefused
from routekeeper.remoting.line_limit import LimitedLog
from routekeeper.remoting.logs import shortened
from routekeeper.remoting.transport import RPCHook, describe_and_close
from routekeeper.remoting.transport.connection import Connection, DeferredReply, Handler

log = logging.getLogger(__name__)

#: Seconds above which one call of a hook counts as slow.
CALL_MAX_S: Final = 0.01
#: Share of the event loop's time that all hooks of a server together may use.
SHARE: Final = 0.25
#: Seconds that all hooks together may use at once after a period without calls.
BURST_S: Final = 0.25
#: Largest number of seconds by which the hooks can exceed their share of the loop's time. Even after a call
#: that blocks for a minute, requests are refused for at most 4 s (this value divided by :data:`SHARE`).
DEBT_MAX_S: Final = 1.0
_METHODS: Final = (("before_request", 2), ("after_response", 3))


class HookError(Exception):
    """A hook cannot be used; the message is one line that names the hook."""


def load_hooks(names: Iterable[str]) -> dict[str, RPCHook]:
    """Import the classes named ``module:Class``, and create one object of each; return the objects by name.

    Raises:
        HookError: If a class cannot be imported, if its object cannot be created, or if a method is missing.
    """
    hooks: dict[str, RPCHook] = {}
    for name in names:
        if name in hooks:
            raise HookError(f"{shortened(name)} is named twice, allowed is once")
        module, mark, attribute = name.partition(":")
        if not (mark and attribute.isidentifier() and all(map(str.isidentifier, module.split(".")))):
            raise HookError(f"{shortened(name)} is not MODULE:CLASS, as in audit.hooks:LogDeletes")
        try:
            made = getattr(importlib.import_module(module), attribute)()
        except Exception as error:  # the operator's module may raise anything
            raise HookError(
                f"{shortened(name)} cannot be loaded: {shortened(f'{type(error).__name__}: {error}')}"
            ) from error
        for method, arguments in _METHODS:
            _check_method(name, method, getattr(made, method, None), arguments)
        hooks[name] = made
    return hooks


def _check_method(name: str, method: str, call: Any, arguments: int) -> None:
    allowed = f"allowed is a plain method {method} of {arguments} arguments"
    if not callable(call):
        raise HookError(f"{shortened(name)} has no method {method}, {allowed}")
    if inspect.iscoroutinefunction(call) or inspect.isgeneratorfunction(call):
        raise HookError(f"{method} of {shortened(name)} is a coroutine or generator function, {allowed}")
    try:
        inspect.signature(call).bind(*[None] * arguments)
    except TypeError as error:
        raise HookError(f"{method} of {shortened(name)}: {error}, {allowed}") from None
    except ValueError:  # the method is written in C, so only a call can show whether it accepts the arguments
        pass


class HookStats:
    """Counters of one hook: failed calls, slow calls, refused requests, and the seconds that it used."""

    __slots__ = ("errors", "refused", "seconds", "slow")

    def __init__(self) -> None:
        self.errors = self.slow = self.refused = 0
        self.seconds = 0.0


def hook_figures(hooks: ServerHooks) -> list[tuple[str, str, list[tuple[dict[str, str], float]]]]:
    """Return name, help text and labelled samples of each metric of hooks; empty if there are no hooks."""
    if not hooks.stats:
        return []
    figures = [
        (
            f"rpc_hook_{name}_total",
            help_,
            [({"hook": hook}, float(getattr(stats, name))) for hook, stats in hooks.stats.items()],
        )
        for name, help_ in (
            ("errors", "Calls of a hook that failed."),
            ("slow", "Calls of a hook that took longer than 10 ms."),
            ("refused", "Requests that a hook refused."),
            ("seconds", "Time that a hook took."),
        )
    ]
    overloads = "Requests refused because hooks took more than their share of the time."
    return [*figures, ("rpc_hook_overloads_total", overloads, [({}, float(hooks.overloads))])]


class ServerHooks:
    """The hooks of a server. They are called before and after its handlers, in the operator's order.

    Args:
        hooks: Hooks by name.
        clock: Returns the present time in seconds, precisely enough to measure single calls.

    Attributes:
        stats: Counters of each hook by its name.
        overloads: Number of requests that were refused because the hooks had used up their time.
    """

    def __init__(self, hooks: Mapping[str, RPCHook], clock: Callable[[], float]) -> None:
        self._hooks = tuple(hooks.items())
        self._clock = clock
        self._log = LimitedLog(log, clock)
        self._left_s = BURST_S
        self._filled_at = clock()
        self.stats = {name: HookStats() for name in hooks}
        self.overloads = 0

    def wrap(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return handlers that call the hooks before and after each request.

        If there are no hooks, the handlers stay unchanged.
        """
        if not self._hooks:
            return dict(handlers)
        return {code: functools.partial(self._serve, handler) for code, handler in handlers.items()}

    def before_request(self, remote: str, request: RemotingCommand) -> RemotingCommand:
        """Pass a request through all hooks; return the request to serve.

        Raises:
            RequestRefused: If a hook refused the request or failed, or if the hooks' time is used up.
        """
        self._look_at_time(remote)
        served = request
        for name, hook in self._hooks:
            stats, begun = self.stats[name], self._clock()
            try:
                served = self._checked(name, request, hook.before_request(remote, served))
            except RequestRefused:
                stats.refused += 1
                raise
            except Exception as error:  # do not serve a request that a hook could not check
                self._failed(name, stats, "before_request", error)
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"hook {name} failed") from error
            finally:
                self._account(name, stats, self._clock() - begun)
        return served

    def after_response(self, remote: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Show the answer to all hooks. If a hook raises, log and count it; the answer is sent anyway."""
        if request.is_oneway:
            return
        for name, hook in self._hooks:
            stats, begun = self.stats[name], self._clock()
            try:
                hook.after_response(remote, request, response)
            except Exception as error:  # the operator's hook may raise anything
                self._failed(name, stats, "after_response", error)
            finally:
                self._account(name, stats, self._clock() - begun)

    def _serve(
        self, handler: Handler, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | DeferredReply | None:
        remote = connection.peer
        try:
            served = self.before_request(remote, request)
        except RequestRefused as refusal:
            answer = request.reply(refusal.code, remark=refusal.remark)
            self.after_response(remote, request, answer)
            return answer
        try:
            result = handler(connection, served)
        except Exception as error:
            self.after_response(remote, served, served.failed(error))
            raise
        if isinstance(result, DeferredReply):
            result.seen_by = functools.partial(self._seen, remote, served)
        elif isinstance(result, RemotingCommand):
            self._seen(remote, served, result)
        elif result is not None and connection.unanswered < connection.server.limits.unanswered_max:
            return self._serve_later(remote, served, result)
        return result

    async def _serve_later(
        self, remote: str, request: RemotingCommand, result: Awaitable[RemotingCommand | None]
    ) -> RemotingCommand | None:
        try:
            answer = await result
        except Exception as error:
            self.after_response(remote, request, request.failed(error))
            raise
        if answer is not None:
            self._seen(remote, request, answer)
        return answer

    def _seen(self, remote: str, request: RemotingCommand, answer: RemotingCommand | None) -> None:
        is_plain = answer is None or answer is SUCCESS
        self.after_response(remote, request, request.reply() if is_plain else answer)  # type: ignore[arg-type]

    def _checked(self, name: str, request: RemotingCommand, changed: object) -> RemotingCommand:
        """Return the request that a hook returned; raise if the hook changed more than ``ext_fields``."""
        if not isinstance(changed, RemotingCommand):
            raise TypeError(f"it returned {describe_and_close(changed)}, allowed is a RemotingCommand")
        if changed is not request and replace(changed, ext_fields=request.ext_fields) != request:
            raise ValueError("it changed more of the request than ext_fields")
        if changed is not request and not all(
            isinstance(text, str) for field in changed.ext_fields.items() for text in field
        ):
            raise TypeError("it put something into ext_fields that is no text")
        return changed

    def _failed(self, name: str, stats: HookStats, method: str, error: Exception) -> None:
        stats.errors += 1
        self._log.write(
            logging.ERROR,
            name,
            "hook failed hook=%s method=%s error=%s",
            name,
            method,
            shortened(repr(error)),
        )

    def _look_at_time(self, remote: str) -> None:
        now = self._clock()
        self._left_s = min(BURST_S, self._left_s + (now - self._filled_at) * SHARE)
        self._filled_at = now
        if self._left_s <= 0:
            self.overloads += 1
            self._log.write(
                logging.WARNING,
                "time",
                "request refused: hooks took their share of the time peer=%s share=%s",
                remote,
                SHARE,
            )
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]hooks of this server took more than {SHARE:.0%} of its time, try again later",
            )

    def _account(self, name: str, stats: HookStats, seconds: float) -> None:
        stats.seconds += seconds
        self._left_s = max(-DEBT_MAX_S, self._left_s - seconds)
        if seconds > CALL_MAX_S:
            stats.slow += 1
            self._log.write(
                logging.WARNING,
                name,
                "slow hook hook=%s took_ms=%d allowed_ms=%d",
                name,
                seconds * 1000,
                CALL_MAX_S * 1000,
            )
