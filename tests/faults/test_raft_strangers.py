"""Attackers at the raft ports of members that share a secret can change, read or crash nothing.

The attackers know everything except the secret: the members' addresses, the format, and all bytes that passed
between members.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.standstill import elapsed
from tests.waiting import wait_until

from .brokers import Writers
from .cluster import CONDITION_S, Cluster, Member, split
from .proxy import Network, Recording, running_behind_proxy

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

MIB = 1 << 20
#: Size in bytes of an acceptor's answer to a peer that sends the first frame of a member. The answer is a u32
#: size and a random number of 32 bytes.
CHALLENGE_SIZE = 4 + 32
ELECTION_S = 4.0
#: Time in s in which a linked follower receives at least one message from its leader.
HEARTBEAT_S = 1.0


@dataclass
class Site:
    """A group of members, and recordings of the group's links, as an attacker could make them."""

    cluster: Cluster
    network: Network
    recordings: list[Recording]
    longest_s: float = 0.0
    """Longest time in s for which a test kept links cut.

    Members without contact to a leader start an election after ELECTION_S.
    """

    @contextlib.contextmanager
    def linked_again(self) -> Iterator[None]:
        """Run the block, then wait until all members are linked.

        If the block and the wait took longer than ever before, set :attr:`longest_s` to their duration.
        """
        begun = time.monotonic()
        yield
        for member in self.cluster.members:
            wait_until_linked(self, member)
        self.longest_s = max(self.longest_s, time.monotonic() - begun)
        assert elapsed(begun) < 10.0

    def leads_undisturbed(self, since: list[int]) -> bool:
        """Return True if the group had no valid reason to change its leader.

        A leader steps down if its disk hangs, and a long cut causes an election. So no disk may have hung
        since the members' logs had the sizes ``since``, and all cuts must have been short.
        """
        logs = zip(self.cluster.members, since, strict=True)
        is_stalled = any("journal stalls" in member.log(size) for member, size in logs)
        return not is_stalled and self.longest_s < ELECTION_S - HEARTBEAT_S

    def address(self, member: Member) -> tuple[str, int]:
        """Return the address at which the member accepts raft links directly, not through the proxy."""
        return split(self.network.listens[member.raft])

    def by_name(self, raft: str) -> Member:
        return next(member for member in self.cluster.members if member.raft == raft)


@pytest.fixture(scope="module")
def running_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("site")
    secret = root / "secret"
    secret.write_text(os.urandom(32).hex())
    settings = root / "namesrv.properties"
    settings.write_text("serverChannelMaxIdleTimeSeconds=3600\n")
    # The election timeout and the leases are long. So no election or eviction affects these tests, even on a
    # busy machine.
    arguments = (
        "--raft-secret-file",
        str(secret),
        "--election-timeout-ms",
        f"{ELECTION_S * 1000:.0f}",
        "-c",
        str(settings),
    )
    with (
        running_behind_proxy(root, arguments=arguments, record=True) as (cluster, network),
        Writers(cluster, lease_ms=3_600_000) as writers,
    ):
        writers.wait_for_load(cluster.members)
        # End every link once. The recordings of the new links then contain all bytes from the first byte on,
        # including log entries.
        network.cut_between(*2 * [[member.raft for member in cluster.members]])
        network.heal(reset=True)
        writers.wait_for_load(cluster.members)
        writers.stop()
        cluster.wait_equal()
        # Two followers exchange only about one heartbeat per second, so their link needs more time for a
        # useful recording.
        wait_until(
            lambda: len({frozenset((r.dialler, r.acceptor)) for r in useful(network)}) == 3,
            "each link is recorded, whichever of its two members dialled",
        )
        newest = {frozenset((r.dialler, r.acceptor)): r for r in useful(network)}
        yield Site(cluster, network, list(newest.values()))


def useful(network: Network) -> list[Recording]:
    """Return the recordings in which both members sent the handshake and further messages."""
    return [
        recording
        for recording in list(network.recordings)
        if all(len(frames(recording.sent_by(dialler=side))) >= 4 for side in (True, False))
    ]


@pytest.fixture
def site(running_site: Site) -> Iterator[Site]:
    """Yield the group. After the test, check that its state is unchanged and that its members work."""
    cluster = running_site.cluster
    cluster.wait_ready()
    running_site.longest_s = 0.0
    before, logs = snapshot(cluster), [member.log_size() for member in cluster.members]
    memory = [rss(member) for member in cluster.members]
    yield running_site
    cluster.wait_ready()
    if running_site.leads_undisturbed(logs):
        assert snapshot(cluster) == before
    else:
        assert [state for state, *_ in snapshot(cluster)] == [state for state, *_ in before]
    for member, log, size in zip(cluster.members, logs, memory, strict=True):
        assert member.process is not None
        assert member.process.poll() is None
        assert "Traceback" not in member.log(log)
        assert rss(member) - size < 60 * MIB
    for member in cluster.members:
        assert member.get("/v1/topics")[0] == 200


