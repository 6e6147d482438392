"""Interface of the raft package for the layer above: settings, roles, the state machine it drives."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from routekeeper.remoting.steps import Steps

Durability = Literal["memory", "journal", "fsync"]

#: N in milliseconds. A leader that falls silent is replaced after N..2N (4/3 N on average, the smaller of two
#: draws), heartbeats leave every N/6. A killed process closes its links and is replaced within about N/2. On
#: two cores shared by twelve busy processes, a single idle one was seen to wait up to 0.45 s for its turn: a
#: shorter N would take that for death.
ELECTION_TIMEOUT_MS: Final = 500
#: Smaller values that a peer states are refused; settings allow no smaller one either.
ELECTION_TIMEOUT_MS_MIN: Final = 30
ELECTION_TIMEOUT_MS_MAX: Final = 60_000

#: A shorter secret could be guessed from a recorded handshake. It is the key of a MAC of the same length.
SECRET_SIZE_MIN: Final = 32


class Role(enum.StrEnum):
    """The role of a member. A learner neither votes nor counts."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEARNER = "learner"


class RaftStartError(Exception):
    """The member must not start. The text is one line for the operator; the program exits with 2."""


def _said(error: Any) -> object:
    return getattr(error, "strerror", None) or error


@contextlib.contextmanager
def needed_to_start(
    what: object, *errors: type[Exception], reason: Callable[[Any], object] = _said
) -> Iterator[None]:
    """Turn these errors into a RaftStartError: one line that names ``what`` and the reason."""
    try:
        yield
    except errors as error:
        raise RaftStartError(f"raft: {what}: {reason(error)}") from error


def secrets_in(content: bytes) -> tuple[bytes, ...]:
    """Return the secrets that a file holds, the preferred one first.

    Two lines that are long enough are two secrets, the old one and the new one. The whole content comes last:
    it is the secret of a member of an older version, which reads the file as one secret.
    """
    whole = content.strip()
    lines = [line.strip() for line in whole.splitlines()]
    if len(lines) == 2 and all(len(line) >= SECRET_SIZE_MIN for line in lines):
        return (*lines, whole)
    return (whole,)


class StopMember(Exception):
    """Raised by :meth:`StateMachine.apply` for an entry it cannot read (a newer format).

    The member stops with the message; the entry does not count as applied, so nothing is lost.
    """


class NotLeader(Exception):
    """Nothing was done, because only the leader changes the cluster. ``leader`` is None if it is not
    known.
    """

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"the leader is {leader}" if leader is not None else "no leader is known")
        self.leader = leader


class ChangeRefused(Exception):
    """Nothing was done; the text tells an operator why, and how to proceed."""


class ChangeNotYet(ChangeRefused):
    """Refused for a reason that usually passes within a second."""


class ChangeUnknown(Exception):
    """The deadline passed before the change was complete; it may still complete. The text says how far it
    got.
    """


class StateMachine(Protocol):
    """The replicated state. Methods run on the event loop unless they say otherwise."""

    def apply(self, payload: bytes, *, index: int, term: int, live: bool) -> Steps[None] | None:
        """Apply one committed entry. A command that is rejected is applied, too: its outcome is the
        rejection.

        The state belongs to ``index`` once all steps are made. Between two steps only :meth:`prepare` is
        called. A snapshot may replace the state before the last step.

        Returns:
            The steps that are left, None if there are none.

        Any exception stops the member, and the entry does not count as applied. :class:`StopMember` says why;
        any other exception is a defect or a lack of memory.

        ``live`` is False for entries that this member already had in its log when it started.
        """

    def snapshot(self) -> Callable[[], bytes]:
        """Return, quickly, a function that encodes the present state; the function runs in a thread."""

    def prepare(self, image: bytes | bytearray) -> Callable[[], None]:
        """Read a snapshot that :meth:`snapshot` made, here or on another member; runs in a thread.

        The caller keeps the snapshot: do not change it.

        Returns:
            A quick function that replaces the state by the snapshot, to be called on the event loop, or
            never.

        Raises:
            StopMember: A newer program made it.
        """

    def restored(self, image: bytes | bytearray) -> bytes:
        """Return the snapshot that an operator restores, with any mark that the machine adds; runs in a
        thread.

        A restored state may be an older or an unrelated one. The machine can mark it, so that it differs from
        every former state.

        Raises:
            StopMember: A newer program made it.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """One member's settings.

    Attributes:
        me: Identity, ``HOST:PORT``; compared as text, resolved at each dial.
        peers: Identities of all members, this one included.
        listen: Address to bind if other than ``me``.
        secret: The members' shared secret. A bound address that is not loopback needs it or certificates.
        other_secrets: Secrets that are accepted as well while the secret is changed.
        secret_file: The file of the secrets; read again when it changes, if it is named.
        tls_cert: PEM file with this member's certificate; it names the host of ``me``, and may be used by
            TLS servers and clients. Together with ``tls_key`` and ``tls_ca``, or none of the three.
        tls_key: PEM file with its key, without a password.
        tls_ca: PEM file with the authority that every member's certificate must come from.
        election_timeout_ms: N. Election timeouts are drawn from N..2N, a heartbeat leaves every N/6.
        entry_size_max: Largest payload of one entry, in bytes.
        compact_bytes: A snapshot is taken when the journal has grown by this much since the last one
            (or by twice the last snapshot, if that is more).
        http: ``HOST:PORT`` where operators reach this member's HTTP port; announced to the others, may be
            empty.
        force_new_cluster: For a quorum that is lost for good: become the only member of a new cluster,
            with the data of this directory, if any. Old members are refused until their disks are
            emptied.
    """

    me: str
    peers: tuple[str, ...]
    listen: str | None
    data_dir: Path
    durability: Durability = "journal"
    secret: bytes | None = None
    other_secrets: tuple[bytes, ...] = ()
    secret_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    election_timeout_ms: int = ELECTION_TIMEOUT_MS
    entry_size_max: int = 5 * 1024 * 1024
    compact_bytes: int = 2 * 1024 * 1024
    http: str = ""
    force_new_cluster: bool = False

    @property
    def authenticated(self) -> bool:
        """Return whether peers must prove their identity, so that only members can send messages."""
        return self.secret is not None or self.tls_ca is not None

    def validate(self) -> None:
        """Check the secret, which :mod:`routekeeper.nameserver.settings` cannot, because it is read later.

        Raises:
            RaftStartError: It is too short.
        """
        if self.secret is not None and len(self.secret) < SECRET_SIZE_MIN:
            raise RaftStartError(
                f"raft: the secret has {len(self.secret)} bytes, at least {SECRET_SIZE_MIN} are needed"
            )
