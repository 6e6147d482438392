"""The server answers a repeated registration that changes nothing without decoding its body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routekeeper.nameserver.modes import independent
from routekeeper.nameserver.modes.independent import Independent
from routekeeper.nameserver.modes.interface import Freshness
from routekeeper.nameserver.modes.repeats import BODY_BYTES_MAX, SECRET_SIZE, Repeats
from routekeeper.nameserver.registration import Registration, decoding_registration
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, ConnectionId, MinBrokerChange, Request
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.steps import Steps
from tests.registrations import body_of, fields_of

_T = TypeVar("_T")


class Effects:
    """A test server that ignores every action that the mode requests."""

    def close_connection(self, origin: ConnectionId) -> None:
        """Leave the connection open."""

    def notify_min_broker(self, change: MinBrokerChange) -> None:
        """Send no notice."""


def never(answer: Answer) -> None:
    raise AssertionError("nothing waits as long as the clock stands")


def on_a_loop(call: Callable[[], _T]) -> _T:
    """Run `call` inside a new event loop, and return its result."""

    async def main() -> _T:
        return call()

    return asyncio.run(main())


def server_in(folder: Path) -> Independent:
    return Independent(
        LiveSettings(NamesrvSettings(data_dir=str(folder))), Effects(), boot_id=7, clock=lambda: 0.0
    )


def registration(
    broker: str = "a",
    *,
    name: str = "n",
    topics: int = 2,
    counter: int = 1,
    broker_id: int = 0,
    zone: str = "",
    lease_ms: int = 120_000,
) -> Request:
    body = body_of((f"t{number}" for number in range(topics)), counter=counter)
    more = {"enableActingMaster": "true", "__ZONE_NAME": zone, "heartbeatTimeoutMillis": str(lease_ms)}
    fields = fields_of(body, name, f"{broker}:1", cluster="c", broker_id=broker_id, **more)
    return Request(code=RequestCode.REGISTER_BROKER, ext_fields=fields, body=body)


def register(server: Independent, request: Request, over: int = 1) -> Answer:
    asks = partial(server.register, request, ConnectionId(over), deadline=0.0, answered=never)
    answer = on_a_loop(asks)
    assert answer is not None
    return answer


def counting(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Return a list to which each registration is added when it is decoded."""
    decoded: list[Request] = []

    def counted(request: Request) -> Steps[Registration | Answer]:
        decoded.append(request)
        return decoding_registration(request)

    monkeypatch.setattr(independent, "decoding_registration", counted)
    return decoded


def test_hash_of_a_large_body_depends_on_a_secret_whatever_the_environment_says() -> None:
    """The hash of a body must depend on a secret of this process, which no client knows.

    Otherwise, a client could construct another body with the same hash, which the server would take for a
    repeat. Python's own hash is predictable if the environment sets PYTHONHASHSEED, as these tests and some
    container images do.
    """
    body = bytes(BODY_BYTES_MAX + 1)
    one, other = Repeats(bytes(SECRET_SIZE)), Repeats(b"\1" * SECRET_SIZE)
    assert one.mark_of(body) == one.mark_of(bytes(bytearray(body)))
    assert len({one.mark_of(body), other.mark_of(body), hash(body)}) == 3
    assert one.mark_of(body[1:]) == other.mark_of(body[1:]) == body[1:]


@pytest.mark.parametrize("topics", [2, 2_000])
def test_repeated_registration_is_not_decoded_and_renews_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: int
) -> None:
    decoded = counting(monkeypatch)
    server = server_in(tmp_path)
    request = registration(topics=topics)
    for seconds in range(4):
        on_a_loop(partial(server.tick, float(seconds)))
        register(server, request)
    assert len(decoded) == 2, "once to be listed, and once more to find that it changes nothing"
    (listed,) = server.view(Freshness.STALE).records()
    contact = server.liveness.contact(listed.broker)
    assert contact is not None
    assert contact.heard_at == server.liveness.clock == 3.0


def test_repeated_registration_is_not_decoded_although_other_brokers_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = counting(monkeypatch)
    server = server_in(tmp_path)
    for _ in range(2):
        register(server, registration())
    for counter in range(5):
        register(server, registration("b", name="other", counter=counter), over=2)
    before = len(decoded)
    register(server, registration())
    assert len(decoded) == before


@pytest.mark.parametrize(
    "other",
    [
        registration(counter=2),
        registration(zone="z"),
        registration(topics=3),
        registration(broker_id=1),
        registration("b"),
    ],
    ids=["version", "header", "topics", "id", "broker"],
)
def test_other_registration_over_the_same_connection_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Request
) -> None:
    decoded = counting(monkeypatch)
    server = server_in(tmp_path)
    for _ in range(3):
        register(server, registration())
    before = len(decoded)
    register(server, other)
    assert len(decoded) == before + 1


def test_the_same_registration_over_another_connection_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = counting(monkeypatch)
    server = server_in(tmp_path)
    for _ in range(3):
        register(server, registration())
    before = len(decoded)
    register(server, registration(), over=2)
    assert len(decoded) == before + 1


