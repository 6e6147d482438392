"""Exceptions of the client. A class shows whether the requested change was not made or may have been made.

This tree has all exceptions that the client raises on purpose. A subclass is below its base class::

    RemotingError                   root of all
        ClientError                 raised by the client itself
            ForkedClient            a forked process uses a client of its parent process; nothing was done
            InvalidArgument         a value is not allowed; nothing was sent (also a ValueError)
            NoResult                a listener's result does not say whether its messages were consumed
            NotApplied              the change was certainly not made
                ClientClosed        the client is closed; nothing was sent
                NoAnswer            an address gave no usable answer; nothing was changed
                NoNameserver        no nameserver answered
                NoRoute             the nameservers know no route of the topic
                PartlyNotApplied    of several changes, some were certainly not made; all others were made
                SendNotApplied      no broker stored the message
            OutcomeUnknown          the change may have been made
                PartlyUnknown       of several changes, some may have been made; ``failures`` names them
                SendOutcomeUnknown  a broker may have stored the message
            WrongLoop               the asyncio client began under another event loop; nothing was done
        ConnectionLost              the connection could not be made, or was lost
        FieldError                  an argument of a request is missing or wrong
        LocalProtocolError          the protocol does not allow this request; nothing was sent
        RemoteProtocolError         the peer sent bytes that the protocol does not allow
        RequestRefused              a hook did not let the request through; nothing was sent
        RequestTimeout              no answer in time; the outcome is unknown
        ResponseError               the peer answered with a code other than success
        TlsError                    a connection cannot be secured, or a file of keys cannot be used
        TooManyRequests             too many requests are under way; nothing was sent
        Withdrawn                   the request was not needed any more; nothing was sent

An operation that knows the outcome raises a ClientError. Other operations raise a ResponseError if the peer
refuses the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from routekeeper.remoting.errors import RemotingError, ResponseError

#: Largest number of failed changes that an error's text names. The attribute ``failures`` has all of them.
_NAMED_MAX: Final = 8


class ClientError(RemotingError):
    """Root of the exceptions that this package raises on purpose."""


class InvalidArgument(ClientError, ValueError):
    """The caller passed a value that is not allowed; nothing was sent. The error names the allowed values."""


class NotApplied(ClientError):
    """The change was certainly not made, because no server accepted it.

    If a call requests several changes (:class:`PartlyNotApplied`), only the changes that the error names were
    not made.
    """


class OutcomeUnknown(ClientError):
    """The change may or may not have been made: a request was sent, but no answer says what happened."""


class NoNameserver(NotApplied):
    """No nameserver answered.

    Attributes:
        failures: The reason of the failure, for each nameserver address.
    """

    def __init__(self, failures: Mapping[str, str]) -> None:
        tried = "; ".join(f"{addr}: {reason}" for addr, reason in failures.items())
        super().__init__(
            f"no nameserver answered ({tried})" if tried else "no nameserver address is configured"
        )
        self.failures = dict(failures)


class NoRoute(NotApplied):
    """The nameservers know no route of the topic, or only a route that cannot be used for the operation."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"No route info of this topic: {topic} ({reason})")
        self.topic = topic


class PartlyNotApplied(NotApplied):
    """Some of several changes at queues or brokers were certainly not made; all other changes were made.

    Attributes:
        failures: The failed changes: for each queue or broker address, the error.
    """

    def __init__(self, change: str, failures: Mapping[Any, RemotingError], *, of: int) -> None:
        super().__init__(_parts(change, failures, of=of))
        self.failures = dict(failures)


class PartlyUnknown(OutcomeUnknown):
    """At least one of several changes at queues or brokers has an unknown outcome.

    All changes that ``failures`` does not name were made. The attributes are those of
    :class:`PartlyNotApplied`.
    """

    def __init__(self, change: str, failures: Mapping[Any, RemotingError], *, of: int) -> None:
        super().__init__(_parts(change, failures, of=of))
        self.failures = dict(failures)


class ClientClosed(NotApplied):
    """The client was closed; nothing was sent."""


class WrongLoop(ClientError):
    """The asyncio client is used under another event loop than its first loop; nothing was done.

    The client's connections and tasks belong to the first loop. Make a client in each loop.
    """

    def __init__(self) -> None:
        super().__init__("client of one event loop is used under another one: make one in each loop")


class ForkedClient(ClientError):
    """The client was made before the fork of this process; nothing was done.

    The client's connections, threads and tasks belong to the parent process. If two processes used the same
    connections, they would disturb each other. Make a client in each process.
    """

    def __init__(self, made_in: int, used_in: int) -> None:
        super().__init__(
            f"client made in process {made_in} is used in its fork {used_in}: make one in each process"
        )


def describe(error: BaseException) -> str:
    """Return one line that describes an error: for a ResponseError the code and remark, else the text."""
    if isinstance(error, ResponseError):
        return f"CODE: {error.code}  DESC: {error.remark}"
    return str(error) or type(error).__name__


class SendNotApplied(NotApplied):
    """No broker stored the message.

    Attributes:
        code: Code of the last answer, or None if no broker answered.
        failures: The failures, one line for each try.
    """

    def __init__(self, topic: str, code: int | None, failures: tuple[str, ...]) -> None:
        super().__init__(f"message not stored topic={topic}: {_tries(failures)}")
        self.code = code
        self.failures = failures


class SendOutcomeUnknown(OutcomeUnknown):
    """A broker may have stored the message once or several times.

    The attributes are those of :class:`SendNotApplied`.
    """

    def __init__(self, topic: str, code: int | None, failures: tuple[str, ...]) -> None:
        super().__init__(f"message maybe stored topic={topic}: {_tries(failures)}")
        self.code = code
        self.failures = failures


def _parts(change: str, failures: Mapping[Any, RemotingError], *, of: int) -> str:
    texts = [f"{place}: {describe(error)}" for place, error in failures.items()]
    more = f"; and {len(texts) - _NAMED_MAX} more" if len(texts) > _NAMED_MAX else ""
    return f"{change} at {len(texts)} of {of}: {'; '.join(texts[:_NAMED_MAX])}{more}"


def _tries(failures: tuple[str, ...]) -> str:
    return f"{len(failures)} tries: " + "; ".join(failures) if failures else "no try within the timeout"
