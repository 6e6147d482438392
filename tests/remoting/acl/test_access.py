"""Tests of the decision whether one request is served or refused; a refusal has RocketMQ's text."""

from __future__ import annotations

from functools import partial

import pytest

from routekeeper.remoting.acl.access import EXCEPTION, denied_by_asks, denied_by_rule, outside_networks
from routekeeper.remoting.acl.accounts import HOSTS_MAX, Accounts, merge_files, parse_acl_file
from routekeeper.remoting.acl.addresses import parse_networks
from routekeeper.remoting.acl.rules import Asks, broker_rule
from routekeeper.remoting.acl.signing import Keys
from routekeeper.remoting.bodies import ConsumerData, HeartbeatData, SubscriptionData
from routekeeper.remoting.codes import VERSION_4_9_4
from routekeeper.remoting.command import RemotingCommand
from tests.cost import least_cpu_s, on_this_machine

FILE = b"""
globalWhiteRemoteAddresses: [10.9.9.*]
accounts:
- accessKey: writers
  secretKey: secret-of-writers
  whiteRemoteAddress: 10.1.1.1
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms: [Orders=PUB|SUB, OnlyRead=SUB, "%DLQ%mine=SUB"]
  groupPerms: [others=DENY]
- accessKey: administrators
  secretKey: secret-of-administrators
  admin: true
- accessKey: bounded-admin
  secretKey: secret-of-bounded-admin
  admin: true
  topicPerms: [Orders=SUB]
"""
WRITERS = Keys(access_key="writers", secret_key="secret-of-writers")
ADMIN = Keys(access_key="administrators", secret_key="secret-of-administrators")
BOUNDED = Keys(access_key="bounded-admin", secret_key="secret-of-bounded-admin")
ELSEWHERE = "192.0.2.7"


@pytest.fixture
def accounts() -> Accounts:
    return merge_files({"f": parse_acl_file(FILE, "f")})


def request(code: int, body: bytes = b"", **fields: str) -> RemotingCommand:
    return RemotingCommand.request(code, fields, body)


def remark(accounts: Accounts, command: RemotingCommand, host: str = ELSEWHERE) -> str:
    """Return the reason for which a broker refuses a request; empty if the broker serves it."""
    denied = denied_by_rule(accounts, command, host, broker_rule(command.code))
    if denied is None:
        return ""
    assert denied.code == 1
    assert denied.remark.startswith(EXCEPTION)
    assert "secret" not in denied.remark
    return denied.remark.removeprefix(EXCEPTION)


def beat(topic: str, group: str) -> bytes:
    consumer = ConsumerData(group_name=group, subscriptions=(SubscriptionData(topic=topic),))
    return HeartbeatData(client_id="c", consumers=(consumer,), producer_groups=("p",)).encode()


