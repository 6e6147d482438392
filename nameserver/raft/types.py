"""Interface of the raft package for the layer above: settings, roles, and the state machine to implement."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from routekeeper.remoting.steps import Steps

Durability = Literal["memory", "journal", "fsync"]

#: The election timeout N in milliseconds. Followers replace a silent leader after a random time of N to 2N.
#: With two followers the average is 4/3 N, because the follower with the shorter random time stands for
#: election first. The leader sends heartbeats every N/6. If the leader's process is killed, its links close,
#: and the followers replace the leader within about N/2. With a smaller N, members could take a busy member
#: for a dead member. In a measurement with twelve busy processes on two cores, an idle process waited up to
#: 0.45 s for a processor.
ELECTION_TIMEOUT_MS: Final = 500
#: The smallest election timeout, in milliseconds, that the settings and a peer's first message may state.
ELECTION_TIMEOUT_MS_MIN: Final = 30
ELECTION_TIMEOUT_MS_MAX: Final = 60_000

#: Smallest size in bytes of a secret. An attacker could guess a shorter secret with the help of a recorded
#: handshake. 32 bytes is also the size of the HMAC-SHA256 values in a handshake.
SECRET_SIZE_MIN: Final = 32


class Role(enum.StrEnum):
    """The role of a member in the raft group. A learner does not vote and does not count in a majority."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEARNER = "learner"


class RaftStartError(Exception):
    """The member must not start. The text is one line for the operator; the program's exit status is 2."""


def _said(error: Any) -> object:
    return getattr(error, "strerror", None) or error


@contextlib.contextmanager
def needed_to_start(
    what: object, *errors: type[Exception], reason: Callable[[Any], object] = _said
) -> Iterator[None]:
    """Turn ``errors`` into a RaftStartError, whose text is one line with ``what`` and the reason."""
    try:
        yield
    except errors as error:
        raise RaftStartError(f"raft: {what}: {reason(error)}") from error


def secrets_in(content: bytes) -> tuple[bytes, ...]:
    """Return the secrets in a file's content, the preferred secret first.

    If the file has two lines that are long enough, the lines are the old and the new secret. The whole
    content is then the last secret in the result, because older versions read the whole file as one secret.
    """
    whole = content.strip()
    lines = [line.strip() for line in whole.splitlines()]
    if len(lines) == 2 and all(len(line) >= SECRET_SIZE_MIN for line in lines):
        return (*lines, whole)
    return (whole,)


class StopMember(Exception):
    """:meth:`StateMachine.apply` cannot read an entry, for example because a newer program wrote the entry.

    The member stops with the message. The entry does not count as applied, so nothing is lost.
    """


class NotLeader(Exception):
    """The change of the cluster was not made, because only the leader makes such changes.

    Attributes:
        leader: Identity of the leader; None if no leader is known.
    """

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"the leader is {leader}" if leader is not None else "no leader is known")
        self.leader = leader


class ChangeRefused(Exception):
    """The change of the cluster was not made. The text tells an operator the reason and the next step."""


class ChangeNotYet(ChangeRefused):
    """The change of the cluster was refused for a reason that usually passes within a second."""


class ChangeUnknown(Exception):
    """The change of the cluster was not complete at its deadline. It may still become complete later.

    The text says how far the change got.
    """


class StateMachine(Protocol):
    """The replicated state. Methods run on the event loop unless their docstring names a thread."""

    def apply(self, payload: bytes, *, index: int, term: int, live: bool) -> Steps[None] | None:
        """Apply one committed entry.

        If the state machine rejects the entry's command, the entry counts as applied, too.

        After the last step, the state includes the entry. Between two steps, the caller calls only
        :meth:`prepare` and :meth:`restored`. A snapshot may replace the state before the last step.

        Args:
            live: False for an entry that this member already had in its log when it started.

        Returns:
            The remaining steps, or None if the entry is applied completely.

        Raises:
            StopMember: The entry cannot be read; the text says why. The member stops, and the entry does not
                count as applied. Any other exception has the same effect. Its cause is a defect or a lack of
                memory.
        """

    def snapshot(self) -> Callable[[], bytes]:
        """Return a function that encodes the present state. The caller runs this function in a thread."""

    def prepare(self, image: bytes | bytearray) -> Callable[[], None]:
        """Read a snapshot that was made on this or another member. The caller runs this in a thread.

        Do not change ``image``, because the caller still uses it afterwards.

        Returns:
            A quick function that replaces the state by the snapshot. The caller calls it on the event loop,
            or never.

        Raises:
            StopMember: The snapshot is damaged, or a newer program made it.
        """

    def restored(self, image: bytes | bytearray) -> bytes:
        """Return the snapshot to use when an operator restores ``image``.

        The caller runs this in a thread. A restored state may be older than the present state, or from
        another cluster. The state machine can set a mark in the returned snapshot, so that the restored state
        differs from every former state.

        Raises:
            StopMember: The snapshot is damaged, or a newer program made it.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """One member's settings.

    Attributes:
        me: Identity of this member, ``HOST:PORT``. Identities are compared as text. Other members resolve the
            host at each dial.
        peers: Identities of all members, this member included.
        listen: Address to bind, if it is not ``me``.
        secret: The secret that all members share. It is required if the bound address is not loopback and
            there are no certificates.
        other_secrets: Secrets that are accepted as well while operators change the secret.
        secret_file: The file of the secrets, or None. The file is read again when it changes.
        tls_cert: PEM file with this member's certificate, which must name the host of ``me`` and be valid for
            TLS servers and clients. Set all of ``tls_cert``, ``tls_key`` and ``tls_ca``, or none of them.
        tls_key: PEM file with the certificate's key, without a password.
        tls_ca: PEM file with the authority that must have issued every member's certificate.
        election_timeout_ms: N in milliseconds. Each election timeout is a random time from N to 2N. A leader
            sends a heartbeat every N/6.
        entry_size_max: Largest payload of one entry, in bytes.
        compact_bytes: Growth of the journal in bytes, since the last snapshot, after which this member makes
            a new one. If twice the size of the last snapshot is more, that number counts.
        http: ``HOST:PORT`` at which operators reach this member's HTTP server. It is announced to the other
            members, and may be empty.
        force_new_cluster: True to become the only member of a new cluster, with the data of this directory.
            Use it when a cluster has lost its majority for ever. The new cluster refuses old members until
            their disks are emptied.
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
        """True if peers must prove their identity, so that only members can send messages."""
        return self.secret is not None or self.tls_ca is not None

    def validate(self) -> None:
        """Check the secret. The other settings were checked by :mod:`routekeeper.nameserver.settings`.

        Raises:
            RaftStartError: The secret is too short.
        """
        if self.secret is not None and len(self.secret) < SECRET_SIZE_MIN:
            raise RaftStartError(
                f"raft: the secret has {len(self.secret)} bytes, at least {SECRET_SIZE_MIN} are needed"
            )