def change(server: Independent, code: int, **ext: str) -> None:
    """Change the table by a request that is not a registration."""
    answer = asyncio.run(
        server.execute(Request(code=code, ext_fields=ext, body=b""), ConnectionId(9), deadline=1e9)
    )
    assert answer.code == ResponseCode.SUCCESS


Step = tuple[str, Request | None, int]


def play(folder: Path, script: Sequence[Step]) -> None:
    """Send the same requests to two servers, and compare their answers.

    The first server remembers registrations, so it answers repeats without decoding them. The second server
    must forget each registration.
    """
    remembers, forgets = server_in(folder / "a"), server_in(folder / "b")
    last: dict[int, Request] = {}
    for at, (kind, request, over) in enumerate(script):
        answers = []
        for server in (remembers, forgets):
            on_a_loop(partial(server.tick, float(at * 3)))
            match kind:
                case "register" | "again":
                    again = last.get(over) if request is None else request
                    if again is None:
                        continue
                    last[over] = again
                    for _ in range(2):
                        if server is forgets:  # changed settings make a server forget all registrations
                            server.settings.change(replace(server.settings.current), {})
                        answers.append(register(server, again, over))
                case "wipe":
                    change(server, RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="n")
                case "add":
                    change(server, RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="n")
                case "delete":
                    change(server, RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="t0")
                case "unregister":
                    change(
                        server,
                        RequestCode.UNREGISTER_BROKER,
                        brokerName="n",
                        brokerAddr="a:1",
                        clusterName="c",
                        brokerId="0",
                    )
                case "close":
                    on_a_loop(partial(server.closed, ConnectionId(over), by_us=False))
                case "wait":
                    for second in range(130):
                        on_a_loop(partial(server.tick, float(at * 3) + second))
                case "order":
                    change(
                        server,
                        RequestCode.PUT_KV_CONFIG,
                        namespace="ORDER_TOPIC_CONFIG",
                        key="t1",
                        value=str(at),
                    )
                case "settings":
                    current = server.settings.current
                    enabled = not current.return_order_topic_config_to_broker
                    after = replace(current, return_order_topic_config_to_broker=enabled)
                    server.settings.change(after, {})
        assert answers[: len(answers) // 2] == answers[len(answers) // 2 :]
        views = [server.view(Freshness.STALE) for server in (remembers, forgets)]
        assert len({view.state_digest() for view in views}) == 1
        contacts = [server.liveness.changes_since(0) for server in (remembers, forgets)]
        assert contacts[0] == contacts[1]


A = registration()
ONE_TOPIC = registration(topics=1)
MEANWHILE: dict[str, tuple[Step, ...]] = {
    "removed by an admin": (("register", A, 1), ("unregister", None, 1)),
    "a slave brings another zone": (
        ("register", A, 1),
        ("register", registration("b", broker_id=1, zone="z"), 2),
    ),
    "another address takes its place": (("register", A, 1), ("register", registration("b"), 2)),
    "a newer version over another connection": (("register", A, 1), ("register", registration(counter=2), 2)),
    "another lease over another connection": (
        ("register", A, 1),
        ("register", registration(lease_ms=60_000), 2),
    ),
    "write permission taken": (("register", A, 1), ("wipe", None, 1)),
    "topic deleted": (("register", A, 1), ("delete", None, 1)),
    "its only topic deleted": (("register", ONE_TOPIC, 1), ("delete", None, 1)),
    "write permission of its only topic taken": (("register", ONE_TOPIC, 1), ("wipe", None, 1)),
    "order of a topic": (("register", A, 1), ("order", None, 1)),
    "order of a topic, not told": (("settings", None, 1), ("register", A, 1), ("order", None, 1)),
    "settings": (("order", None, 1), ("register", A, 1), ("settings", None, 1)),
    "connection closed": (("register", A, 1), ("close", None, 1)),
    "lease ran out": (("register", A, 1), ("wait", None, 1)),
}


@pytest.mark.parametrize("script", MEANWHILE.values(), ids=MEANWHILE)
def test_repeated_registration_counts_as_if_it_was_decoded_whatever_changed_meanwhile(
    tmp_path: Path, script: tuple[Step, ...]
) -> None:
    play(tmp_path, (*script, ("again", None, 1)))


steps = st.one_of(
    st.tuples(
        st.just("register"),
        st.builds(
            registration,
            st.sampled_from("ab"),
            name=st.sampled_from(["n", "m"]),
            topics=st.integers(1, 3),
            counter=st.integers(1, 2),
            broker_id=st.sampled_from([0, 0, 1]),
            zone=st.sampled_from(["", "", "z"]),
        ),
        st.integers(1, 2),
    ),
    st.tuples(st.just("again"), st.none(), st.integers(1, 2)),
    st.tuples(
        st.sampled_from(["wipe", "add", "delete", "unregister", "close", "wait", "order", "settings"]),
        st.none(),
        st.integers(1, 2),
    ),
)


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=100)
@given(st.lists(steps, min_size=2, max_size=25))
def test_repeated_registrations_count_as_if_each_was_decoded(
    tmp_path_factory: pytest.TempPathFactory, script: list[Step]
) -> None:
    play(tmp_path_factory.mktemp("server"), script)
