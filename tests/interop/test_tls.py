"""Tests of TLS between Apache's programs and ours, with client certificates and in all TLS modes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from routekeeper import Client, TlsConfig
from routekeeper.client.config import ConsumeFrom, ConsumerConfig
from tests.tls import key, pem

from .apache import HALF_TOPIC, RELEASES, START_S, Apache, ApacheBroker, ApacheNamesrv, wait_until
from .ours import (
    MODES,
    PAIRS,
    ApacheDeployment,
    OurBroker,
    OurNamesrv,
    await_broker,
    await_namesrv,
    launch_broker,
    mode_flags,
    our_mqadmin,
    start_namesrv,
)
from .patient import patient
from .programs import AdminResult
from .test_secured import ACCOUNTS, ADMIN, SIGNED, keys, listener
from .tls_files import AUTHORITY, MODE_FLAGS, MQADMIN, TO_NAMESRV, java_client, java_server, routed

pytestmark = pytest.mark.interop

TLS = TlsConfig(ca_file=AUTHORITY, cert_file=pem("member"), key_file=key("member"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """Apache's nameserver and broker, which accept only TLS with client certificates, and our broker.

    Apache's broker also demands signatures.
    """

    release: str
    folder: Path
    namesrv: ApacheNamesrv
    broker: ApacheBroker
    ours: OurBroker

    @property
    def tools(self) -> str:
        """Path of the file from which mqadmin reads the administrator's keys."""
        return str(self.folder / "tools.yml")

    def mqadmin(self, *args: str, secured: bool = True) -> AdminResult:
        """Run our mqadmin at Apache's nameserver, with a certificate and keys if ``secured`` is True."""
        options = (*MQADMIN, "--acl-file", self.tools) if secured else ()
        return our_mqadmin(*args, *options, namesrvs=[self.namesrv.addr])


def start_theirs(apache: Apache, folder: Path, stack: ExitStack) -> Theirs:
    folder.mkdir()
    (folder / "tools.yml").write_text(f"accessKey: {ADMIN}\nsecretKey: secret-of-admin\n")
    namesrv = apache.namesrv(properties=java_server())
    stack.callback(namesrv.kill)
    broker = apache.broker(
        [namesrv.addr],
        name="theirs",
        settings={**SIGNED[apache.release], "registerNameServerPeriod": "10000"},
        properties=java_server() | java_client(),
        files={"conf/plain_acl.yml": ACCOUNTS},
        wait=False,
    )
    stack.callback(broker.kill)
    ours = launch_broker([namesrv.addr], folder, name="ours", settings=TO_NAMESRV)
    stack.callback(ours.kill)
    await_broker(ours, [])
    theirs = Theirs(release=apache.release, folder=folder, namesrv=namesrv, broker=broker, ours=ours)
    broker.wait_for("boot success")
    # A broker of 5.3.3 registers 10 s after its start, or at once when an administrator sets its permission.
    # So set the permission.
    done = theirs.mqadmin("updateBrokerConfig", "-b", broker.addr, "-k", "brokerPermission", "-v", "6")
    assert done.returncode == 0, done
    wait_until(lambda: routed(namesrv.addr, HALF_TOPIC, broker.addr), "their broker's route", START_S)
    return theirs


@pytest.fixture(scope="module")
def all_theirs(
    apaches: dict[str, Apache], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Theirs]]:
    folder = tmp_path_factory.mktemp("tls")
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        started = pool.map(
            lambda release: start_theirs(apaches[release], folder / f"theirs-{release}", stack), RELEASES
        )
        yield dict(zip(RELEASES, started, strict=True))


@pytest.fixture(params=RELEASES)
def theirs(all_theirs: dict[str, Theirs], request: pytest.FixtureRequest) -> Theirs:
    return all_theirs[request.param]


def test_our_broker_registers_at_apaches_enforcing_nameserver(theirs: Theirs) -> None:
    wait_until(lambda: routed(theirs.namesrv.addr, "ours", theirs.ours.addr), "our broker's route", START_S)
    assert "certificate" not in theirs.ours.log()  # no warning about a certificate


