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
        tag: Tag of the request, see :attr:`Wire.tag`.
        error: The server's reason to refuse; None for success.
        body: The content that was read; empty for writes.
    """

    tag: int
    error: str | None
    body: bytes


class Conversation(Protocol):
    """One connection of one client.

    Attributes:
        ready: Whether requests may be sent: the handshake, if there is one, is over.
        tag: Number of the request that was encoded last; its answer carries the same number.
        out: Bytes that the protocol itself has to send (acknowledgements); the driver sends and clears them.
    """

    ready: bool
    tag: int
    out: bytearray

    def hello(self) -> bytes:
        """Return the bytes to send first on a new connection."""
        ...

    def feed(self, data: bytes) -> list[Answer]:
        """Take received bytes; return the answers that are complete.

        Raises:
            WireError: If the bytes break the protocol.
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
        """Return the request that reads the value which write ``number`` of connection ``key`` changes."""
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
        """Return the request that keeps the broker listed; the server answers it."""
        ...


class WatchWire(Conversation, Protocol):
    """Receives every change of one key, broker or node.

    An answer has the present content; the first answer has the content at the begin of the watch. If the
    protocol requires further requests to continue the watch, they are in ``out``.
    """

    def watch(self) -> bytes:
        """Return the request that begins the watch; it is called once."""
        ...
