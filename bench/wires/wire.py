"""The interface of a protocol for load programs, which encodes requests and decodes answers without I/O.

One object is one connection. The encoders of both protocols prepare their requests once and then replace
numbers in the prepared bytes. So the load program costs about the same CPU time for each system. The report
states this CPU time.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class WireError(Exception):
    """The server broke the protocol, or refused a request that a healthy cluster accepts."""


class Answer(NamedTuple):
    """One answer of the server.

    Attributes:
        tag: Tag of the request (see :attr:`Conversation.tag`).
        error: The server's reason for refusing the request, or None for success.
        body: The content that was read, or empty for writes.
    """

    tag: int
    error: str | None
    body: bytes


class Conversation(Protocol):
    """One connection of one client.

    Attributes:
        ready: True if requests may be sent. If the protocol has a handshake, True only after the handshake.
        tag: Number of the request that was encoded last. Its answer has the same number.
        out: Bytes to send that no caller has asked for, such as the request that sets the next watch. The
            load program sends and then clears them.
    """

    ready: bool
    tag: int
    out: bytearray

    def hello(self) -> bytes:
        """Return the bytes to send first on a new connection."""

    def feed(self, data: bytes) -> list[Answer]:
        """Decode received bytes, and return the answers that are now complete.

        Raises:
            WireError: If the bytes break the protocol.
        """


class Wire(Conversation, Protocol):
    """A connection that writes one broker or node, and can read what other connections write."""

    def prepare(self) -> bytes:
        """Return the request that creates this connection's broker or node. It must precede any write."""

    def write(self, number: int) -> bytes:
        """Return the request that writes value ``number`` to this connection's own broker or node."""

    def read(self, number: int, key: int) -> bytes:
        """Return the request that reads the value that write ``number`` of the connection ``key`` changes."""

    def marker(self, number: int) -> bytes:
        """Return bytes that an answer to :meth:`read` contains only after write ``number`` is visible."""
