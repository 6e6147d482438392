"""Registrations that come again unchanged: not decoded again, and answered as if they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.nameserver.modes import independent
from routekeeper.nameserver.modes.independent import Independent
from routekeeper.nameserver.modes.interface import Freshness
from routekeeper.nameserver.registration import Registration, decode_registration
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Answer, ConnectionId, MinBrokerChange, Request
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.registration import RegisterBody, encode_register_body
from routekeeper.remoting.route import DataVersion, TopicConfig


class Effects:
    """A server that does nothing of what the mode asks for."""

    def close_connection(self, origin: ConnectionId) -> None:
        """Leave it open."""

    def notify_min_broker(self, change: MinBrokerChange) -> None:
        """Tell nobody."""


def never(answer: Answer) -> None:
    raise AssertionError("nothing waits in this mode")


def server_in(folder: Path) -> Independent:
    return Independent(LiveSettings(NamesrvSettings(data_dir=str(folder))), Effects(), boot_id=7)


def registration(
    broker: str = "a",
    *,
    name: str = "n",
    topics: int = 2,
    counter: int = 1,
    broker_id: int = 0,
    zone: str = "",
) -> Request:
    body = RegisterBody(
        data_version=DataVersion(counter=counter),
        topic_configs=tuple(TopicConfig(topic_name=f"t{number}") for number in range(topics)),
    )
    ext = {
        "brokerName": name,
        "brokerAddr": f"{broker}:1",
        "clusterName": "c",
        "brokerId": str(broker_id),
        "haServerAddr": "h:1",
        "enableActingMaster": "true",
        "zoneName": zone,
    }
    return Request(
        code=RequestCode.REGISTER_BROKER,
        ext_fields=ext,
        body=encode_register_body(body, compressed=False, version=479),
    )


def register(server: Independent, request: Request, over: int = 1) -> Answer:
    return server.register(request, ConnectionId(over), deadline=0.0, answered=never)


def counting(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Return the list of requests decoded from now on."""
    decoded: list[Request] = []

    def counted(request: Request) -> Registration | Answer:
        decoded.append(request)
        return decode_registration(request)

    monkeypatch.setattr(independent, "decode_registration", counted)
    return decoded


@pytest.mark.xfail(strict=True, reason="independent mode decodes and decides each of them")
@pytest.mark.parametrize("topics", [2, 2_000])
def test_repeated_registration_is_not_decoded_and_renews_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: int
) -> None:
    decoded = counting(monkeypatch)
    server = server_in(tmp_path)
    request = registration(topics=topics)
    for seconds in range(4):
        server.tick(float(seconds))
        register(server, request)
    assert len(decoded) == 2, "once to be listed, and once more to find that it changes nothing"
    (listed,) = server.view(Freshness.STALE).records()
    contact = server._liveness.contact(listed.broker)
    assert contact is not None
    assert contact.heard_at == server._liveness.clock == 3.0


@pytest.mark.xfail(strict=True, reason="independent mode decodes and decides each of them")
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
