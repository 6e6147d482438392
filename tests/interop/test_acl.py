"""Tests that our servers check the signatures in requests of Apache's clients, mqadmin and broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from routekeeper import Credentials
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient

from .apache import START_S, Apache, wait_until
from .ours import (
    MODES,
    PAIRS,
    OurBroker,
    OurNamesrv,
    await_broker,
    await_namesrv,
    launch_broker,
    mode_flags,
    start_namesrv,
)

pytestmark = pytest.mark.interop

COUNT = 100
ADMIN = Credentials(access_key="admin-of-all", secret_key="secret-of-admin")
CLIENT: dict[str, Any] = {"accessKey": "clients", "secretKey": "secret-of-clients"}
ACCOUNTS = """\
globalWhiteRemoteAddresses: []
accounts:
- accessKey: clients
  secretKey: secret-of-clients
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - Orders=PUB|SUB
  groupPerms:
  - readers=SUB
- accessKey: admin-of-all
  secretKey: secret-of-admin
  admin: true
"""
KEYS = "accessKey: admin-of-all\nsecretKey: secret-of-admin\n"


@dataclass
class Guarded:
    """Our nameserver with ``--acl all``, and our broker with ``aclEnable=true``.

    The broker signs its requests to the nameserver.

    Attributes:
        accounts: The broker's access file.
    """

    namesrv: OurNamesrv
    broker: OurBroker
    accounts: Path

    def has_route(self, topic: str, addr: str) -> bool:
        command = ADMIN.signed(RemotingCommand.request(105, {"topic": topic}))
        with BlockingClient() as client:
            answer = client.invoke(self.namesrv.addr, command, timeout_s=10.0)
        return answer.code == 0 and f'"{addr}"'.encode() in answer.body


@pytest.fixture(scope="module")
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    files = {"namesrv.yml": ACCOUNTS, "plain_acl.yml": ACCOUNTS, "tools.yml": KEYS}
    for name, text in files.items():
        (folder / name).write_text(text)
    flags = [*mode_flags(request.param), "--data", str(folder / "data")]
    flags += ["--acl", "all", "--acl-file", str(folder / "namesrv.yml")]
    with ExitStack() as stack:
        namesrv = start_namesrv(flags, folder / "namesrv", "127.0.0.1:0")
        stack.callback(namesrv.kill)
        await_namesrv(namesrv)
        settings = {
            "aclEnable": "true",
            "aclFile": str(folder / "plain_acl.yml"),
            "namesrvAclFile": str(folder / "tools.yml"),
        }
        broker = launch_broker([namesrv.addr], folder, name="guarded", settings=settings)
        stack.callback(broker.kill)
        await_broker(broker, [])
        found = Guarded(namesrv, broker, folder / "plain_acl.yml")
        wait_until(lambda: found.has_route("TBW102", found.broker.addr), "the broker's route", START_S)
        yield found


def test_apaches_4_broker_signs_nothing_and_is_let_in_from_a_white_address(
    apache_4: Apache, tmp_path: Path
) -> None:
    accounts = tmp_path / "namesrv.yml"
    accounts.write_text(ACCOUNTS)
    flags = [*mode_flags("raft"), "--data", str(tmp_path / "data")]
    flags += ["--acl", "all", "--acl-file", str(accounts)]
    with ExitStack() as stack:
        namesrv = start_namesrv(flags, tmp_path / "namesrv", "127.0.0.1:0")
        stack.callback(namesrv.kill)
        await_namesrv(namesrv)
        settings = {"registerNameServerPeriod": "10000"}
        broker = apache_4.broker([namesrv.addr], settings=settings, wait=False)
        stack.callback(broker.kill)
        refused = 'change=REGISTER_BROKER accessKey="" reason="No accessKey is configured" result=refused(1)'
        wait_until(lambda: refused in namesrv.log(), "the refusal", START_S)
        accounts.write_text(ACCOUNTS.replace(" []", "\n- 127.0.0.1", 1))
        wait_until(lambda: broker.addr in namesrv.get("/v1/brokers")[1], "the broker", START_S)


@pytest.mark.parametrize(("guarded", "release"), PAIRS, indirect=["guarded"])
def test_java_with_keys_does_what_its_account_may(
    apaches: dict[str, Apache], guarded: Guarded, release: str
) -> None:
    apache, namesrvs, addr = apaches[release], [guarded.namesrv.addr], guarded.broker.addr

    def run(*arguments: str) -> str:
        result = apache.admin(*arguments, namesrvs=namesrvs, session="keys", keys=KEYS)
        assert "Exception" not in result.stdout + result.stderr, result
        return result.stdout

    for topic in ("Orders", "Others"):
        assert "success" in run("updateTopic", "-b", addr, "-t", topic, "-r", "4", "-w", "4")
    wait_until(lambda: guarded.has_route("Others", addr), "the topics' routes")
    assert addr in run("clusterList")
    assert "brokerVersionDesc" in run("brokerStatus", "-b", addr)
    assert "guarded" in run("sendMessage", "-t", "Orders", "-p", "by mqadmin", "-c", "TagI")
    if release == "4.9.7":
        accounts_are_administered(run, guarded, addr)

    # Send single messages and batches, then consume all messages.
    for batch in (1, 10):
        sent = apache.produce(namesrvs, "Orders", COUNT, batch=batch, **CLIENT)
        assert sent["status SEND_OK"] == str(COUNT // batch), sent
    facts = apache.consume(namesrvs, "Orders", "readers", COUNT, **CLIENT)
    assert facts["distinct"] == str(COUNT), facts

    sent = apache.produce(namesrvs, "Others", 1, **CLIENT)
    assert "AclException: No default permission for topic:Others" in sent["error"], sent
    # The nameserver refuses the route query because of the wrong signature, but Java's client only reports
    # that there is no route.
    strangers: list[tuple[dict[str, Any], str]] = [
        ({"accessKey": "clients", "secretKey": "wrong"}, "Check signature failed for accessKey=clients"),
        ({"accessKey": "nobody", "secretKey": "wrong"}, "No acl config for nobody"),
        ({}, "No accessKey is configured"),
    ]
    for keys, _ in strangers:
        sent = apache.produce(namesrvs, "Orders", 1, **keys)
        assert "No route info of this topic" in sent["error"], sent
    wait_until(lambda: all(words in guarded.namesrv.log() for _, words in strangers), "the lines", START_S)


def accounts_are_administered(run: Callable[..., str], guarded: Guarded, addr: str) -> None:
    """Use the five subcommands about accounts, which exist in 4.9.7 and not in 5.3.3."""
    account = (
        "-a",
        "newcomers",
        "-s",
        "secret-of-newcomers",
        "-t",
        "Orders=SUB,Others=PUB|SUB",
        "-m",
        "false",
    )
    assert "success" in run("updateAclConfig", "-b", addr, *account)
    assert "newcomers" in guarded.accounts.read_text()
    assert "newcomers" in run("getAclConfig", "-b", addr)
    version = run("clusterAclConfigVersion", "-b", addr)
    assert addr in version
    assert str(guarded.accounts) in version
    assert "success" in run(
        "updateGlobalWhiteAddr", "-b", addr, "-g", "10.0.0.1,10.0.0.2", "-p", str(guarded.accounts)
    )
    assert "10.0.0.2" in guarded.accounts.read_text()
    assert "success" in run("deleteAclConfig", "-b", addr, "-a", "newcomers")
    assert "newcomers" not in guarded.accounts.read_text()


@pytest.mark.parametrize("guarded", MODES, indirect=True)
def test_apaches_5_broker_signs_what_it_sends_to_a_nameserver(apache_5: Apache, guarded: Guarded) -> None:
    credentials = '{"accessKey":"admin-of-all","secretKey":"secret-of-admin"}'
    broker = apache_5.broker(
        [guarded.namesrv.addr],
        settings={
            "innerClientAuthenticationCredentials": credentials,
            # 5.3.3 needs this setting to read accounts, although this broker does not demand signatures from
            # clients.
            "authenticationMetadataProvider": (
                "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
            ),
            "registerNameServerPeriod": "10000",
        },
        wait=False,
    )
    try:
        broker.wait_for("boot success")
        wait_until(lambda: guarded.has_route("TBW102", broker.addr), "its route", START_S)
    finally:
        broker.kill()
