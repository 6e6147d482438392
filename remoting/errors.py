"""Exceptions of the wire layer, by the side at fault."""

from __future__ import annotations


class RemotingError(Exception):
    """Root of the exceptions that this package raises on purpose."""


class LocalProtocolError(RemotingError):
    """Our caller wants to send something that the protocol does not allow; nothing was sent."""


class RemoteProtocolError(RemotingError):
    """The peer sent something the protocol does not allow; the connection must be closed."""


class ConnectionLost(RemotingError):
    """The connection could not be made or went away.

    Attributes:
        sent: False if no byte of the request can have reached the peer (the request was *not applied*);
            True if it may have (its outcome is *unknown*).
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class RequestTimeout(RemotingError):
    """No answer within the deadline. The outcome of the request is unknown."""


class TooManyRequests(RemotingError):
    """The local limit on outstanding requests is reached; nothing was sent."""


class Withdrawn(RemotingError):
    """The request was not needed any more when its turn came; nothing was sent."""


class ResponseError(RemotingError):
    """The peer answered with a code other than success.

    Attributes:
        code: Response code, see :class:`routekeeper.remoting.codes.ResponseCode`.
        remark: The peer's text, empty if it sent none.
    """

    def __init__(self, code: int, remark: str | None, *, peer: str = "") -> None:
        super().__init__(f"code={code} remark={remark or ''}" + (f" peer={peer}" if peer else ""))
        self.code = code
        self.remark = remark or ""
        self.peer = peer


class RequestRefused(RemotingError):
    """A hook does not let a request through; a server answers with code and remark, a client sends nothing.

    Raised by ``before_request`` of a hook, see :class:`routekeeper.remoting.transport.RPCHook`.

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
    """An argument of a request is missing or wrong; the request is refused, the connection stays.

    Attributes:
        name: The argument's name on the wire.
        value: The received value; None if there was none.
        allowed: The allowed values, for people.
    """

    def __init__(self, name: str, value: str | None, allowed: str) -> None:
        came = "is missing" if value is None else f"is {value[:64]!r}"
        super().__init__(f"argument {name} {came}, allowed: {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed
