"""Exceptions of the wire layer. Their classes tell the kind of failure, and which side caused it."""

from __future__ import annotations


class RemotingError(Exception):
    """Root of the exceptions that this package raises on purpose."""


class LocalProtocolError(RemotingError):
    """The caller in this process wants to send something that the protocol forbids; nothing was sent."""


class RemoteProtocolError(RemotingError):
    """The peer sent something that the protocol forbids; the connection must be closed."""


class ConnectionLost(RemotingError):
    """The connection could not be opened, or it was lost.

    Attributes:
        sent: False if no byte of the request can have reached the peer: the request was *not applied*.
            True if bytes may have reached the peer: the request's outcome is *unknown*.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class RequestTimeout(RemotingError):
    """The deadline passed before the peer answered. The outcome of the request is unknown."""


class TooManyRequests(RemotingError):
    """The local limit on outstanding requests is reached; nothing was sent."""


class Withdrawn(RemotingError):
    """The caller withdrew a request before it was sent; nothing was sent."""


class ResponseError(RemotingError):
    """The peer answered with a code other than success.

    Attributes:
        code: Response code, see :class:`routekeeper.remoting.codes.ResponseCode`.
        remark: The peer's text; empty if the peer sent no text.
    """

    def __init__(self, code: int, remark: str | None, *, peer: str = "") -> None:
        super().__init__(f"code={code} remark={remark or ''}" + (f" peer={peer}" if peer else ""))
        self.code = code
        self.remark = remark or ""
        self.peer = peer


class RequestRefused(RemotingError):
    """A hook refuses a request. A server then answers with this code and remark; a client sends nothing.

    A hook's ``before_request`` raises this error, see :class:`routekeeper.remoting.transport.RPCHook`.

    Attributes:
        code: Response code, 1 to 2147483647, such as 16 (no permission).
        remark: Reason, for people; cut to at most :data:`REMARK_MAX` characters.
    """

    REMARK_MAX = 1024

    def __init__(self, code: int, remark: str) -> None:
        if not 0 < code < 1 << 31:
            raise ValueError(f"code={code} refuses nothing, allowed are 1 to {(1 << 31) - 1}")
        super().__init__(f"code={code} remark={remark}")
        self.code = code
        self.remark = remark[: self.REMARK_MAX]


class FieldError(RemotingError):
    """An argument of a request is missing or wrong. The request is refused; the connection stays open.

    Attributes:
        name: The argument's name on the wire.
        value: The received value; None if the argument is missing.
        allowed: The allowed values, as text for people.
    """

    def __init__(self, name: str, value: str | None, allowed: str) -> None:
        came = "is missing" if value is None else f"is {value[:64]!r}"
        super().__init__(f"argument {name} {came}, allowed: {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed
