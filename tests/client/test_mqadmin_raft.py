"""mqadmin over HTTP with a real group of three nameservers: an operator's commands and their output."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.client.conftest import Process
from tests.client.mqadmin import mqadmin
from tests.ports import free_addresses
from tests.waiting import wait_until

TOKEN = "a-token-of-the-operators"
CONDITION_S = 60.0


@dataclass
class Member:
    raft: str
    addr: str
    http: str
    popen: subprocess.Popen[str]


@dataclass
class Group:
    members: list[Member]
    token: Path

    @property
    def http(self) -> str:
        return ";".join(member.http for member in self.members)

    def statuses(self) -> list[dict[str, Any]]:
        _, out, _ = mqadmin("raftStatus", "--http", self.http, "-o", "json")
        found: list[dict[str, Any]] = json.loads(out)
        return found

    def leader(self) -> Member:
        def agreed() -> str | None:
            found = self.statuses()
            names = {status["leader"] for status in found}
            ready = all(
                status["writes_ready"] and {*status["linked"], status["me"]} >= set(status["members"])
                for status in found
            )
            return names.pop() if ready and len(found) == 3 and len(names) == 1 else None

        name = wait_until(agreed, "all know one leader")
        return next(member for member in self.members if member.raft == name)

    def followers(self) -> list[Member]:
        leader = self.leader()
        return [member for member in self.members if member is not leader]


def start(stack: ExitStack, root: Path, raft: str, peers: list[str], *more: str) -> Member:
    (http,) = free_addresses(1)
    process = Process(
        "routekeeper.nameserver",
        *("--mode", "raft", "--raft", raft, "--peers", ",".join(peers)),
        *("--listen", "127.0.0.1:0", "--http", http, "--data", str(root), *more),
        # The timeout is longer than the default: the leader must not change during a test, even on a busy
        # machine.
        *("--election-timeout-ms", "2000"),
        log=root.with_suffix(".log"),
    )
    stack.callback(process.stop)
    assert process.facts["http"] == http
    return Member(raft, process.addr, http, process.popen)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder = tmp_path_factory.mktemp("group")
    token = folder / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    peers = free_addresses(3)
    with ExitStack() as stack:
        members = [
            start(stack, folder / str(number), raft, peers, "--http-token-file", str(token))
            for number, raft in enumerate(peers)
        ]
        group = Group(members, token)
        group.leader()
        yield group


@pytest.mark.slow
def test_status_is_a_table_with_a_row_for_each_and_says_who_votes(group: Group) -> None:
    leader = group.leader()
    code, out, err = mqadmin("raftStatus", "--http", group.http)
    assert (code, err) == (0, "")
    head, *rows = out.splitlines()
    assert head.split("  ")[0] == "#Http address"
    for member, row in zip(group.members, rows, strict=False):
        cells = row.split()
        assert cells[:2] == [member.http, member.raft]
        assert cells[2] == ("leader" if member is leader else "follower")
        assert cells[4] == leader.raft
        assert cells[-1] == "yes"
        assert row.index(cells[1]) == head.index("#Member")
        assert row.index(cells[-1]) == head.index("#Ready")
    assert rows[3:] == [f"voters: {', '.join(sorted(member.raft for member in group.members))}"]


def test_name_servers_are_asked_for_their_http_addresses(group: Group) -> None:
    wire = ";".join(member.addr for member in group.members)
    group.leader()
    code, out, err = mqadmin("raftStatus", "-n", wire)
    assert (code, err) == (0, "")
    assert [row.split()[0] for row in out.splitlines()[1:4]] == [member.http for member in group.members]
    (nobody,) = free_addresses(1)
    code, out, err = mqadmin("raftStatus", "-n", f"{nobody};{wire}")
    assert code == 1
    assert err.startswith(f"mqadmin raftStatus: name server[{nobody}] failed: ")
    assert len(err.splitlines()) == 1
    assert all(member.http in out for member in group.members)
    code, out, err = mqadmin("transferLeader", "-n", f"{nobody};{wire}", "--token-file", str(group.token))
    assert (code, err) == (0, "")
    group.leader()
    code, out, err = mqadmin("routeDiff", "-n", nobody)
    assert (code, out) == (1, "")
    assert err.endswith("; give the HTTP addresses with --http\n")


def test_status_of_one_that_is_away_names_it_and_fails(group: Group) -> None:
    (nobody,) = free_addresses(1)
    code, out, err = mqadmin("raftStatus", "--http", f"{group.members[0].http};{nobody}")
    assert code == 1
    assert err == f"mqadmin raftStatus: {nobody}: Connection refused\n"
    assert group.members[0].raft in out


def test_change_without_token_is_refused_in_words(group: Group) -> None:
    code, out, err = mqadmin("transferLeader", "--http", group.http)
    assert (code, out) == (1, "")
    assert err.startswith("mqadmin transferLeader: 127.0.0.1:")
    assert err.endswith(": a change of the group needs its token: give --token-file\n")


def test_change_with_a_wrong_token_is_refused_in_words(group: Group, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    code, out, err = mqadmin("transferLeader", "--http", group.http, "--token-file", str(wrong))
    assert (code, out) == (1, "")
    assert "the token is not the one in this nameserver's --http-token-file" in err


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read: No such file"), (b"", "one word"), (b"a b", "one word"), (b"\xff", "no ASCII")],
    ids=["missing", "empty", "words", "binary"],
)
def test_token_file_that_cannot_be_used_is_named(
    group: Group, tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    code, out, err = mqadmin("transferLeader", "--http", group.http, "--token-file", str(path))
    assert (code, out) == (1, "")
    assert str(path) in err
    assert words in err
    assert len(err.splitlines()) == 1


def test_change_asked_of_a_follower_is_done_by_the_leader(group: Group) -> None:
    follower, other = group.followers()
    others_first = f"{follower.http};{other.http};{group.leader().http}"
    code, out, err = mqadmin(
        *("transferLeader", "--to", other.raft, "--http", others_first, "--token-file", str(group.token))
    )
    assert (code, err) == (0, "")
    assert out == f"leadership transferred to {other.raft}.\n"
    assert group.leader() is other


def test_leader_that_is_not_among_the_addresses_is_named(group: Group) -> None:
    follower, leader = group.followers()[0], group.leader()
    code, out, err = mqadmin("transferLeader", "-a", follower.http, "-k", str(group.token))
    assert (code, out) == (1, "")
    assert f"{follower.http} does not lead. The leader is {leader.raft}" in err
    assert "add its HTTP address to --http" in err


def test_dead_address_is_passed_over(group: Group) -> None:
    (nobody,) = free_addresses(1)
    code, out, err = mqadmin("transferLeader", "-a", f"{nobody};{group.http}", "-k", str(group.token))
    assert (code, err) == (0, "")
    assert out.startswith("leadership transferred to 127.0.0.1:")
    group.leader()


@pytest.mark.parametrize("address", ["127.0.0.1", "ftp://127.0.0.1:1", "a b:1", "::1:9880", ";", "x:123456"])
def test_address_that_is_none_is_refused_before_anything_is_sent(address: str) -> None:
    code, _, err = mqadmin("raftStatus", "--http", address)
    assert code == 1
    assert "allowed HOST:PORT, several separated by ;" in err
    assert len(err.splitlines()) == 1


def test_address_may_be_what_a_browser_shows(group: Group) -> None:
    code, out, err = mqadmin("raftStatus", "--http", f"http://{group.members[0].http}/")
    assert (code, err) == (0, "")
    head, row, *_ = out.splitlines()
    assert row.index(group.members[0].raft) == head.index("#Member")


def test_proxy_of_the_environment_is_not_told_anything(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    (nobody,) = free_addresses(1)
    monkeypatch.setenv("http_proxy", f"http://{nobody}")
    monkeypatch.delenv("no_proxy", raising=False)
    assert mqadmin("raftStatus", "--http", group.http)[0] == 0


def test_nobody_there_is_said_once_for_each_address(group: Group) -> None:
    one, two = free_addresses(2)
    code, out, err = mqadmin("transferLeader", "-a", f"{one};{two}", "-k", str(group.token))
    assert (code, out) == (1, "")
    assert err == f"mqadmin transferLeader: {one}: Connection refused; {two}: Connection refused\n"


def test_stranger_cannot_be_removed(group: Group) -> None:
    code, out, err = mqadmin("removeMember", "-m", "127.0.0.1:1", "-a", group.http, "-k", str(group.token))
    assert (code, out) == (1, "")
    assert "127.0.0.1:1 is no member; the members are " in err


@pytest.mark.slow
def test_member_is_added_and_removed(group: Group, tmp_path: Path) -> None:
    (raft,) = free_addresses(1)
    peers = [*(member.raft for member in group.members), raft]
    with ExitStack() as stack:
        newcomer = start(stack, tmp_path / "new", raft, peers)
        admin = ("-a", group.http, "-k", str(group.token))
        code, out, err = mqadmin("addMember", "--address", raft, *admin)
        assert (code, err) == (0, "")
        first, second = out.splitlines()
        assert first == f"member {raft} added; it votes."
        assert set(second.removeprefix("members: ").split(", ")) == set(peers)
        wait_until(
            lambda: "follower" in mqadmin("raftStatus", "-a", newcomer.http)[1], "it knows that it votes"
        )
        code, out, err = mqadmin("removeMember", "--address", raft, *admin)
        assert (code, err) == (0, "")
        assert out.splitlines()[0] == f"member {raft} removed; it stops as soon as it learns of this."
        assert newcomer.popen.wait(timeout=CONDITION_S) == 3


@pytest.mark.slow
def test_member_that_is_not_there_is_named_by_who_waits_for_it(group: Group) -> None:
    (raft,) = free_addresses(1)
    group.leader()
    admin = ("-a", group.http, "-k", str(group.token))
    code, out, err = mqadmin("addMember", "--address", raft, "--timeout", "5", *admin)
    assert (code, out) == (1, "")
    assert f"{raft} is a learner: it becomes a voter when it has caught up; there is no link to it" in err
    everybody = ", ".join(member.http for member in group.members)
    down = f"\n{raft} is down or cut off: no link with {everybody}\n"
    wait_until(lambda: down in mqadmin("raftStatus", "--http", group.http)[1], "all know of the learner")
    code, out, err = mqadmin("raftStatus", "--http", group.http)
    assert (code, err) == (0, "")
    assert down in out
    assert f"\nlearners: {raft}\n" in out
    assert "voters are up" not in out, "a learner does not count"
    assert mqadmin("removeMember", "--address", raft, *admin)[0] == 0
    group.leader()


@pytest.mark.parametrize(
    ("members", "linked", "learners", "line"),
    [
        (["a:1"], [], [], ""),
        (["a:1", "b:1"], ["b:1"], [], "2 of 2 voters are up; if one more is lost, nothing is served"),
        (["a:1", "b:1", "c:1"], ["b:1", "c:1"], [], ""),
        (["a:1", "b:1", "c:1"], ["c:1"], [], "2 of 3 voters are up; if one more is lost, nothing is served"),
        (
            *(["a:1", "b:1", "c:1"], ["b:1", "c:1"], ["c:1"]),
            "2 of 2 voters are up; if one more is lost, nothing is served",
        ),
        (["a:1", "b:1"], [], ["b:1"], ""),
        (["a:1", "b:1", "c:1", "d:1", "e:1"], ["b:1", "c:1", "d:1"], [], "4 of 5 voters are up"),
    ],
    ids=["one", "two", "three", "two of three", "two and a learner", "one and a learner", "four of five"],
)
def test_status_warns_if_the_loss_of_one_more_voter_stops_the_group(
    members: list[str], linked: list[str], learners: list[str], line: str, http_page: Callable[[str], str]
) -> None:
    status = {"mode": "raft", "me": "a:1", "leader": "a:1", "role": "leader", "term": 1}
    status |= {"applied_index": 1, "commit_index": 1, "last_contact_ms": 0}
    status |= {"members": members, "linked": linked, "learners": learners}
    address = http_page(json.dumps(status)).removesuffix("/nsaddr")
    code, out, err = mqadmin("raftStatus", "--http", address)
    assert (code, err) == (0, "")
    assert [found for found in out.splitlines() if "voters are up" in found] == ([line] if line else [])


@pytest.mark.slow
def test_snapshot_is_fetched_and_restored_into_a_new_group(group: Group, tmp_path: Path) -> None:
    with BlockingClient() as client:
        put = RemotingCommand.request(100, {"namespace": "n", "key": "k", "value": "v"})
        addr = group.leader().addr
        wait_until(lambda: client.invoke(addr, put, timeout_s=CONDITION_S).code == 0, "a key is written")
    code, out, err = mqadmin("snapshotSave", "-a", group.http, "-k", str(group.token))
    assert (code, err) == (0, "")
    assert re.fullmatch(r"snapshot saved at \S+: /\S+ index=\d+ term=\d+ bytes=\d+\n", out)
    file = tmp_path / "snapshot"
    code, out, err = mqadmin("snapshotSave", "-a", group.http, "-k", str(group.token), "-f", str(file))
    assert (code, err) == (0, "")
    assert out.endswith(f"saved: {file} bytes={file.stat().st_size}\n")
    assert file.stat().st_mode & 0o077 == 0
    restore = ("snapshotRestore", "-k", str(group.token), "-f", str(file))
    code, out, err = mqadmin(*restore, "-a", group.http)
    assert (code, out) == (1, "")
    assert "--force-new-cluster" in err
    with ExitStack() as stack:
        (raft,) = free_addresses(1)
        alone = start(stack, tmp_path / "alone", raft, [raft], "--http-token-file", str(group.token))
        code, out, err = mqadmin(*restore, "-a", alone.http)
        assert (code, err) == (0, "")
        assert out.startswith(f"snapshot restored at {alone.http}: revision=")
        with BlockingClient() as client:
            get = RemotingCommand.request(101, {"namespace": "n", "key": "k"})
            assert client.invoke(alone.addr, get, timeout_s=CONDITION_S).ext_fields["value"] == "v"
        code, out, err = mqadmin(*restore[:-1], str(tmp_path / "nowhere"), "-a", alone.http)
        assert (code, out) == (1, "")
        assert f"{tmp_path / 'nowhere'} cannot be read" in err


@pytest.mark.slow
def test_a_follower_saves_a_snapshot_and_is_named(group: Group) -> None:
    follower = group.followers()[0].http
    code, out, err = mqadmin("snapshotSave", "-a", follower, "-k", str(group.token))
    assert (code, err) == (0, "")
    assert out.startswith(f"snapshot saved at {follower}: /")


@pytest.mark.slow
def test_routes_of_a_group_are_equal_and_a_drifted_one_is_told_apart(
    group: Group, nameserver: Any, broker: Any
) -> None:
    wait_until(lambda: mqadmin("routeDiff", "--http", group.http)[0] == 0, "all have applied the same")
    code, out, err = mqadmin("routeDiff", "--http", group.http)
    assert (code, err) == (0, "")
    assert out.endswith("the route tables of 3 name servers are equal\n")
    # The broker registers only at this independent nameserver, so the group's route tables do not list the
    # broker.
    http = nameserver.facts["http"]
    code, out, err = mqadmin("routeDiff", "--http", f"{group.members[0].http};{http}")
    assert (code, err) == (1, "")
    member = group.members[0].http
    assert f"broker DefaultCluster/broker-a/0 {broker.addr}: at {http}; not at {member}" in out
    assert f"topic TBW102: at {http}; not at {member}" in out
    code, out, err = mqadmin("routeDiff", "--http", f"{member};{http}", "-t", "TBW102")
    assert code == 1
    route, there, missing = out.splitlines()[2:]
    assert route == "route of TBW102"
    assert there.split() == [member, "no", "route"]
    assert "broker-a read=" in missing
    # Neither nameserver has a route of this topic, so its routes are equal, although the tables differ.
    code, out, err = mqadmin("routeDiff", "--http", f"{member};{http}", "-t", "Nowhere")
    assert (code, err) == (0, "")
    assert out.endswith("the routes of topic Nowhere are equal; the route tables differ elsewhere\n")
    code, out, _ = mqadmin("routeDiff", "--http", f"{member};{http}", "-o", "json")
    assert code == 1
    kinds = {difference["kind"] for difference in json.loads(out)["differences"]}
    assert kinds == {"broker", "topic"}
    code, _, err = mqadmin("routeDiff", "--http", member)
    assert code == 1
    assert "at least two" in err


def test_independent_nameserver_is_no_group(nameserver: Any) -> None:
    http = nameserver.facts["http"]
    code, out, err = mqadmin("raftStatus", "-a", http)
    assert (code, out) == (1, "")
    assert err == f"mqadmin raftStatus: {http}: runs in mode independent and belongs to no raft group\n"
    code, _, err = mqadmin("transferLeader", "-a", http)
    assert code == 1
    assert "it belongs to no raft group" in err


def test_explain_route_asks_the_first_that_answers(nameserver: Any) -> None:
    (nobody,) = free_addresses(1)
    code, out, err = mqadmin("explainRoute", "-t", "Nowhere", "-a", f"{nobody};{nameserver.facts['http']}")
    assert (code, err) == (0, "")
    assert "topic: Nowhere" in out
    code, out, err = mqadmin("explainRoute", "-t", "Nowhere", "-a", nobody)
    assert (code, out) == (1, "")
    assert f"{nobody}: Connection refused" in err