@pytest.mark.parametrize(
    ("keys", "command", "refused"),
    [
        (WRITERS, request(310, b="Orders", a="producers"), ""),
        (WRITERS, request(10, topic="Orders", producerGroup="p"), ""),
        (WRITERS, request(310, b="OnlyRead"), "No default permission for topic:OnlyRead"),
        (WRITERS, request(320, b="OnlyRead"), "No default permission for topic:OnlyRead"),
        (WRITERS, request(10, topic="Others"), "No default permission for topic:Others"),
        # The broker checks the group in the topic's name, and not the group that the sender names.
        (WRITERS, request(310, b="%RETRY%others", a="mine"), "No default permission for group:others"),
        (WRITERS, request(310, b="%RETRY%mine", a="others"), ""),
        (WRITERS, request(310, b="RMQ_SYS_TRACE_TOPIC"), ""),
        (
            WRITERS,
            request(11, topic="RMQ_SYS_TRACE_TOPIC", consumerGroup="g"),
            "No default permission for topic:",
        ),
        (WRITERS, request(11, topic="OnlyRead", consumerGroup="mine"), ""),
        (
            WRITERS,
            request(11, topic="OnlyRead", consumerGroup="others"),
            "No default permission for group:others",
        ),
        (
            WRITERS,
            request(361, topic="Others", consumerGroup="mine"),
            "No default permission for topic:Others",
        ),
        (WRITERS, request(11, topic="%DLQ%mine", consumerGroup="mine"), ""),
        (
            WRITERS,
            request(11, topic="%DLQ%yours", consumerGroup="mine"),
            "No default permission for topic:%DLQ%yours",
        ),
        (WRITERS, request(11, topic="%RETRY%mine", consumerGroup="mine"), ""),
        (WRITERS, request(12, topic="Others", key="k"), "No default permission for topic:Others"),
        (
            WRITERS,
            request(15, topic="Orders", consumerGroup="others"),
            "No default permission for group:others",
        ),
        (
            WRITERS,
            request(35, clientID="c", consumerGroup="others"),
            "No default permission for group:others",
        ),
        (WRITERS, request(35, clientID="c", producerGroup="others"), ""),
        (WRITERS, request(36, group="others", offset="0"), "No default permission for group:others"),
        (WRITERS, request(38, consumerGroup="others"), "No default permission for group:others"),
        (WRITERS, request(34, beat("Orders", "mine")), ""),
        (WRITERS, request(34, beat("Others", "mine")), "No default permission for topic:Others"),
        (WRITERS, request(34, beat("Orders", "others")), "No default permission for group:others"),
        (WRITERS, request(34, b"no heartbeat"), "JSON of 12 bytes cannot be read"),
        (
            WRITERS,
            request(17, topic="T"),
            "Need admin permission for request code=17, but accessKey=writers is not",
        ),
        (WRITERS, request(30, topic="Others", queueId="0"), ""),
        (ADMIN, request(17, topic="T"), ""),
        (ADMIN, request(310, b="Anything"), ""),
        (BOUNDED, request(17, topic="T"), ""),
        (BOUNDED, request(11, topic="Orders", consumerGroup="g"), "No default permission for group:g"),
        (BOUNDED, request(310, b="Orders"), "No default permission for topic:Orders"),
    ],
)
def test_signed_request_gets_what_its_account_may(
    accounts: Accounts, keys: Keys, command: RemotingCommand, refused: str
) -> None:
    found = remark(accounts, keys.signed(command))
    assert found == refused or (refused and found.startswith(refused)), found


def test_words_for_those_who_do_not_prove_an_account(accounts: Accounts) -> None:
    command = request(30, topic="Orders", queueId="0")
    stranger = Keys(access_key="nobody-known", secret_key="secret")
    wrong = Keys(access_key="writers", secret_key="another")
    assert remark(accounts, command) == "No accessKey is configured"
    assert remark(accounts, stranger.signed(command)) == "No acl config for nobody-known"
    assert remark(accounts, wrong.signed(command)) == "Check signature failed for accessKey=writers"
    unsigned = request(30, topic="Orders", queueId="0", AccessKey="writers")
    assert remark(accounts, unsigned) == "Check signature failed for accessKey=writers"


@pytest.mark.parametrize("part", ["argument", "added", "removed", "body", "signature"])
def test_changed_request_is_refused(accounts: Accounts, part: str) -> None:
    signed = WRITERS.signed(request(310, b"body", b="Orders", e="0"))
    fields, body = dict(signed.ext_fields), signed.body
    if part == "argument":
        fields["e"] = "1"
    elif part == "added":
        fields["f"] = "1"
    elif part == "removed":
        del fields["e"]
    elif part == "body":
        body = b"BODY"
    else:
        fields["Signature"] = "A" * 28
    changed = RemotingCommand.request(310, fields, body)
    assert remark(accounts, changed) == "Check signature failed for accessKey=writers"


def test_signature_does_not_cover_what_old_clients_add_later(accounts: Accounts) -> None:
    signed = WRITERS.signed(request(12, topic="Orders", key="k"))
    fields = {**signed.ext_fields, "_UNIQUE_KEY_QUERY": "true"}
    for version, refused in ((VERSION_4_9_4 - 1, False), (VERSION_4_9_4, True)):
        command = RemotingCommand(code=12, ext_fields=fields, version=version)
        assert bool(remark(accounts, command)) == refused
    both = WRITERS.signed(request(12, topic="Orders", key="k", _UNIQUE_KEY_QUERY="true"))
    assert remark(accounts, both) == ""


