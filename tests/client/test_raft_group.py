"""Membership changes and snapshots through the HTTP API: redirections, repeated requests, and outcomes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from routekeeper.client.errors import NotApplied, OutcomeUnknown
from routekeeper.client.operation import Clock, Fetch, FetchReply, Instant, Operation, Sleep, Unreached
from routekeeper.client.raft_group import Done, Group, NoAnswer, http_address

A, B, C = "a:9880", "b:9880", "c:9880"
RAFT = {A: "a:9878", B: "b:9878", C: "c:9878"}


def reply(status: int, **document: Any) -> FetchReply:
    return FetchReply(status, json.dumps(document).encode())


class Servers:
    """A driver of one operation, with scripted answers to the requests and with a simulated clock.

    Each sleep and each answer advances the clock.
    """

    def __init__(self, *answers: FetchReply | Exception, took_s: float = 0.0) -> None:
        self.answers = list(answers)
        self.took_s = took_s
        self.now_s = 0.0
        self.asked: list[Fetch] = []

    @property
    def hosts(self) -> list[str]:
        return [fetch.url.split("/")[2] for fetch in self.asked]

    def run(self, operation: Operation[Done]) -> Done:
        result: Any = None
        error: Exception | None = None
        while True:
            try:
                effect = operation.send(result) if error is None else operation.throw(error)
            except StopIteration as stop:
                done: Done = stop.value
                return done
            result, error = None, None
            match effect:
                case Clock():
                    result = Instant(self.now_s, 0)
                case Sleep():
                    self.now_s += effect.seconds
                case Fetch(url=url) if url.endswith("/v1/raft/status"):
                    result = reply(200, me=RAFT[url.split("/")[2]])
                case Fetch():
                    self.asked.append(effect)
                    self.now_s += self.took_s
                    answer = self.answers.pop(0)
                    if isinstance(answer, Exception):
                        error = answer
                    else:
                        result = answer
                case _:
                    raise AssertionError(effect)


def group(*addresses: str, token: str | None = "t") -> Group:
    return Group(addresses or (A, B, C), token=token, read_timeout_s=5, change_timeout_s=10)


def test_change_carries_token_body_and_time_allowed() -> None:
    servers = Servers(reply(200, members=["x"]))
    done = servers.run(group().add_member("d:9878"))
    assert (done.http, done.document) == (A, {"members": ["x"]})
    (fetch,) = servers.asked
    assert (fetch.method, fetch.url) == ("POST", f"http://{A}/v1/raft/members?timeout=10s")
    assert fetch.headers["Authorization"] == "Bearer t"
    assert fetch.body == b'{"address": "d:9878"}'
    assert fetch.timeout_s > 10


def test_member_is_quoted_in_the_path() -> None:
    servers = Servers(reply(200))
    servers.run(group().remove_member("[::1]:9878"))
    assert servers.asked[0].method == "DELETE"
    assert "/v1/raft/members/%5B%3A%3A1%5D%3A9878?" in servers.asked[0].url


def test_leader_is_followed_as_often_as_it_changes_and_not_for_ever() -> None:
    servers = Servers(reply(421, leader=RAFT[C]), reply(421, leader=RAFT[B]), reply(200))
    assert servers.run(group().transfer_leadership(None)).http == B
    assert servers.hosts == [A, C, B]
    servers = Servers(*[reply(421, leader=RAFT[C], detail="not I")] * 20)
    with pytest.raises(NotApplied, match="the leader changed 6 times"):
        servers.run(group().transfer_leadership(None))


def test_leader_whose_address_is_not_given_is_named() -> None:
    servers = Servers(reply(421, leader="z:9878"))
    with pytest.raises(NotApplied, match=r"The leader is z:9878 .* add its HTTP address"):
        servers.run(group().transfer_leadership(None))


def test_leader_whose_address_is_not_given_is_asked_where_the_members_say() -> None:
    servers = Servers(reply(421, leader="z:9878", leader_http="z:9880"), reply(200, members=["z:9878"]))
    done = servers.run(group(A).add_member("d:9878"))
    assert done.http == "z:9880"
    assert [fetch.headers["Authorization"] for fetch in servers.asked] == ["Bearer t"] * 2
    servers = Servers(
        reply(421, leader="z:9878", leader_http="z:9880"), reply(503, detail="no leader"), reply(200)
    )
    assert servers.run(group(A).add_member("d:9878")).http == A
    servers = Servers(reply(421, leader="z:9878", leader_http="z:9880"), Unreached("Connection refused"))
    with pytest.raises(NotApplied, match="z:9880, where z:9878 is said to lead: Connection refused"):
        servers.run(group(A).add_member("d:9878"))


@pytest.mark.parametrize("named", ["z:9880", "http://z:9880", "https://z:9880"])
def test_token_that_was_sent_encrypted_is_sent_encrypted_to_the_leader(named: str) -> None:
    servers = Servers(reply(421, leader="z:9878", leader_http=named), reply(200))
    servers.run(group(f"https://{A}").transfer_leadership(None))
    posted = [fetch.url.partition("?")[0] for fetch in servers.asked if fetch.method == "POST"]
    assert posted[1] == "https://z:9880/v1/raft/transfer"


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        pytest.param(A, "z:9880/x", id="path"),
        pytest.param(A, "ftp://z:9880", id="scheme"),
        pytest.param(A, "z", id="no-port"),
        pytest.param(A, 9880, id="no-text"),
        pytest.param(A, A, id="the-very-one"),
    ],
)
def test_token_is_sent_to_no_address_that_is_doubtful(asked: str, named: object) -> None:
    servers = Servers(reply(421, leader="z:9878", leader_http=named))
    with pytest.raises(NotApplied, match="add its HTTP address"):
        servers.run(group(asked).transfer_leadership(None))
    assert len([fetch for fetch in servers.asked if fetch.method == "POST"]) == 1


def test_time_without_a_leader_is_waited_out_at_all_of_them() -> None:
    servers = Servers(*[reply(503, detail="no leader")] * 4, reply(200))
    assert servers.run(group().save_snapshot(content=False)).http == B
    assert servers.hosts == [A, B, C, A, B]


def test_no_leader_for_the_whole_time_is_not_applied() -> None:
    servers = Servers(*[reply(503, detail="no leader is known")] * 100)
    with pytest.raises(NotApplied, match="no leader is known"):
        servers.run(group().save_snapshot(content=False))
    assert 10 <= servers.now_s < 12


def test_address_that_was_not_reached_is_passed_over_and_one_that_fell_silent_is_not() -> None:
    servers = Servers(Unreached("Connection refused"), reply(200))
    assert servers.run(group().transfer_leadership(None)).http == B
    servers = Servers(TimeoutError("timed out"), reply(200))
    with pytest.raises(OutcomeUnknown, match="a:9880 gave no answer"):
        servers.run(group().transfer_leadership(None))
    assert servers.hosts == [A]


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (reply(504, detail="outcome unknown: x"), OutcomeUnknown, "a:9880: outcome unknown: x"),
        (reply(409, detail="one change at a time"), NotApplied, "a:9880: one change at a time"),
        (reply(401, detail="the token is wrong"), NotApplied, "a:9880: the token is wrong"),
        (FetchReply(500, b"<html>"), NotApplied, "answered status 500 without saying why"),
        (FetchReply(404, b"[1]"), NotApplied, "answered status 404"),
    ],
    ids=lambda value: str(getattr(value, "status", "")),
)
def test_refusal_is_told_in_the_servers_words(answer: FetchReply, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Servers(answer).run(group().add_member("d:1"))


def test_missing_token_is_told_by_the_flag_that_gives_it() -> None:
    with pytest.raises(NotApplied, match="give --token-file"):
        Servers(reply(401, detail="x")).run(group(token=None).add_member("d:1"))


@pytest.mark.parametrize(
    "begin",
    [lambda g: g.save_snapshot(content=True), lambda g: g.restore_snapshot(b"\0image")],
    ids=["save", "restore"],
)
def test_snapshot_travels_as_bytes(begin: Callable[[Group], Operation[Done]]) -> None:
    servers = Servers(FetchReply(200, b'{"image": 1}'))
    assert servers.run(begin(group())).reply.data == b'{"image": 1}'
    headers = servers.asked[0].headers
    assert "application/octet-stream" in (headers.get("Accept"), headers.get("Content-Type"))


@pytest.mark.parametrize(
    ("addr", "listen", "http"),
    [
        ("ns1:9876", "0.0.0.0:9880", "ns1:9880"),
        ("ns1:9876", "192.168.0.7:9880", "ns1:9880"),
        ("[fd00::1]:9876", "[::]:9880", "[fd00::1]:9880"),
        ("127.0.0.1:9876", "localhost:80", "127.0.0.1:80"),
        ("localhost:9876", "127.0.0.1:9880", "localhost:9880"),
    ],
)
def test_http_address_is_the_port_told_at_the_address_that_was_asked(
    addr: str, listen: str, http: str
) -> None:
    assert http_address(addr, {"listenPort": "9876", "httpListen": listen}) == http


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"httpListen": "off"}, "does not say where it serves HTTP (httpListen=off)"),
        ({"listenPort": "9876"}, "does not say where it serves HTTP"),
        ({"httpListen": "0.0.0.0:0"}, "does not say where"),
        ({"httpListen": "0.0.0.0:65536"}, "does not say where"),
        ({"httpListen": "127.0.0.1:9880"}, "to its own machine only (httpListen=127.0.0.1:9880)"),
        ({"httpListen": "[::1]:9880"}, "to its own machine only"),
    ],
)
def test_a_nameserver_without_http_for_us_is_named(settings: dict[str, str], words: str) -> None:
    with pytest.raises(NoAnswer) as caught:
        http_address("ns1:9876", settings)
    assert str(caught.value).startswith("name server[ns1:9876] ")
    assert words in str(caught.value)