def snapshot(cluster: Cluster) -> list[tuple[object, ...]]:
    """Return each member's values that an attack could have changed: state, term, role and leader."""
    found: list[tuple[object, ...]] = []
    for member in cluster.members:
        status, (_, digest) = member.status(), member.get("/v1/digest")
        state = (digest["digest"], digest["state_digest"], digest["revision"], tuple(status["members"]))
        found.append((state, status["term"], status["role"], status["leader"]))
    return found


def rss(member: Member) -> int:
    assert member.process is not None
    size: int = psutil.Process(member.process.pid).memory_info().rss
    return size


def send(address: tuple[str, int], *parts: bytes, patience_s: float = 0.0) -> bytes:
    """Send the parts until the peer stops accepting them.

    Return all bytes that the peer sent before it closed the connection.

    Args:
        patience_s: Seconds to wait for an answer before each part except the first.
    """
    heard = b""
    with socket.create_connection(address, timeout=CONDITION_S) as link:
        with contextlib.suppress(OSError):
            for number, part in enumerate(parts):
                if number and patience_s:
                    link.settimeout(patience_s)
                    with contextlib.suppress(TimeoutError):
                        heard += link.recv(65536)
                    link.settimeout(CONDITION_S)
                link.sendall(part)
            link.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while data := link.recv(65536):
                heard += data
    return heard


def hello(site: Site, sender: Member, receiver: Member) -> bytes:
    """Return the first frame of a link from ``sender`` to ``receiver``, with a nonce that the attacker chose.

    The other fields are from a recorded frame.
    """
    data = site.recordings[0].sent_by(dialler=True)
    (size,) = struct.unpack_from(">I", data)
    fields = msgspec.msgpack.decode(data[4 : 4 + size])
    fields[1:3] = sender.raft, receiver.raft
    fields[4] = os.urandom(32)
    return framed(msgspec.msgpack.encode(fields))


def framed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def frames(data: bytes) -> list[bytes]:
    """Split the bytes of one direction into frames.

    Each frame begins with its size. The last frame may be incomplete.
    """
    found = []
    while len(data) >= 4:
        end = 4 + struct.unpack_from(">I", data)[0]
        found.append(data[:end])
        data = data[end:]
    return found


def wait_until_linked(site: Site, member: Member) -> None:
    others = {other.raft for other in site.cluster.others(member)}
    wait_until(
        lambda: set(member.raft_status().get("linked", ())) == others,
        f"member {member.number} is linked with all",
    )


