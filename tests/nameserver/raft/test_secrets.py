"""Tests of the change of a secret.

During a change, the secret file has two lines, and members are at different steps of the change.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from routekeeper.nameserver.raft.links.auth import NONCE_SIZE, Credentials, Handshake, LinkError
from routekeeper.nameserver.raft.node.secret_file import read_secrets
from routekeeper.nameserver.raft.types import RaftStartError, secrets_in

OLD, NEW = b"o" * 32, b"n" * 32


@pytest.mark.parametrize(
    ("content", "secrets"),
    [
        (OLD + b"\n", (OLD,)),
        (OLD + b"\n" + NEW + b"\n", (OLD, NEW, OLD + b"\n" + NEW)),
        (OLD + b"\r\n" + NEW, (OLD, NEW, OLD + b"\r\n" + NEW)),
        (OLD + b"\nshort", (OLD + b"\nshort",)),
        (OLD + b"\n" + NEW + b"\n" + OLD, (OLD + b"\n" + NEW + b"\n" + OLD,)),
    ],
    ids=["one", "two", "two of Windows", "base64 that was wrapped", "three lines"],
)
def test_two_lines_that_are_long_enough_are_two_secrets(content: bytes, secrets: tuple[bytes, ...]) -> None:
    assert secrets_in(content) == secrets


def test_a_file_that_is_too_short_or_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(RaftStartError, match="has 5 bytes, at least 32"):
        read_secrets(tmp_path / "secret")
    with pytest.raises(RaftStartError, match="cannot be read: No such file"):
        read_secrets(tmp_path / "none")


def credentials(me: str, content: bytes) -> Credentials:
    secret, *others = secrets_in(content)
    return Credentials(
        me=me, members=frozenset({"a:1", "b:1"}), cluster="c", secret=secret, other_secrets=tuple(others)
    )


def dials_until_linked(dialler: bytes, acceptor: bytes) -> int:
    """Dial until both ends have proved their identity; return the number of dials, or 0 if six fail."""
    for attempt in range(6):
        d = Handshake(credentials("b:1", dialler), peer="a:1", nonce=os.urandom(NONCE_SIZE), attempt=attempt)
        a = Handshake(credentials("a:1", acceptor), peer=None, nonce=os.urandom(NONCE_SIZE))
        frame: bytes | None = d.begin()
        try:
            while frame is not None:
                answer = a.receive(frame)
                frame = d.receive(answer) if answer is not None else None
        except LinkError:
            assert d.is_proof_refused
            continue
        assert d.proven and a.proven and not d.is_proof_refused  # noqa: PT018 - one fact
        a.incoming.check(b"frame", d.outgoing.next(b"frame"))
        return attempt + 1
    return 0


BOTH = OLD + b"\n" + NEW
TURNED = NEW + b"\n" + OLD


@pytest.mark.parametrize(
    ("dialler", "acceptor", "dials"),
    [
        (OLD, OLD, 1),
        (OLD, BOTH, 1),
        (BOTH, OLD, 1),
        (BOTH, BOTH, 1),
        (BOTH, NEW, 2),
        (NEW, BOTH, 1),
        (BOTH, TURNED, 1),
        (NEW, NEW, 1),
        (OLD, NEW, 0),
        (NEW, OLD, 0),
    ],
)
def test_members_at_neighbouring_steps_of_a_change_link(dialler: bytes, acceptor: bytes, dials: int) -> None:
    assert dials_until_linked(dialler, acceptor) == dials


def test_a_file_of_two_lines_still_fits_a_member_that_knows_no_lines() -> None:
    """A member of an older release can link to a member that uses each line of the file as a secret.

    The older release uses the whole file as one secret, because it does not split files into lines.
    """
    former = Credentials(me="a:1", members=frozenset({"a:1", "b:1"}), cluster="c", secret=BOTH)
    for attempt in range(3):
        d = Handshake(credentials("b:1", BOTH), peer="a:1", nonce=os.urandom(NONCE_SIZE), attempt=attempt)
        a = Handshake(former, peer=None, nonce=os.urandom(NONCE_SIZE))
        try:
            frame: bytes | None = d.begin()
            while frame is not None:
                answer = a.receive(frame)
                frame = d.receive(answer) if answer is not None else None
        except LinkError:
            continue
        assert d.proven
        return
    raise AssertionError("never linked")
