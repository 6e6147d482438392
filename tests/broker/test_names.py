"""By default, a broker uses the host's name, and stores it for later starts. Brokers may share one name."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import BrokerData, RouteDialect, TopicRouteData, encode_route
from tests.broker.conftest import WAIT_S, RecordingNameserver, StartIn, Wire
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def end_of(wire: Wire, topic: str) -> int:
    """Return the number of messages in the topic's first queue."""
    answer = wire.call(30, {"topic": topic, "queueId": "0"})
    wire.close()
    return int(answer.ext_fields["offset"])


def test_the_default_name_is_that_of_the_host(start_in: StartIn, tmp_path: Path) -> None:
    broker = start_in(tmp_path / "cwd", "routekeeper.broker")
    assert f"name={socket.gethostname()} " in broker.line, broker.log.read_text()
    assert broker.stop() == 0
    assert [path.name for path in (tmp_path / "cwd" / "data").iterdir()] == ["broker"]


def test_a_store_keeps_its_name_and_place_whatever_the_host_is_called(
    start_in: StartIn, tmp_path: Path
) -> None:
    broker = start_in(
        tmp_path / "cwd", "routekeeper.broker", "--store", "data/broker", "--name", "container-1"
    )
    wire = Wire(broker.addr)
    assert wire.send_message("Kept", b"x").code == 0
    wire.close()
    assert broker.stop() == 0
    again = start_in(tmp_path / "cwd", "routekeeper.broker")
    assert "name=container-1 " in again.line
    assert end_of(Wire(again.addr), "Kept") == 1
    assert again.stop() == 0
    named = start_in(tmp_path / "cwd", "routekeeper.broker", "--name", "container-1")
    assert "name=container-1 " in named.line
    assert end_of(Wire(named.addr), "Kept") == 1
    assert named.stop() == 0


def test_another_name_than_that_of_the_store_is_refused(start_in: StartIn, tmp_path: Path) -> None:
    first = start_in(tmp_path / "cwd", "routekeeper.broker", "--store", "data/broker", "--name", "first")
    assert first.stop() == 0
    for place in ((), ("--store", "data/broker")):
        other = start_in(tmp_path / "cwd", "routekeeper.broker", "--name", "other", *place)
        assert (other.line, other.process.wait(WAIT_S)) == ("", 2)
        (refusal,) = other.log.read_text().splitlines()
        assert refusal.startswith("mqbroker: brokerName=other: ")
        assert "first" in refusal
        assert "data/broker" in refusal


def test_a_store_of_before_is_found_with_its_name(start_in: StartIn, tmp_path: Path) -> None:
    former = start_in(
        tmp_path / "cwd", "routekeeper.broker", "--store", "data/broker-a", "--name", "broker-a"
    )
    wire = Wire(former.addr)
    assert wire.send_message("Former", b"x").code == 0
    wire.close()
    assert former.stop() == 0
    (tmp_path / "cwd" / "data" / "broker-a" / "config" / "broker.name").unlink()
    for flags in ((), ("--store", "data/broker-a")):
        now = start_in(tmp_path / "cwd", "routekeeper.broker", *flags)
        assert "name=broker-a " in now.line, now.log.read_text()
        assert end_of(Wire(now.addr), "Former") == 1
        assert now.stop() == 0
        assert [path.name for path in (tmp_path / "cwd" / "data").iterdir()] == ["broker-a"]
        (tmp_path / "cwd" / "data" / "broker-a" / "config" / "broker.name").unlink()


