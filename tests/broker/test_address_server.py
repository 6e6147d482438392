"""A broker that gets its nameservers from an address server (``fetchNamesrvAddrByAddressServer``)."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from routekeeper.broker.config import BrokerConfig, apply_properties
from routekeeper.broker.errors import SettingError
from routekeeper.broker.foreign_settings import fit_settings
from tests.broker.conftest import StartIn
from tests.broker.test_nameservers_change import (
    AT_ONCE_S,
    PERIOD,
    connected,
    listed_at,
    missing_at,
    nameserver_in,
)
from tests.nameserver.wire.test_cluster_test import address_server, silent
from tests.standstill import wait_soon
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.one_core]


def flags(folder: Path, domain: str) -> tuple[str, ...]:
    settings = folder / "broker.properties"
    settings.write_text(
        f"fetchNamesrvAddrByAddressServer=true\nfetchNamesrvAddrInterval=1000\nrocketmq.namesrv.domain={domain}\n"
    )
    words = ("-c", str(settings), "--name", "broker-a", "--store", str(folder / "store"))
    return (*words, "--log-level", "DEBUG", *PERIOD)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """Return the path of the address server's page, which does not exist yet."""
    (tmp_path / "rocketmq").mkdir()
    return tmp_path / "rocketmq" / "nsaddr"


def test_the_broker_follows_the_list(start_in: StartIn, tmp_path: Path, page: Path) -> None:
    old, kept, new = (nameserver_in(start_in, tmp_path / name) for name in ("old", "kept", "new"))
    with address_server(tmp_path) as domain:  # ``page`` does not exist yet, so the server answers with 404
        broker = start_in(tmp_path, "routekeeper.broker", *flags(tmp_path, domain))
        url = f"http://{domain}/rocketmq/nsaddr"
        failed = f"address server failed, known addresses stay url={url} reason=status 404"
        wait_until(lambda: failed in broker.log.read_text(), "the failure is said")
        page.write_text(f"{old.addr};{kept.addr}\n")
        for each in (old, kept):
            wait_soon(listed_at(each.addr), "registered with what is listed", within_s=AT_ONCE_S)
        page.write_text(f"{kept.addr};no address;{new.addr}\nanother line\n")
        wait_soon(listed_at(new.addr), "registered with the new one", within_s=AT_ONCE_S)
        wait_soon(missing_at(old.addr), "unregistered from the one that is gone", within_s=AT_ONCE_S)
        wait_until(lambda: not connected(broker, old.addr), "closed the connection to it")
        lists = broker.log.read_text().count("nameservers now=")
        for wrong, reason in (
            ("<html>no list</html>\n", "it names no address"),
            (f"{old.addr};{'x' * 70_000}\n", "its answer is above 65536 bytes"),
        ):
            page.write_text(wrong)
            said = f"url={url} reason={reason}"
            wait_soon(lambda: said in broker.log.read_text(), reason, within_s=AT_ONCE_S)  # noqa: B023
        assert listed_at(new.addr)()
        assert listed_at(kept.addr)()
        assert broker.stop() == 0
        lines = broker.log.read_text().splitlines()
        assert sum("nameservers now=" in line for line in lines) == lists
        warnings = [line for line in lines if " WARNING " in line and "address server failed" in line]
        # One warning for the missing page, and one for the wrong contents. Other warnings come only if a busy
        # machine delays the address server beyond its timeout.
        assert sum("status 404" in line for line in warnings) <= 1, "one an episode"
        assert sum("status 404" not in line and "reason=it" in line for line in warnings) <= 1
    for each in (kept, new):
        wait_until(missing_at(each.addr), "said goodbye")


def test_an_address_server_that_does_not_answer_holds_up_nothing(start_in: StartIn, tmp_path: Path) -> None:
    with silent() as domain:
        broker = start_in(tmp_path, "routekeeper.broker", *flags(tmp_path, domain))
        host, _, port = broker.addr.rpartition(":")
        socket.create_connection((host, int(port)), timeout=5).close()
        wait_until(lambda: "address server failed" in broker.log.read_text(), "the failure is said")
        assert broker.stop() == 0


def test_nameservers_that_are_named_win_and_the_log_says_so(
    start_in: StartIn, tmp_path: Path, page: Path
) -> None:
    named, listed = (nameserver_in(start_in, tmp_path / name) for name in ("named", "listed"))
    page.write_text(f"{listed.addr}\n")
    with address_server(tmp_path) as domain:
        words = (*flags(tmp_path, domain), "-n", named.addr)
        broker = start_in(tmp_path, "routekeeper.broker", *words)
        wait_until(listed_at(named.addr), "registered with the one that is named")
        said = "address server is not asked reason=namesrvAddr or -n names the nameservers"
        wait_until(lambda: said in broker.log.read_text(), "said")
        assert missing_at(listed.addr)()
        assert broker.stop() == 0


@contextlib.contextmanager
def refused(text: str) -> Iterator[None]:
    with pytest.raises(SettingError, match=re.escape(text)):
        yield


def test_a_domain_that_is_none_refuses_the_start() -> None:
    for values, text in (
        ({"rocketmq.namesrv.domain": "http://a/"}, "rocketmq.namesrv.domain=http://a/ is neither HOST nor"),
        ({"rocketmq.namesrv.domain.subgroup": "a?b"}, "rocketmq.namesrv.domain.subgroup=a?b"),
        ({"fetchNamesrvAddrInterval": "10"}, "fetchNamesrvAddrInterval=10 is outside 1000..86400000"),
    ):
        config, unknown = apply_properties(BrokerConfig(), values)
        assert unknown == ()
        with refused(text):
            config.validate()


def test_the_setting_is_honoured_and_no_longer_a_warning() -> None:
    assert fit_settings({"fetchNamesrvAddrByAddressServer": "true"}) == (
        {"fetchNamesrvAddrByAddressServer": "true"},
        (),
    )
