"""Tests of our client at Apache's brokers that demand signatures and TLS."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from routekeeper import (
    AsyncClient,
    Client,
    ClientConfig,
    ConsumeFrom,
    ConsumerConfig,
    ConsumeResult,
    Credentials,
    Message,
    ReceivedMessage,
    ResponseError,
    SendNotApplied,
    SendOutcomeUnknown,
    TlsConfig,
    TopicConfig,
)
from routekeeper.bench.timers import divide_periods

from .apache import RELEASES, START_S, Apache, ApacheBroker, has_route, wait_until
from .ours import RETRY_LEVELS, OurNamesrv, await_namesrv, start_namesrv
from .patient import patient, sender

pytestmark = pytest.mark.interop

WRITER, READER, ADMIN = "writer-of-orders", "reader-of-orders", "admin-of-all"
AUTH = "org.apache.rocketmq.auth"
ACCOUNTS = f"""
globalWhiteRemoteAddresses: []
accounts:
- accessKey: {WRITER}
  secretKey: secret-of-writer
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - Orders=PUB|SUB
- accessKey: {READER}
  secretKey: secret-of-reader
  admin: false
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
- accessKey: {ADMIN}
  secretKey: secret-of-admin
  admin: true
"""


#: Settings that make a broker demand signatures. A 5.3.3 broker needs more settings, because it has a
#: separate module for signatures. At the start, this module copies the accounts from 4.9's access file
#: (migrateAuthFromV1Enabled).
SIGNED = {
    "4.9.7": {"aclEnable": "true"},
    "5.3.3": {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": (
            f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
        ),
        "authorizationEnabled": "true",
        "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
        "migrateAuthFromV1Enabled": "true",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """A nameserver of ours and an Apache broker that accepts only TLS connections and signed requests.

    Attributes:
        ca_file: The broker's self-signed certificate.
    """

    release: str
    namesrv: OurNamesrv
    broker: ApacheBroker
    ca_file: str

    def settings(self, tls: TlsConfig | None = None) -> ClientConfig:
        # Our nameserver speaks no TLS here. Use long timeouts, because the first TLS handshake of a JVM is
        # slow.
        tls = tls or TlsConfig(ca_file=self.ca_file, nameservers=False)
        return divide_periods(patient([self.namesrv.addr], tls=tls), 10.0)


@pytest.fixture(scope="module")
def all_secured(
    apaches: dict[str, Apache], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Secured]]:
    folder = tmp_path_factory.mktemp("secured")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=broker",
            ),
            *("-keyout", str(key), "-out", str(certificate), "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    with ExitStack() as started, ThreadPoolExecutor() as pool:

        def start(release: str) -> Secured:
            home = folder / release
            flags = ["--data", str(home / "data")]
            namesrv = start_namesrv(flags, home / "namesrv", "127.0.0.1:0")
            started.callback(namesrv.kill)
            await_namesrv(namesrv)
            broker = apaches[release].broker(
                [namesrv.addr],
                settings={
                    **SIGNED[release],
                    "registerNameServerPeriod": "10000",
                    "messageDelayLevel": RETRY_LEVELS,
                    "transactionCheckInterval": "60000",
                },
                properties={
                    "tls.server.mode": "enforcing",
                    "tls.enable": "false",  # without this key, enforcing mode uses TLS to nameservers, too
                    "tls.test.mode.enable": "false",
                    "tls.server.keyPath": str(key),
                    "tls.server.certPath": str(certificate),
                    "tls.server.need.client.auth": "none",
                    "tls.config.file": str(home / "none"),
                },
                files={"conf/plain_acl.yml": ACCOUNTS},
                wait=False,
            )
            started.callback(broker.kill)
            broker.wait_for("boot success")
            wait_until(lambda: has_route(namesrv.addr, "TBW102", broker.addr), "its route", START_S)
            return Secured(release=release, namesrv=namesrv, broker=broker, ca_file=str(certificate))

        yield dict(zip(RELEASES, pool.map(start, RELEASES), strict=True))


@pytest.fixture(params=RELEASES)
def secured(all_secured: dict[str, Secured], request: pytest.FixtureRequest) -> Secured:
    return all_secured[request.param]


def keys(name: str, secret: str | None = None) -> Credentials:
    return Credentials(access_key=name, secret_key=secret or f"secret-of-{name.partition('-')[0]}")


COUNT = 100


def listener(seen: dict[str, int]) -> Callable[[Sequence[ReceivedMessage]], ConsumeResult]:
    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeResult:
        for message in messages:
            if message.body == b"7" and message.reconsume_times == 0:
                return ConsumeResult.RECONSUME_LATER  # the request for redelivery must be signed, too
            seen[message.body.decode()] = seen.get(message.body.decode(), 0) + 1
        return ConsumeResult.SUCCESS

    return listen


def test_signed_requests_over_tls_are_accepted(secured: Secured) -> None:
    seen: dict[str, int] = {}
    group = ConsumerConfig(group="blocking-readers", consume_from=ConsumeFrom.FIRST_OFFSET)
    with Client(config=secured.settings(), credentials=keys(WRITER)) as client:
        producer = client.producer(sender("writers"))
        for number in range(COUNT - 10):
            producer.send(Message(topic="Orders", body=b"%d" % number))
        producer.send_batch([Message(topic="Orders", body=b"%d" % n) for n in range(COUNT - 10, COUNT)])
        client.consume(group, {"Orders": "*"}, listener(seen))
        wait_until(lambda: len(seen) == COUNT, f"all messages, came: {len(seen)}", START_S)
    assert set(seen.values()) == {1}

    again: dict[str, int] = {}

    async def read() -> None:
        others = ConsumerConfig(group="asyncio-readers", consume_from=ConsumeFrom.FIRST_OFFSET)
        async with AsyncClient(config=secured.settings(), credentials=keys(READER)) as client:
            await client.consume(others, {"Orders": "*"}, listener(again))
            await asyncio.to_thread(wait_until, lambda: len(again) == COUNT, "all messages", START_S)

    asyncio.run(read())
    assert set(again.values()) == {1}


@pytest.mark.parametrize(
    ("credentials", "said"),
    [
        pytest.param(keys(WRITER, "not-the-secret"), "[Ss]ignature", id="wrong-secret"),
        pytest.param(keys("nobody-known", "x" * 10), "nobody-known", id="unknown-key"),
        pytest.param(keys(READER), "permission", id="no-right"),
        pytest.param(None, "No accessKey is configured|username cannot be null", id="unsigned"),
    ],
)
def test_what_the_keys_do_not_allow_is_refused_in_words(
    secured: Secured, credentials: Credentials | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with Client(config=secured.settings(), credentials=credentials) as client:
        with pytest.raises(SendNotApplied, match=said) as unsent:
            client.producer("writers").send(Message(topic="Orders", body=b"x"))
        with pytest.raises(ResponseError, match=said) as refused:
            client.run(client.admin.create_topic(secured.broker.addr, TopicConfig(topic_name="Others")))
    for text in (str(unsent.value), str(refused.value), caplog.text):
        assert credentials is None or credentials.secret_key not in text
    assert "\n" not in str(unsent.value)


def test_an_administrators_keys_administer(secured: Secured) -> None:
    with Client(config=secured.settings(), credentials=keys(ADMIN)) as client:
        client.run(client.admin.create_topic(secured.broker.addr, TopicConfig(topic_name="OfAdmin")))
        settings = client.run(client.admin.broker_config(secured.broker.addr))
        wait_until(lambda: len(client.route("OfAdmin").broker_datas) == 1, "its route")
    assert SIGNED[secured.release].items() <= settings.items()


def test_a_plain_client_and_one_that_does_not_know_the_authority_are_told_so(secured: Secured) -> None:
    plain = ClientConfig(nameservers=(secured.namesrv.addr,), call_timeout_s=5.0)
    message = Message(topic="Orders", body=b"x")
    # The broker closes a connection on which it receives bytes that are not TLS. The client then only knows
    # that it has sent the request.
    hung_up = pytest.raises(SendOutcomeUnknown, match=f"{secured.broker.addr} was lost: the peer closed it")
    with Client(config=plain, credentials=keys(WRITER)) as client, hung_up:
        client.producer("writers").send(message)
    unknown = TlsConfig(nameservers=False)
    refused = pytest.raises(SendNotApplied, match="its certificate is refused: self")
    with Client(config=secured.settings(unknown), credentials=keys(WRITER)) as client, refused:
        client.producer("writers").send(message)
