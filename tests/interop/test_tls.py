"""TLS between Apache's programs and ours, mutual and in every mode of a server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from routekeeper import Client, TlsConfig
from routekeeper.client.config import ConsumeFrom, ConsumerConfig

from .apache import HALF_TOPIC, RELEASES, START_S, Apache, ApacheBroker, ApacheNamesrv, wait_until
from .ours import ApacheDeployment, OurBroker, await_broker, launch_broker, our_mqadmin
from .patient import patient
from .programs import AdminResult
from .test_secured import ACCOUNTS, ADMIN, SIGNED, keys, listener
from .tls_files import AUTHORITY, MQADMIN, TO_NAMESRV, certificate, java_client, java_server, key, routed

pytestmark = pytest.mark.interop

TLS = TlsConfig(ca_file=AUTHORITY, cert_file=certificate("member"), key_file=key("member"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """Apache's nameserver and broker, which take nothing plain and ask for certificates, and our broker.

    Their broker also demands signatures.
    """

    release: str
    folder: Path
    namesrv: ApacheNamesrv
    broker: ApacheBroker
    ours: OurBroker

    @property
    def tools(self) -> str:
        """The administrator's keys as mqadmin reads them."""
        return str(self.folder / "tools.yml")

    def mqadmin(self, *args: str, secured: bool = True) -> AdminResult:
        """Run our mqadmin at their nameserver; ``secured``: with certificate and keys."""
        options = (*MQADMIN, "--acl-file", self.tools) if secured else ()
        return our_mqadmin(*args, *options, namesrvs=[self.namesrv.addr], folder=self.folder)


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
    ours.wait_for("\n")
    ours.addr = ours.text().partition("listen=")[2].split()[0]
    theirs = Theirs(release=apache.release, folder=folder, namesrv=namesrv, broker=broker, ours=ours)
    broker.wait_for("boot success")
    # 5.3.3 registers 10 s after its start, or when its permission is set
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
    assert "WARNING" not in theirs.ours.log().replace("only this machine", "")


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
        pytest.param(
            ("--tls-ca", certificate("stranger-authority")), "its certificate is refused", id="authority"
        ),
        pytest.param(("--tls-ca", AUTHORITY), "it refuses our certificate: ", id="no-certificate"),
        pytest.param(
            ("--tls-ca", AUTHORITY, "--tls-cert", certificate("expired"), "--tls-key", key("expired")),
            "it refuses our certificate: ",
            id="expired",
        ),
    ],
)
def test_our_mqadmin_says_in_one_line_what_is_missing(
    theirs: Theirs, options: tuple[str, ...], said: str
) -> None:
    refused = our_mqadmin("clusterList", *options, namesrvs=[theirs.namesrv.addr], folder=theirs.folder)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.count("\n") == 1
    assert said in refused.stderr


def test_apaches_server_with_a_certificate_of_its_own_making_is_served_where_nothing_is_checked(
    apache_deployment: ApacheDeployment, tmp_path: Path
) -> None:
    addr = apache_deployment.namesrv.addr
    refused = our_mqadmin("clusterList", "--tls-ca", AUTHORITY, namesrvs=[addr], folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "its certificate is refused: " in refused.stderr
    broker = launch_broker([addr], tmp_path, name="unchecked", settings={"tls.enable": "true"})
    try:
        await_broker(broker, [addr])
        assert "certificates of nameservers are not checked" in broker.log()
        listed = our_mqadmin(
            "topicRoute", "-t", "unchecked", "--tls-check", "nothing", namesrvs=[addr], folder=tmp_path
        )
        assert listed.returncode == 0, listed
        assert broker.addr in listed.stdout
    finally:
        broker.popen.terminate()
        broker.wait(40.0)


def test_our_mqadmin_without_keys_is_refused_in_apaches_words(theirs: Theirs) -> None:
    args = ("updateTopic", "-b", theirs.broker.addr, "-t", "Unsigned", *MQADMIN)
    refused = our_mqadmin(*args, namesrvs=[theirs.namesrv.addr], folder=theirs.folder)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "No accessKey is configured" in refused.stderr or "username cannot be null" in refused.stderr
