"""Exceptions of the client, ordered by outcome: whether the requested change was made.

All exceptions that the client raises on purpose, in the order of inheritance::

    RemotingError                   root of all
        ClientError                 raised by the client itself
            ForkedClient            used in a fork of the process that made the client; nothing was done
            InvalidArgument         a value is not allowed; nothing was sent (also a ValueError)
            NoResult                a listener's result does not say whether its messages were consumed
            NotApplied              the change was certainly not made
                ClientClosed        the client is closed; nothing was sent
                NoAnswer            an address gave no usable answer; nothing was changed
                NoNameserver        no nameserver answered
                NoRoute             the nameservers know no route of the topic
                PartlyNotApplied    of several changes, some were certainly not made; the others were
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

An operation that knows the outcome raises a ClientError. Others pass a peer's refusal on as a ResponseError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from routekeeper.remoting.errors import RemotingError, ResponseError

#: Bound of the failed changes that an error's text names; its ``failures`` names all.
_NAMED_MAX: Final = 8


class ClientError(RemotingError):
    """Root of the exceptions that this package raises on purpose."""


class InvalidArgument(ClientError, ValueError):
    """The caller passed a value that is not allowed; nothing was sent. The error names the allowed values."""


class NotApplied(ClientError):
    """The change was certainly not made: no server accepted it, or all refused it.

    If a call requests several changes (:class:`PartlyNotApplied`), this holds for those that the error names.
    """


class OutcomeUnknown(ClientError):
    """The change may or may not have been made: a request was sent, and no answer shows its outcome."""


class NoNameserver(NotApplied):
    """No nameserver answered.

    Attributes:
        failures: The failure at each address.
    """

    def __init__(self, failures: Mapping[str, str]) -> None:
        tried = "; ".join(f"{addr}: {reason}" for addr, reason in failures.items())
        super().__init__(
            f"no nameserver answered ({tried})" if tried else "no nameserver address is configured"
        )
        self.failures = dict(failures)


class NoRoute(NotApplied):
    """The nameservers know no route of the topic, or none that serves the purpose."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"No route info of this topic: {topic} ({reason})")
        self.topic = topic


class PartlyNotApplied(NotApplied):
    """Of several changes at queues or brokers, some were certainly not made; all others were.

    Attributes:
        failures: The queues, or the addresses of the brokers, each with its failure.
    """

    def __init__(self, change: str, failures: Mapping[Any, RemotingError], *, of: int) -> None:
        super().__init__(_parts(change, failures, of=of))
        self.failures = dict(failures)


class PartlyUnknown(OutcomeUnknown):
    """Of several changes at queues or brokers, at least one has an unknown outcome.

    Changes that ``failures`` does not name were made. Attributes as for :class:`PartlyNotApplied`.
    """

    def __init__(self, change: str, failures: Mapping[Any, RemotingError], *, of: int) -> None:
        super().__init__(_parts(change, failures, of=of))
        self.failures = dict(failures)


class ClientClosed(NotApplied):
    """The client was shut down; nothing was sent."""


class WrongLoop(ClientError):
    """The asyncio client is used under another event loop than its first one; nothing was done.

    Its connections and tasks belong to that loop. Make a client in each loop.
    """

    def __init__(self) -> None:
        super().__init__("client of one event loop is used under another one: make one in each loop")


class ForkedClient(ClientError):
    """The client was made before the fork of this process; nothing was done.

    Its connections, threads and tasks belong to the parent process: two users would disturb each other. Make
    a client in each process.
    """

    def __init__(self, made_in: int, used_in: int) -> None:
        super().__init__(
            f"client made in process {made_in} is used in its fork {used_in}: make one in each process"
        )


def describe(error: BaseException) -> str:
    """Return one line for people: a peer's own words if there are some, else the exception's text."""
    if isinstance(error, ResponseError):
        return f"CODE: {error.code}  DESC: {error.remark}"
    return str(error) or type(error).__name__


class SendNotApplied(NotApplied):
    """No broker stored the message.

    Attributes:
        code: Code of the last answer, or None if there was none.
        failures: The failures, one line for each try.
    """

    def __init__(self, topic: str, code: int | None, failures: tuple[str, ...]) -> None:
        super().__init__(f"message not stored topic={topic}: {_tries(failures)}")
        self.code = code
        self.failures = failures


class SendOutcomeUnknown(OutcomeUnknown):
    """A broker may have stored the message, once or more often; attributes as for :class:`SendNotApplied`."""

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
