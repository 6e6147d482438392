"""Authentication of links: both ends prove their identity, and a message authentication code protects frames.

This module does no I/O. The caller passes in random nonces. MAC means message authentication code.

A handshake has four frames. The dialling side proves its identity first, so a dialler without the secret
learns only one random number::

    dialler                               acceptor
    HELLO magic, from, to, cluster, nonce ->
                                          <- CHALLENGE nonce
    PROOF mac("dialler")                  ->
                                          <- PROOF mac("acceptor")

A proof is HMAC-SHA256 with the shared secret as the key, over the role and the transcript (identities,
cluster, both nonces). Each later frame ends in a MAC over a counter and the frame. Each session and each
direction has its own key for MACs. So an attacker cannot change, repeat, omit or reflect a frame, and cannot
replay a frame in another session. Without a secret, which is allowed only on loopback or under TLS, proofs
and MACs are empty.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

import msgspec

from routekeeper.remoting.bounds import ADDR_FORM, is_address
from routekeeper.remoting.lenient import UNREADABLE

MAGIC: Final = "RouteKeeper raft 1"
NONCE_SIZE: Final = 32
MAC_SIZE: Final = 16


class LinkError(Exception):
    """The link must be closed, because the peer has a wrong identity, or sent unusable bytes."""


class _Hello(msgspec.Struct, array_like=True, frozen=True):
    magic: str
    sender: str
    receiver: str
    cluster: str
    nonce: bytes
    open: bool = False


class Seal:
    """The message authentication codes (MACs) for one direction of one session.

    A MAC is the first MAC_SIZE bytes of HMAC-SHA256 over a counter and the frame. Without a key, it is empty.
    """

    __slots__ = ("_counter", "_keyed", "size")

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256") if key else None
        self._counter = 0
        self.size = MAC_SIZE if key else 0

    def next(self, *parts: bytes | memoryview) -> bytes:
        """Return the MAC of the next frame, whose bytes are the ``parts`` in order."""
        if self._keyed is None:
            return b""
        mac = self._keyed.copy()
        mac.update(self._counter.to_bytes(8, "big"))
        for part in parts:
            mac.update(part)
        self._counter += 1
        return mac.digest()[:MAC_SIZE]

    def check(self, body: bytes | memoryview, mac: bytes | memoryview) -> None:
        """Check the MAC of the next frame.

        Raises:
            LinkError: The MAC is wrong, and the caller must end the session.
        """
        if not hmac.compare_digest(self.next(body), mac):
            raise LinkError("frame with a wrong MAC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """One member's data for its handshakes.

    Attributes:
        members: Members that this member knows. An unknown member of the same cluster may connect, too. The
            cluster may have added the peer while this member was away, or removed it while the peer was away.
        open: True if this member is empty, so that it belongs to no cluster yet. ``cluster`` is then the name
            of the cluster that this member would form.
        other_secrets: Secrets that dialling members may also use while operators change the secret.
    """

    me: str
    members: frozenset[str]
    cluster: str
    secret: bytes | None
    open: bool = False
    other_secrets: tuple[bytes, ...] = ()

    @property
    def secrets(self) -> tuple[bytes | None, ...]:
        """All secrets, the preferred secret first."""
        return (self.secret, *self.other_secrets)


class Handshake:
    """One side of a handshake, which ends with keys for the MACs of both directions.

    Args:
        peer: The dialled member; None on the accepting side.
        nonce: New random bytes; their number is NONCE_SIZE.
        attempt: Number of earlier dials in which the peer refused the proof. Each refusal selects the next
            secret.

    Attributes:
        peer: On the dialling side: the identity that was dialled. On the accepting side: the identity that
            the dialler claims; empty before the first frame.
        proven: True once the peer has proved its identity. Later frames carry MACs of ``outgoing`` and
            ``incoming``.
    """

    def __init__(self, credentials: Credentials, *, peer: str | None, nonce: bytes, attempt: int = 0) -> None:
        assert len(nonce) == NONCE_SIZE
        self._mine = credentials
        self._secret = credentials.secrets[attempt % len(credentials.secrets)]
        self._dials = peer is not None
        self.peer = peer or ""
        self._nonce = nonce
        self._their_nonce = b""
        self._cluster = credentials.cluster  # the cluster's name as the dialler states it
        self.proven = False
        self.outgoing = self.incoming = Seal(b"")

    @property
    def is_proof_refused(self) -> bool:
        """True if this member has dialled and has sent its proof, but the peer has sent no proof.

        After the connection has ended, True means that the peer has refused this member's proof. On the
        accepting side, the value is always False.
        """
        return self._dials and bool(self._their_nonce) and not self.proven

    @property
    def refusal(self) -> str:
        """The likely reason why the peer closed an unproven connection, for the dialler's log."""
        if self._their_nonce:
            return "it does not take our proof: is its secret another one?"
        return "it does not take us for a member: its log says why"

    def begin(self) -> bytes:
        """Return the dialler's first frame."""
        return msgspec.msgpack.encode(
            _Hello(MAGIC, self._mine.me, self.peer, self._mine.cluster, self._nonce, self._mine.open)
        )

    def receive(self, frame: bytes) -> bytes | None:
        """Handle the peer's next frame, and return the frame to send, or None.

        Raises:
            LinkError: The connection must be closed.
        """
        if not self._their_nonce and not self._dials:
            return self._take_hello(frame)
        if not self._their_nonce:
            if len(frame) != NONCE_SIZE:
                raise LinkError(f"challenge of {len(frame)} bytes")
            self._their_nonce = frame
            return self._proof("dialler")
        theirs, ours = ("acceptor", "dialler") if self._dials else ("dialler", "acceptor")
        for secret in (self._secret,) if self._dials else self._mine.secrets:
            self._secret = secret
            if hmac.compare_digest(self._proof(theirs), frame):
                break
        else:
            raise LinkError(f"wrong proof from {self.peer}: another secret")
        our_key, their_key = self._proof(ours, b"key "), self._proof(theirs, b"key ")
        self.outgoing, self.incoming, self.proven = Seal(our_key), Seal(their_key), True
        return None if self._dials else self._proof("acceptor")

    def _take_hello(self, frame: bytes) -> bytes:
        try:
            hello = msgspec.msgpack.decode(frame, type=_Hello)
        except UNREADABLE as error:
            raise LinkError(f"no hello of ours: {error}") from error
        mine = self._mine
        if hello.magic != MAGIC or len(hello.nonce) != NONCE_SIZE:
            raise LinkError("no hello of ours")
        if hello.receiver != mine.me:
            raise LinkError(f"{hello.sender[:80]!r} wants {hello.receiver[:80]!r}, this is {mine.me}")
        if not is_address(hello.sender):  # check the name's form: the name will be logged, dialled and stored
            raise LinkError(f"{hello.sender[:80]!r} is no {ADDR_FORM}")
        stranger = hello.sender not in mine.members and (hello.open or hello.cluster != mine.cluster)
        if (stranger and not mine.open) or hello.sender == mine.me:
            raise LinkError(f"{hello.sender[:80]!r} is no member")
        if hello.cluster != mine.cluster and hello.open == mine.open:
            raise LinkError(f"{hello.sender[:80]!r} is of another cluster: its peers differ from ours")
        self._cluster = hello.cluster
        self.peer, self._their_nonce = hello.sender, hello.nonce
        return self._nonce

    def _proof(self, role: str, purpose: bytes = b"proof ") -> bytes:
        """Return the MAC which proves that the member in this ``role`` knows the secret.

        Without a secret, the result is empty.
        """
        if self._secret is None:
            return b""
        ours, theirs = (self._mine.me, self._nonce), (self.peer, self._their_nonce)
        (dialler, first), (acceptor, second) = (ours, theirs) if self._dials else (theirs, ours)
        transcript = msgspec.msgpack.encode((MAGIC, self._cluster, dialler, acceptor, first, second))
        return hmac.digest(self._secret, purpose + role.encode() + transcript, "sha256")