def test_our_mqadmin_administers_apaches_secured_cluster(theirs: Theirs) -> None:
    listed = theirs.mqadmin("clusterList")
    assert theirs.broker.addr in listed.stdout, listed
    status = theirs.mqadmin("brokerStatus", "-b", theirs.broker.addr)
    assert status.returncode == 0, status
    assert "brokerVersionDesc" in status.stdout
    topic = theirs.mqadmin("updateTopic", "-b", theirs.broker.addr, "-t", "Secured")
    assert topic.returncode == 0, topic
    wait_until(lambda: routed(theirs.namesrv.addr, "Secured", theirs.broker.addr), "its route")
    sent = theirs.mqadmin("sendMessage", "-t", "Secured", "-p", "hello")
    assert sent.returncode == 0, sent
    assert "SEND_OK" in sent.stdout
    seen: dict[str, int] = {}
    group = ConsumerConfig(group="secured-readers", consume_from=ConsumeFrom.FIRST_OFFSET)
    config = patient([theirs.namesrv.addr], tls=TLS)
    with Client(config=config, credentials=keys(ADMIN)) as client:
        client.consume(group, {"Secured": "*"}, listener(seen))
        wait_until(lambda: seen == {"hello": 1}, f"the message, came: {seen}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param((), "was lost", id="plain"),
        pytest.param(("--tls-ca", pem("stranger-authority")), "its certificate is refused", id="authority"),
        pytest.param(("--tls-ca", AUTHORITY), "it refuses our certificate: ", id="no-certificate"),
        pytest.param(
            ("--tls-ca", AUTHORITY, "--tls-cert", pem("expired"), "--tls-key", key("expired")),
            "it refuses our certificate: ",
            id="expired",
        ),
    ],
)
def test_our_mqadmin_says_in_one_line_what_is_missing(
    theirs: Theirs, options: tuple[str, ...], said: str
) -> None:
    refused = our_mqadmin("clusterList", *options, namesrvs=[theirs.namesrv.addr])
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.count("\n") == 1
    assert said in refused.stderr


def test_apaches_server_with_a_certificate_of_its_own_making_is_served_where_nothing_is_checked(
    apache_deployment: ApacheDeployment, tmp_path: Path
) -> None:
    addr = apache_deployment.namesrv.addr
    refused = our_mqadmin("clusterList", "--tls-ca", AUTHORITY, namesrvs=[addr])
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "its certificate is refused: " in refused.stderr
    broker = launch_broker([addr], tmp_path, name="unchecked", settings={"tls.enable": "true"})
    try:
        await_broker(broker, [addr])
        assert "certificates of nameservers are not checked" in broker.log()
        status = ("brokerStatus", "-b", apache_deployment.broker.addr, "--tls-check", "nothing")
        assert our_mqadmin(*status, namesrvs=[addr]).returncode == 0
        listed = our_mqadmin("topicRoute", "-t", "unchecked", "--tls-check", "nothing", namesrvs=[addr])
        assert listed.returncode == 0, listed
        assert broker.addr in listed.stdout
    finally:
        broker.popen.terminate()
        broker.wait(40.0)


def test_our_mqadmin_without_keys_is_refused_in_apaches_words(theirs: Theirs) -> None:
    args = ("updateTopic", "-b", theirs.broker.addr, "-t", "Unsigned", *MQADMIN)
    refused = our_mqadmin(*args, namesrvs=[theirs.namesrv.addr])
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "No accessKey is configured" in refused.stderr or "username cannot be null" in refused.stderr


# -- theirs against ours ------------------------------------------------------------------------------------