def test_white_addresses_need_no_signature(accounts: Accounts) -> None:
    command = request(17, topic="T")
    named = request(17, topic="T", AccessKey="writers")
    assert remark(accounts, command, "10.9.9.1") == ""
    assert remark(accounts, command, "10.1.1.1") == "No accessKey is configured"
    assert remark(accounts, named, "10.1.1.1") == ""
    assert remark(accounts, named, "10.1.1.2") == "Check signature failed for accessKey=writers"


def test_long_white_list_costs_a_host_once(accounts: Accounts) -> None:
    entries = "\n".join(f"- 10.{number % 256}.*.{number // 256}" for number in range(1024))
    text = FILE.replace(
        b"globalWhiteRemoteAddresses: [10.9.9.*]", b"globalWhiteRemoteAddresses:\n" + entries.encode()
    )
    many = merge_files({"f": parse_acl_file(text, "f")})
    signed = WRITERS.signed(request(30, topic="Orders"))
    assert remark(many, signed) == ""
    assert remark(many, request(30, topic="Orders"), "10.255.1.3") == ""

    def ask(one: Accounts) -> None:
        for _ in range(300):
            assert remark(one, signed) == ""

    bound = 5 * least_cpu_s(lambda: partial(ask, accounts), below=0.0) + 0.01
    assert least_cpu_s(lambda: partial(ask, many), below=bound) < bound
    for number in range(10_000):
        accounts.is_white(f"172.16.{number // 256}.{number % 256}")
    assert len(accounts._known) <= HOSTS_MAX


def test_nameserver_asks_for_an_account_or_an_admin(accounts: Accounts) -> None:
    command = request(105, topic="T")
    signed = WRITERS.signed(command)
    assert denied_by_asks(accounts, command, ELSEWHERE, Asks.NOTHING) is None
    assert denied_by_asks(accounts, signed, ELSEWHERE, Asks.ACCOUNT) is None
    assert denied_by_asks(accounts, command, ELSEWHERE, Asks.ACCOUNT) is not None
    assert denied_by_asks(accounts, signed, ELSEWHERE, Asks.ADMIN) is not None
    assert denied_by_asks(accounts, ADMIN.signed(command), ELSEWHERE, Asks.ADMIN) is None


def test_request_from_outside_the_networks_is_refused_with_code_16() -> None:
    networks = parse_networks("10.0.0.0/8")
    command = request(17, topic="T", AccessKey="x" * 10_000)
    assert outside_networks(command, "10.1.2.3", networks) is None
    assert outside_networks(command, "11.1.2.3", None) is None
    denied = outside_networks(command, "11.1.2.3", networks)
    assert denied is not None
    assert denied.code == 16
    assert denied.remark == (
        "request code 17 is allowed from the networks of adminNetworks only, not from 11.1.2.3"
    )
    assert len(denied.access_key) < 1000


def test_stranger_costs_no_signature(accounts: Accounts) -> None:
    """A request of an unknown account, or with a signature of the wrong length, must cost less than 2 ms.

    If the account is known and the signature has the right length, the server computes the true signature.
    For the test's request of 16 MiB, this must cost less than 0.2 s.
    """
    body = bytes(16 * 1024 * 1024)
    stranger = RemotingCommand.request(310, {"b": "T", "AccessKey": "nobody", "Signature": "A" * 28}, body)
    forged = RemotingCommand.request(310, {"b": "T", "AccessKey": "writers", "Signature": "A" * 28}, body)
    short = RemotingCommand.request(310, {"b": "T", "AccessKey": "writers", "Signature": "A" * 27}, body)
    for command, limit_s in ((stranger, 0.002), (short, 0.002), (forged, 0.2)):
        bound = on_this_machine(limit_s)
        assert least_cpu_s(lambda of=command: partial(remark, accounts, of), below=bound) < bound  # type: ignore[misc]
        assert remark(accounts, command)
