"""The load generator's interface to a protocol: requests as bytes, answers from bytes, no IO.

One object is one connection. Both encodings prepare their requests once and then patch numbers into
them, so that the generator's cost is about the same for each system; the report states that cost.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class WireError(Exception):
    """The server broke the protocol, or refused a request that a healthy cluster serves."""


class Answer(NamedTuple):
    """One answer.

    Attributes:
        tag: That of the request, see :attr:`Wire.tag`.
        error: Why the server refused; None for success.
        body: What was read; empty for writes.
    """

    tag: int
    error: str | None
    body: bytes


class Conversation(Protocol):
    """One connection of one client.

    Attributes:
        ready: Whether requests may be sent: the handshake, if there is one, is over.
        tag: Number by which the answer to the request encoded last can be told.
        out: Bytes that the protocol itself has to send (acknowledgements); the driver sends and clears them.
    """

    ready: bool
    tag: int
    out: bytearray

    def hello(self) -> bytes:
        """Return what is sent first."""
        ...

    def feed(self, data: bytes) -> list[Answer]:
        """Take what arrived; return the answers that are complete.

        Raises:
            WireError: If it is not what this protocol sends.
        """
        ...


class Wire(Conversation, Protocol):
    """Writes one key, broker or node, and reads any."""

    def prepare(self) -> bytes:
        """Return the request that creates this connection's own key, broker or node; once, before writes."""
        ...

    def write(self, number: int) -> bytes:
        """Return the request that puts value ``number`` under this connection's own key."""
        ...

    def read(self, number: int, key: int) -> bytes:
        """Return the request for what write ``number`` of connection ``key`` has changed here."""
        ...

    def marker(self, number: int) -> bytes:
        """Return bytes that an answer to :meth:`read` holds once write ``number`` is visible, not before."""
        ...


class BrokerWire(Conversation, Protocol):
    """One broker that only stays registered."""

    def steps(self) -> list[list[bytes]]:
        """Return the requests that list the broker and its topics; a step waits for the answers before it."""
        ...

    def heartbeat(self) -> bytes:
        """Return what keeps the broker listed; it is answered."""
        ...


class WatchWire(Conversation, Protocol):
    """Receives every change of one key, broker or node.

    An answer holds what there is now, the first one what there was when the watch began. What else the
    protocol asks of a client that wants to go on hearing is in ``out``.
    """

    def watch(self) -> bytes:
        """Return the request that begins the watch; it is called once."""
        ...