TLS_MODES = ("enforcing", "permissive", "disabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """Our nameservers by mode and TLS mode, and our broker, which accepts only TLS.

    Attributes:
        plain: A second broker of ours, without TLS, registered at the nameservers without TLS.
        elsewhere: A further nameserver, whose certificate is for another host.
        brokers: Apache's brokers by release. They use TLS to all nameservers, so their registrations succeed
            only at the nameservers that speak TLS.
    """

    namesrvs: dict[tuple[str, str], OurNamesrv]
    elsewhere: OurNamesrv
    broker: OurBroker
    plain: OurBroker
    brokers: dict[str, ApacheBroker]

    def addr(self, mode: str, tls_mode: str) -> str:
        return self.namesrvs[mode, tls_mode].addr


def start_ours(apaches: dict[str, Apache], folder: Path, stack: ExitStack) -> Ours:
    namesrvs = {}
    for mode in MODES:
        for tls_mode in TLS_MODES:
            home = folder / f"{mode}-{tls_mode}"
            flags = [*mode_flags(mode), "--data", str(home / "data"), *MODE_FLAGS[tls_mode]]
            namesrvs[mode, tls_mode] = start_namesrv(flags, home, "127.0.0.1:0")
            stack.callback(namesrvs[mode, tls_mode].kill)
    other = ("--tls-cert", pem("other-host"), "--tls-key", key("other-host"))
    home = folder / "other-host"
    elsewhere = start_namesrv(["--data", str(home / "data"), *other], home, "127.0.0.1:0")
    stack.callback(elsewhere.kill)
    for namesrv in (*namesrvs.values(), elsewhere):
        await_namesrv(namesrv)
    secured = [namesrv.addr for (_, tls_mode), namesrv in namesrvs.items() if tls_mode != "disabled"]
    port = {"tlsMode": "enforcing", "tlsCert": pem("member"), "tlsKey": key("member")}
    # Leave out tls.enable, because a broker in enforcing mode must use TLS to nameservers even without it.
    own = {name: value for name, value in TO_NAMESRV.items() if name != "tls.enable"}
    settings = port | own | {"tlsCa": AUTHORITY, "tlsClientAuth": "require"}
    broker = launch_broker(secured, folder, name="ours", settings=settings)
    stack.callback(broker.kill)
    off = [namesrv.addr for (_, tls_mode), namesrv in namesrvs.items() if tls_mode == "disabled"]
    plain = launch_broker(off, folder, name="plain")
    stack.callback(plain.kill)
    brokers = {
        release: apache.broker(
            [namesrv.addr for namesrv in namesrvs.values()],
            name=f"theirs-{release[0]}",
            settings={"registerNameServerPeriod": "10000", "autoCreateTopicEnable": "false"},
            properties=java_server() | java_client(),
            wait=False,
        )
        for release, apache in apaches.items()
    }
    for started in brokers.values():
        stack.callback(started.kill)
    await_broker(broker, [])
    await_broker(plain, off)
    return Ours(namesrvs=namesrvs, elsewhere=elsewhere, broker=broker, plain=plain, brokers=brokers)


@pytest.fixture(scope="module")
def ours(apaches: dict[str, Apache], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    with ExitStack() as stack:
        ours = start_ours(apaches, tmp_path_factory.mktemp("tls-ours"), stack)
        yield ours
        programs = (ours.broker, ours.plain, ours.elsewhere, *ours.namesrvs.values())
        for program in programs:
            program.popen.terminate()
        for program in programs:
            program.wait(40.0)
            assert program.popen.returncode == 0, program.log()[-3000:]
            assert "Traceback" not in program.log()


@pytest.fixture(params=RELEASES)
def apache(apaches: dict[str, Apache], request: pytest.FixtureRequest) -> Apache:
    return apaches[request.param]


#: Decorator that runs a test with both modes of our nameservers and both releases of Apache's programs. The
#: release must be the first parameter. If the mode were the first, tests/conftest.py would run these tests in
#: the worker that starts our shared nameservers, which these tests do not use.
EACH = pytest.mark.parametrize(
    ("apache", "mode"), [(release, mode) for mode, release in PAIRS], indirect=["apache"]
)


def make_topic(ours: Ours, mode: str, tls_mode: str, topic: str) -> None:
    addr = ours.addr(mode, tls_mode)
    args = ("updateTopic", "-b", ours.broker.addr, "-t", topic, *MQADMIN)
    made = our_mqadmin(*args, namesrvs=[addr])
    assert made.returncode == 0, made
    wait_until(lambda: routed(addr, topic, ours.broker.addr), f"{topic} at {addr}")


@EACH
@pytest.mark.parametrize("tls_mode", ["enforcing", "permissive"])
def test_java_sends_and_consumes_over_tls(ours: Ours, apache: Apache, mode: str, tls_mode: str) -> None:
    topic = f"Java{apache.release[0]}-{mode}-{tls_mode}"
    make_topic(ours, mode, tls_mode, topic)
    addrs = [ours.addr(mode, tls_mode)]
    sent = apache.produce(addrs, topic, 20, properties=java_client())
    assert sent["status SEND_OK"] == "20", sent
    facts = apache.consume(addrs, topic, f"g-{topic}", 20, properties=java_client())
    assert facts["distinct"] == "20", facts


@pytest.mark.parametrize("tls_mode", ["enforcing", "permissive"])
def test_java_brokers_register_over_tls_and_are_administered(
    ours: Ours, apache: Apache, tls_mode: str
) -> None:
    broker = ours.brokers[apache.release]
    broker.wait_for("boot success")
    for mode in MODES:
        addr = ours.addr(mode, tls_mode)
        args = ("updateBrokerConfig", "-b", broker.addr, "-k", "brokerPermission", "-v", "6", *MQADMIN)
        done = our_mqadmin(*args, namesrvs=[addr])
        assert done.returncode == 0, done
        wait_until(lambda: routed(addr, HALF_TOPIC, broker.addr), f"{broker.name} at {addr}", START_S)  # noqa: B023
        listed = apache.admin("clusterList", namesrvs=[addr], session="tls", properties=java_client())
        assert broker.addr in listed.stdout, listed
        assert ours.broker.addr in listed.stdout, listed
        topic = f"Of{apache.release[0]}-{mode}-{tls_mode}"
        made = apache.admin(
            "updateTopic", "-b", ours.broker.addr, "-t", topic, namesrvs=[addr], session="tls"
        )
        assert "success" in made.stdout, made
        wait_until(lambda: routed(addr, topic, ours.broker.addr), f"{topic} at {addr}")  # noqa: B023


@contextmanager
def one_line_more(server: OurNamesrv | OurBroker, said: str) -> Iterator[None]:
    """Expect new lines with the text ``said`` in the server's log, at most one line for each connection."""

    def lines() -> list[str]:
        return [line for line in server.log().splitlines() if said in line]

    before = len(lines())
    yield
    wait_until(lambda: len(lines()) > before, said)
    # Count connections by their numbers. A program that connects again may use the same port, but it never
    # gets the same number.
    of = [re.search(r"(?:connection|peer)=\S+", line) for line in lines()[before:]]
    assert all(of), lines()
    assert len({each[0] for each in of if each}) == len(of), lines()


@EACH
def test_java_clients_work_without_tls_and_fail_with_it_where_tls_is_off(
    ours: Ours, apache: Apache, mode: str
) -> None:
    namesrv, topic = ours.namesrvs[mode, "disabled"], f"Plain{apache.release[0]}-{mode}"
    args = ("updateTopic", "-b", ours.plain.addr, "-t", topic)
    made = our_mqadmin(*args, namesrvs=[namesrv.addr])
    assert made.returncode == 0, made
    named = "this client speaks TLS; see --tls-mode"
    with one_line_more(namesrv, named):
        sent = apache.produce([namesrv.addr], topic, 1, properties=java_client())
    assert (sent["failed"], sent["sent"].split()[0]) == ("1", "0"), sent
    sent = apache.produce([namesrv.addr], topic, 20)
    assert sent["status SEND_OK"] == "20", sent
    with one_line_more(namesrv, named):
        facts = apache.consume([namesrv.addr], topic, f"t-{topic}", 1, seconds=3, properties=java_client())
    assert facts.get("distinct", "0") == "0", facts
    facts = apache.consume([namesrv.addr], topic, f"g-{topic}", 20)
    assert facts["distinct"] == "20", facts


def test_java_with_tls_is_named_by_a_broker_where_tls_is_off(ours: Ours, apache: Apache) -> None:
    namesrv = ours.namesrvs["independent", "enforcing"]
    with one_line_more(ours.plain, "this client speaks TLS; see --tls-mode"):
        status = apache.admin(
            "brokerStatus",
            *("-b", ours.plain.addr),
            namesrvs=[namesrv.addr],
            session="tls",
            properties=java_client(),
        )
    assert "brokerVersionDesc" not in status.stdout, status


@EACH
def test_java_without_tls_is_named_where_tls_is_demanded(ours: Ours, apache: Apache, mode: str) -> None:
    namesrv = ours.namesrvs[mode, "enforcing"]
    with one_line_more(namesrv, "it does not speak TLS, and this port demands it"):
        listed = apache.admin("clusterList", namesrvs=[namesrv.addr])
    assert ours.broker.addr not in listed.stdout


def test_java_with_an_expired_certificate_is_named(ours: Ours, apache: Apache) -> None:
    namesrv = ours.namesrvs["independent", "enforcing"]
    with one_line_more(namesrv, "certificate has expired"):
        listed = apache.mqadmin("clusterList", namesrvs=[namesrv.addr], properties=java_client("expired"))
    assert ours.broker.addr not in listed.stdout


def test_a_certificate_for_another_host_is_taken_by_java_and_refused_by_ours(
    ours: Ours, apache: Apache
) -> None:
    addr = ours.elsewhere.addr
    told = apache.admin("getNamesrvConfig", namesrvs=[addr], session="tls", properties=java_client())
    assert "listenPort" in told.stdout, told
    refused = our_mqadmin("getNamesrvConfig", *MQADMIN, namesrvs=[addr])
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "its certificate is refused: IP address mismatch" in refused.stderr