class Malice:
    """An object that runs code when a process unpickles it."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.mkdir, (self._path,)


def test_pickles_are_not_unpickled(site: Site, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    pickles = [
        pickle.dumps(what, protocol)
        for what in (Malice(trap), ["status"], ["transfer"], {"type": "append_entries", "term": 10**6})
        for protocol in (0, 2, 5)
    ]
    for member in site.cluster.members:
        for data in pickles:
            assert send(site.address(member), data) == b""
            assert send(site.address(member), framed(data)) == b""
            sender = site.cluster.others(member)[0]
            heard = send(site.address(member), hello(site, sender, member), framed(data))
            assert len(heard) <= CHALLENGE_SIZE
    assert not trap.exists()


def test_half_frames_and_silence_are_given_up(site: Site) -> None:
    member, sender, _ = site.cluster.members
    first = hello(site, sender, member)
    links, begun = [], time.monotonic()
    for cut in (0, 1, 4, 5, len(first) // 2, len(first) - 1, len(first)):
        link = socket.create_connection(site.address(member), timeout=CONDITION_S)
        link.sendall(first[:cut])
        links.append(link)
    for link in links:
        heard = b""
        with contextlib.suppress(ConnectionError):
            while data := link.recv(65536):
                heard += data
        assert len(heard) <= CHALLENGE_SIZE
        assert time.monotonic() - begun > 2.0, "a slow member needs some time for its handshake"
        assert elapsed(begun) < 10.0
        link.close()


def test_floods_keep_no_member_out_and_cost_bounded_memory(site: Site) -> None:
    member = site.cluster.others(site.cluster.leader())[0]
    address, stop = site.address(member), threading.Event()
    sent = [0]
    rng = random.Random(1)
    noise = rng.randbytes(MIB)

    def flood(kind: int) -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=5.0) as link:
                link.settimeout(0.5)
                match kind:
                    case 0:
                        link.sendall(noise)
                    case 1:
                        link.sendall(struct.pack(">I", 1 << 30) + noise)
                    case 2:
                        link.sendall(framed(b"A" * 1024) * 1024)
                    case _:
                        # Send nothing. The open connection only occupies one of the connections that the
                        # member allows.
                        link.recv(1)
                sent[0] += 1

    threads = [threading.Thread(target=flood, args=(kind,)) for kind in (0, 1, 2, 3, 3, 3)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: sent[0] > 300, "the flood comes")
        # Cut and heal every link during the flood, because members must still be able to link again.
        with site.linked_again():
            site.network.cut_between(*2 * [[m.raft for m in site.cluster.members]])
            site.network.heal(reset=True)
        enough = sent[0] + 300
        wait_until(lambda: sent[0] > enough, "the flood goes on")
        wait_until_linked(site, member)
    finally:
        stop.set()
        for thread in threads:
            thread.join(CONDITION_S)


def test_recorded_sessions_open_nothing_whole_or_in_part(site: Site) -> None:
    rng = random.Random(2)
    for recording in site.recordings:
        acceptor = site.by_name(recording.acceptor)
        there, back = recording.sent_by(dialler=True), recording.sent_by(dialler=False)
        pieces = frames(there)
        assert len(send(site.address(acceptor), there)) <= CHALLENGE_SIZE
        assert len(send(site.address(acceptor), *pieces[:20], patience_s=0.2)) <= CHALLENGE_SIZE
        # Send random slices of the frames, without the frames before each slice.
        for _ in range(10):
            start, end = sorted(rng.sample(range(len(pieces)), 2))
            heard = send(site.address(acceptor), pieces[0], *pieces[start:end])
            assert len(heard) <= CHALLENGE_SIZE
            assert send(site.address(acceptor), b"".join(pieces[max(1, start) : end])) == b""
            cut = rng.randrange(len(there))
            assert len(send(site.address(acceptor), there[:cut])) <= CHALLENGE_SIZE
        # Mirror attack: the test sends the bytes of each member back to this member.
        assert send(site.address(acceptor), back) == b""
        dialler = site.by_name(recording.dialler)
        assert send(site.address(dialler), there) == b"", "its own hello names another receiver"
        assert send(site.address(dialler), back) == b""


def test_what_a_member_says_is_of_no_use_when_sent_back_to_it(site: Site) -> None:
    """A member's own answers must be of no use to an attacker.

    The test sends a first frame to a member, then sends all bytes of the member's answers back to it.
    """
    member, sender, _ = site.cluster.members
    with socket.create_connection(site.address(member), timeout=CONDITION_S) as link:
        link.sendall(hello(site, sender, member))
        heard = b""
        with contextlib.suppress(ConnectionError):
            while data := link.recv(65536):
                heard += data
                link.sendall(data)
        assert len(heard) <= CHALLENGE_SIZE


def test_frames_put_into_a_live_session_end_it_and_change_nothing(site: Site) -> None:
    leader = site.cluster.leader()
    logs = [member.log_size() for member in site.cluster.members]
    for recording in site.recordings:
        pieces = frames(recording.sent_by(dialler=True))
        for data in (pieces[-2], pieces[len(pieces) // 2], framed(os.urandom(100)), pieces[0]):
            # Count the links by their recordings, not by the log. The log limits the number of lines about a
            # peer that links often.
            links = len(site.network.recordings)
            with site.linked_again():
                assert site.network.inject(data) > 0
                wait_until(
                    lambda n=links: len(site.network.recordings) > n,  # type: ignore[misc]
                    "a session ends and another begins",
                )
    assert site.cluster.leader() is leader or not site.leads_undisturbed(logs)
    said = [member.log(size) for member, size in zip(site.cluster.members, logs, strict=True)]
    assert any("frame with a wrong MAC" in log for log in said)


def test_stranger_in_a_member_s_place_learns_no_entry_and_is_not_followed(site: Site) -> None:
    """An attacker in the place of a dead member learns no log entry and is not followed.

    It listens at the dead member's address and replays the member's recorded answers.
    """
    acceptors = {recording.acceptor for recording in site.recordings}
    absent = next(m for m in site.cluster.others(site.cluster.leader()) if m.raft in acceptors)
    recording = next(r for r in site.recordings if r.acceptor == absent.raft)
    answers = frames(recording.sent_by(dialler=False))
    absent.kill()
    absent.reap()
    host, port = site.address(absent)
    heard: list[bytes] = []
    with socket.create_server((host, port)) as listener:
        listener.settimeout(CONDITION_S)
        while len(heard) < 6:
            link, _ = listener.accept()
            with link:
                link.settimeout(CONDITION_S)
                said = b""
                # The attacker may accept the connection late, when the connecting member has already closed
                # it.
                with contextlib.suppress(ConnectionError):
                    said = link.recv(65536)
                if not said:
                    continue
                with contextlib.suppress(OSError):
                    for answer in answers[:10]:
                        link.sendall(answer)
                        link.settimeout(0.3)
                        with contextlib.suppress(TimeoutError):
                            said += link.recv(65536)
                        link.settimeout(CONDITION_S)
                heard.append(said)
    for said in heard:
        # The member may send its first frame, and its proof for this one challenge. It must send no log entry
        # and no state.
        assert len(frames(said)) <= 2, frames(said)
        assert b"broker-" not in said
    others = site.cluster.others(absent)
    for member in others:
        assert absent.raft not in member.raft_status()["linked"]
    absent.start()
    site.cluster.wait_ready()
    site.cluster.wait_equal()


def test_the_group_works_after_all_of_this(running_site: Site) -> None:
    with Writers(running_site.cluster) as writers:
        writers.wait_for_load(running_site.cluster.members)
        writers.stop()