def test_without_a_name_the_store_must_be_clear(start_in: StartIn, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert start_in(tmp_path / "cwd", "routekeeper.broker", "--name", name).stop() == 0
    unnamed = start_in(tmp_path / "cwd", "routekeeper.broker")
    assert (unnamed.line, unnamed.process.wait(WAIT_S)) == ("", 2)
    (refusal,) = unnamed.log.read_text().splitlines()
    assert "one, two" in refusal
    again = start_in(tmp_path / "cwd", "routekeeper.broker", "--name", "two")
    assert "name=two " in again.line
    assert sorted(path.name for path in (tmp_path / "cwd" / "data").iterdir()) == ["one", "two"]


def test_a_damaged_name_is_no_reason_to_take_another(start_in: StartIn, tmp_path: Path) -> None:
    assert start_in(tmp_path / "cwd", "routekeeper.broker", "--name", "whole").stop() == 0
    kept = tmp_path / "cwd" / "data" / "whole" / "config" / "broker.name"
    for damage in ("", "a b\n", "x" * 10_000):
        kept.write_text(damage)
        broker = start_in(tmp_path / "cwd", "routekeeper.broker", "--name", "whole")
        assert (broker.line, broker.process.wait(WAIT_S)) == ("", 2)
        (refusal,) = broker.log.read_text().splitlines()
        assert "config/broker.name" in refusal
        assert len(refusal) < 600


def test_a_broker_is_renamed_as_the_docs_say(start_in: StartIn, tmp_path: Path) -> None:
    assert start_in(tmp_path / "cwd", "routekeeper.broker", "--name", "before").stop() == 0
    kept = tmp_path / "cwd" / "data" / "before" / "config" / "broker.name"
    kept.write_text("behind\n")
    store = ("--store", "data/before")
    broker = start_in(tmp_path / "cwd", "routekeeper.broker", *store)
    assert (broker.line, broker.process.wait(WAIT_S)) == ("", 2)
    refusal = broker.log.read_text()
    assert "its checksum differs" in refusal
    assert "remove broker.name.sha256" in refusal
    kept.with_name("broker.name.sha256").unlink()
    broker = start_in(tmp_path / "cwd", "routekeeper.broker", *store)
    assert "name=behind " in broker.line, broker.log.read_text()
    assert broker.stop() == 0


def lines(log: Path, *parts: str) -> list[str]:
    """Return the warnings in a log that hold all these texts."""
    warnings = (line for line in log.read_text().splitlines() if " WARNING " in line)
    return [line for line in warnings if all(part in line for part in parts)]


def test_another_broker_with_ones_name_is_named_once_a_change(
    start_in: StartIn, tmp_path: Path, nameserver: RecordingNameserver
) -> None:
    def list_as(addr: str) -> None:
        """Make the nameserver list ``addr`` as this broker's address.

        Wait until the broker has read the new address twice.
        """
        data = BrokerData(cluster="DefaultCluster", broker_name="twin", broker_addrs={0: addr})
        route = encode_route(TopicRouteData(broker_datas=(data,)), RouteDialect.QUOTED)
        nameserver.answers[105] = RemotingCommand(code=0, ext_fields={}, body=route)
        while not nameserver.requests.empty():
            nameserver.requests.get()
        for _ in range(3):  # the answer to the first request may still have the former address
            nameserver.expect(105)

    flags = ("-n", nameserver.addr, "--name", "twin", "--set", "timerDivisor=100")
    broker = start_in(tmp_path / "one", "routekeeper.broker", *flags)
    for addr in ("192.0.2.1:1", "192.0.2.2:2", broker.addr, "192.0.2.2:2"):
        list_as(addr)
    assert broker.stop() == 0
    by = [line.partition(" by=")[2].split()[0] for line in lines(broker.log, "name=twin")]
    assert by == ["192.0.2.1:1", "192.0.2.2:2", "192.0.2.2:2"]


@pytest.mark.one_core
def test_two_brokers_with_one_name_are_named_by_the_nameserver_and_by_each_other(
    start_in: StartIn, tmp_path: Path
) -> None:
    nameserver = start_in(tmp_path / "ns", "routekeeper.nameserver", "--http", "off")
    flags = ("-n", nameserver.addr, "--name", "twin", "--set", "timerDivisor=20")
    first = start_in(tmp_path / "one", "routekeeper.broker", *flags)
    second = start_in(tmp_path / "two", "routekeeper.broker", *flags)
    for log, *parts in (
        (nameserver.log, f"broker=DefaultCluster/{first.addr}", f"by=DefaultCluster/{second.addr}"),
        (nameserver.log, f"broker=DefaultCluster/{second.addr}", f"by=DefaultCluster/{first.addr}"),
        (first.log, "name=twin", f"by={second.addr}"),
        (second.log, "name=twin", f"by={first.addr}"),
    ):
        wait_until(lambda: lines(log, *parts), f"{parts} in {log.name}")  # noqa: B023
    assert second.stop() == 0
    third = start_in(tmp_path / "three", "routekeeper.broker", *flags)
    wait_until(lambda: lines(first.log, "name=twin", f"by={third.addr}"), "the third one is named")
