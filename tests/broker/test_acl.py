"""A broker with ``aclEnable=true``: its permissions for codes, topics and groups, and its access files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.requests.audited import AUDITED
from routekeeper.broker.requests.handlers import HANDLERS
from routekeeper.broker.server.access import ACCOUNT_REQUESTS, BrokerAccess, watch_namesrv_keys
from routekeeper.remoting.acl.access import EXCEPTION
from routekeeper.remoting.acl.accounts import parse_acl_file
from routekeeper.remoting.acl.changes import MASK
from routekeeper.remoting.acl.rules import BROKER_RULES
from routekeeper.remoting.acl.signing import Keys
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.broker.conftest import RecordingNameserver, StartBroker, brokers_in
from tests.waiting import wait_until

WRITER = Keys(access_key="writers", secret_key="secret-of-writers")
READER = Keys(access_key="readers", secret_key="secret-of-readers")
ADMIN = Keys(access_key="admins-of-all", secret_key="secret-of-admins")
FILE = """\
globalWhiteRemoteAddresses: []
accounts:
- accessKey: writers
  secretKey: secret-of-writers
  topicPerms: [Orders=PUB]
- accessKey: readers
  secretKey: secret-of-readers
  defaultGroupPerm: DENY
  topicPerms: [Orders=SUB]
  groupPerms: [group-of-readers=SUB]
- accessKey: admins-of-all
  secretKey: secret-of-admins
  admin: true
"""
#: Requests that need an admin in RocketMQ 4.9.7. Source: Permission.ADMIN_CODE.
ADMIN_CODES = {17, 25, 200, 207, 215}


@dataclass
class Secured:
    """A running broker that checks accounts.

    Attributes:
        file: The broker's access file.
    """

    addr: str
    file: Path
    log: Path
    client: BlockingClient

    def ask(
        self, code: int, fields: Mapping[str, str], keys: Keys | None = None, body: bytes = b""
    ) -> RemotingCommand:
        command = RemotingCommand.request(code, fields, body)
        return self.client.invoke(self.addr, command if keys is None else keys.signed(command), timeout_s=20)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    file = folder / "plain_acl.yml"
    file.write_text(FILE)
    file.chmod(0o600)
    with brokers_in(folder) as start, BlockingClient() as client:
        broker = start("--acl-file", str(file), "--set", "aclEnable=true")
        yield Secured(broker.addr, file, broker.log, client)


def refusal(answer: RemotingCommand) -> str:
    """Return the reason why the account check refused a request, or an empty text without a refusal."""
    remark = answer.remark or ""
    return remark.removeprefix(EXCEPTION) if answer.code == 1 and remark.startswith(EXCEPTION) else ""


def test_every_code_has_a_rule() -> None:
    assert BROKER_RULES.keys() == HANDLERS.keys() | ACCOUNT_REQUESTS


def test_admins_are_needed_where_rocketmq_needs_them_and_for_all_that_is_audited() -> None:
    admin = {code for code, rule in BROKER_RULES.items() if rule.admin}
    assert admin >= ADMIN_CODES | AUDITED | ACCOUNT_REQUESTS


@pytest.mark.parametrize("code", sorted(BROKER_RULES))
def test_code_is_served_to_whom_the_table_says(secured: Secured, code: int) -> None:
    rule = BROKER_RULES[code]
    assert refusal(secured.ask(code, {})) == "No accessKey is configured"
    forged = Keys(access_key="writers", secret_key="another")
    assert refusal(secured.ask(code, {}, forged)) == "Check signature failed for accessKey=writers"
    # If a request has no topic and no group in its arguments, it needs no permission for topics or groups. A
    # heartbeat (code 34) has these names in its body instead.
    refused = refusal(secured.ask(code, {}, WRITER))
    if rule.admin:
        assert refused == f"Need admin permission for request code={code}, but accessKey=writers is not"
    elif code != 34:
        assert not refused
    assert not refusal(secured.ask(code, {}, ADMIN))


def send(topic: str) -> dict[str, str]:
    return {"a": "producers", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}


def pull(topic: str, group: str) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "subscription": "*",
        "expressionType": "TAG",
    }


def test_topics_and_groups_have_permissions(secured: Secured) -> None:
    assert secured.ask(310, send("Orders"), WRITER, b"message").code == 0
    assert refusal(secured.ask(310, send("Others"), WRITER)) == "No default permission for topic:Others"
    assert refusal(secured.ask(310, send("Orders"), READER)) == "No default permission for topic:Orders"
    found = secured.ask(11, pull("Orders", "group-of-readers"), READER)
    assert (found.code, b"message" in found.body) == (0, True)
    assert refusal(secured.ask(11, pull("Orders", "x"), READER)) == "No default permission for group:x"
    assert refusal(secured.ask(11, pull("Orders", "x"), WRITER)).startswith("No default permission for ")


def test_accounts_are_listed_without_their_secrets(secured: Secured) -> None:
    listed = json.loads(secured.ask(54, {}, ADMIN).body)
    assert listed["globalWhiteAddrs"] == []
    assert listed["plainAccessConfigs"][1] == {
        "accessKey": "readers",
        "admin": False,
        "secretKey": MASK,
        "whiteRemoteAddress": None,
        "defaultGroupPerm": "DENY",
        "defaultTopicPerm": "DENY",
        "groupPerms": ["group-of-readers=SUB"],
        "topicPerms": ["Orders=SUB"],
    }
    settings = secured.ask(26, {}, ADMIN).body.decode()
    assert f"aclFile={secured.file}\n" in settings
    assert "secret-of" not in settings


def test_account_is_created_changed_and_deleted(secured: Secured) -> None:
    keys = Keys(access_key="newcomers", secret_key="secret-of-newcomers")
    account = {"accessKey": keys.access_key, "secretKey": keys.secret_key, "admin": "false"}
    before = secured.ask(52, {}, ADMIN).ext_fields
    assert refusal(secured.ask(310, send("Orders"), keys)) == "No acl config for newcomers"
    assert secured.ask(50, {**account, "topicPerms": "Orders=PUB|SUB,More=SUB"}, ADMIN).code == 0
    assert secured.ask(310, send("Orders"), keys, b"x").code == 0
    assert (
        secured.ask(50, {**account, "defaultTopicPerm": "DENY", "topicPerms": "Orders=SUB"}, ADMIN).code == 0
    )
    assert refusal(secured.ask(310, send("Orders"), keys)) == "No default permission for topic:Orders"
    after = secured.ask(52, {}, ADMIN).ext_fields
    assert after["brokerName"] == "broker-a"
    assert after["brokerAddr"] == secured.addr
    assert after["clusterName"] == "DefaultCluster"
    counters = [json.loads(fields["version"])["counter"] for fields in (before, after)]
    assert counters[1] == counters[0] + 2
    assert json.loads(after["allAclFileVersion"])[str(secured.file)]["counter"] == counters[1]
    # The broker reads this file at its next start, so the file must hold the changes and keep its mode.
    found = {one.access_key: one for one in parse_acl_file(secured.file.read_bytes(), "f").accounts}
    assert found["newcomers"].topic_perms == ("Orders=SUB",)
    assert found.keys() == {"writers", "readers", "admins-of-all", "newcomers"}
    assert secured.file.stat().st_mode & 0o777 == 0o600
    assert secured.ask(51, {"accessKey": "newcomers"}, ADMIN).code == 0
    assert refusal(secured.ask(310, send("Orders"), keys)) == "No acl config for newcomers"
    line = "change=UPDATE_AND_CREATE_ACL_CONFIG accessKey=newcomers result=applied"
    wait_until(lambda: line in secured.log.read_text(), "the audit line")
    assert "secret-of" not in secured.log.read_text()


@pytest.mark.parametrize(
    ("code", "fields", "answer", "remark"),
    [
        (50, {"accessKey": "short", "secretKey": "12345678"}, 209, "length should longer than 6"),
        (50, {"accessKey": "newcomers", "secretKey": MASK}, 209, "length should longer than 6"),
        (50, {"accessKey": "newcomers"}, 209, "length should longer than 6"),
        (50, {"topicPerms": "A"}, 209, "The expected resource format is 'Res=Perm'."),
        (50, {"groupPerms": "A=ALL"}, 209, "The expected permissions are 'SUB' or 'PUB'"),
        (50, {"defaultTopicPerm": "ALL"}, 209, "The expected permissions are 'SUB' or 'PUB'"),
        (50, {"whiteRemoteAddress": "1.2.3"}, 209, "names no addresses"),
        (50, {"accessKey": "k" * 5000}, 209, "characters, allowed are 4096"),
        (51, {"accessKey": "nobody"}, 210, "The accesskey[nobody] corresponding to accessConfig has been"),
        (53, {"globalWhiteAddrs": "1.2.3", "aclFileFullPath": ""}, 211, "names no addresses"),
        (53, {}, 211, "has been updated failed"),
    ],
)
def test_change_that_cannot_be_used_changes_nothing(
    secured: Secured, code: int, fields: dict[str, str], answer: int, remark: str
) -> None:
    before = secured.file.read_bytes()
    if code == 50 and "secretKey" not in fields and fields != {"accessKey": "newcomers"}:
        fields = {"accessKey": "newcomers", "secretKey": "secret-of-newcomers", **fields}
    found = secured.ask(code, fields, ADMIN)
    assert (found.code, remark in (found.remark or "")) == (answer, True), found.remark
    assert "secret-of" not in (found.remark or "")
    assert secured.file.read_bytes() == before


def test_a_white_list_goes_into_no_file_but_the_access_files(secured: Secured, tmp_path: Path) -> None:
    """Check that the broker refuses a request that names a file of the test, which is no access file."""
    other = tmp_path / "other"
    other.write_text("kept")
    white = {"globalWhiteAddrs": "1.2.3.4", "aclFileFullPath": str(other)}
    found = secured.ask(53, white, ADMIN)
    assert (found.code, "has been updated failed" in (found.remark or "")) == (211, True)
    assert other.read_text() == "kept"


def test_white_list_is_replaced(secured: Secured) -> None:
    white = {"globalWhiteAddrs": "127.0.0.{1,2},10.0.0.*", "aclFileFullPath": str(secured.file)}
    assert secured.ask(53, white, ADMIN).code == 0
    assert secured.ask(310, send("Orders"), None, b"unsigned").code == 0
    assert secured.ask(53, {"globalWhiteAddrs": ""}, None).code == 0
    assert refusal(secured.ask(310, send("Orders"))) == "No accessKey is configured"


def config(**changes: str | bool) -> BrokerConfig:
    return BrokerConfig(acl_enable=True, **changes)  # type: ignore[arg-type]


ONE = "accounts:\n- accessKey: {0}\n  secretKey: secret-of-{0}\n  admin: true\n"


def allowed(access: BrokerAccess, *names: str) -> list[str]:
    """Return the names of those accounts whose requests the broker serves."""
    command = RemotingCommand.request(17, {"topic": "T"})
    keys = [Keys(access_key=name, secret_key=f"secret-of-{name}") for name in names]
    return [key.access_key for key in keys if access.denied(key.signed(command), "192.0.2.1") is None]


async def test_files_are_those_that_rocketmq_reads_and_change_while_it_runs(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    (conf / "acl").mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(ONE.format("defaults"))
    (conf / "acl" / "more.yml").write_text(ONE.format("more-of-it"))
    names = ("defaults", "more-of-it", "added-later")
    access = BrokerAccess(config(rocketmq_home=str(tmp_path)))
    assert access.files is not None
    assert allowed(access, *names) == ["defaults", "more-of-it"]
    (conf / "acl" / "later").mkdir()
    assert await access.files.look() == "taken"
    (conf / "acl" / "later" / "new.yaml").write_text(ONE.format("added-later"))
    assert await access.files.look() == "taken"
    assert allowed(access, *names) == list(names)
    (conf / "acl" / "more.yml").write_text("acounts:\n")
    assert (await access.files.look()).startswith(f"refused: {conf}/acl/more.yml: line 1: acounts is unknown")
    assert allowed(access, *names) == list(names)
    # While an access file has an error, the broker writes nothing, because it does not know what the
    # person who edited the file intended.
    request = RemotingCommand.request(51, {"accessKey": "defaults"})
    answer = await access.serve(request, broker_addr="b")
    assert answer.code == 210
    assert "nothing was changed" in (answer.remark or "")
    (conf / "acl" / "more.yml").unlink()
    assert (await access.serve(request, broker_addr="b")).code == 0
    assert allowed(access, *names) == ["added-later"]
    access.files.close()


DENIED = (
    ONE.format("defaults")
    + ONE.format("writers").removeprefix("accounts:\n").replace("true", "false")
    + ("  defaultTopicPerm: PUB|SUB\n  topicPerms:\n  - Orders=PUB\n  - Payroll=DENY\n")
)


async def test_cut_file_changes_no_permission_and_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(DENIED)
    access = BrokerAccess(config(acl_file=str(file)))
    assert access.files is not None
    send_denied = WRITER.signed(RemotingCommand.request(310, send("Payroll")))
    account = {"accessKey": "newcomers", "secretKey": "secret-of-newcomers"}
    for end, reason in (
        (DENIED.index("  - Payroll"), "only the beginning of the content in force"),
        (len(DENIED) - 1, "the last line has no newline"),
        (0, "the file is empty"),
    ):
        file.write_text(DENIED[:end])
        outcome = await access.files.look()
        assert outcome.startswith(f"refused: {file}: ")
        assert reason in outcome
        for code, fields in ((50, account), (51, {"accessKey": "writers"}), (53, {"globalWhiteAddrs": "*"})):
            answer = await access.serve(RemotingCommand.request(code, fields), broker_addr="b")
            assert answer.code in (209, 210, 211)
            assert reason in (answer.remark or "")
            assert "nothing was changed" in (answer.remark or "")
        assert file.read_text() == DENIED[:end]
        assert access.denied(send_denied, "192.0.2.1") is not None
        assert allowed(access, "defaults") == ["defaults"]
    file.write_text(DENIED)
    assert (await access.serve(RemotingCommand.request(50, account), broker_addr="b")).code == 0
    assert len(parse_acl_file(file.read_bytes(), "f").accounts) == 3
    access.files.close()


async def test_cut_keys_for_nameservers_do_not_replace_the_whole_ones(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    text = "accessKey: admins-of-all\nsecretKey: secret-of-admins\n"
    file.write_text(text)
    files = watch_namesrv_keys(BrokerConfig(namesrv_acl_file=str(file)))
    assert files is not None
    reason = f"refused: {file}: the last line has no newline"
    file.write_text(text[:-5])
    assert (await files.look()).startswith(reason)
    changed = text.replace("-of-", "-from-")
    file.write_text(changed)
    assert await files.look() == "taken"
    file.write_text(changed[:-5])
    assert (await files.look()).startswith(reason)
    assert files.value.secret_key == "secret-from-admins"
    files.close()


async def test_file_that_somebody_edited_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ONE.format("defaults"))
    link = tmp_path / "link.yml"
    link.symlink_to(file)
    access = BrokerAccess(config(acl_file=str(link)))
    file.write_text(ONE.format("edited-since"))
    account = {"accessKey": "newcomers", "secretKey": "secret-of-newcomers", "admin": "true"}
    assert (await access.serve(RemotingCommand.request(50, account), broker_addr="b")).code == 0
    assert allowed(access, "defaults", "edited-since", "newcomers") == ["edited-since", "newcomers"]
    assert access.files is not None
    access.files.close()
    assert link.is_symlink()
    assert len(parse_acl_file(file.read_bytes(), "f").accounts) == 2


def test_files_are_not_looked_at_where_accounts_are_not_checked(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text("no such key: x\n")
    access = BrokerAccess(BrokerConfig(rocketmq_home=str(tmp_path)))
    assert not access.is_needed
    assert access.files is None


def run(*flags: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "routekeeper.broker", "--listen", "127.0.0.1:0", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "text", "line"),
    [
        (
            ("--set", "aclEnable=true", "--acl-file", "{file}"),
            "accounts:\n- accessKey: writers\n",
            "aclEnable=true: {file}: line 2: an account without secretKey",
        ),
        (
            ("--set", "aclEnable=true", "--acl-file", "{file}"),
            "",
            "{file}: line 1: the file is empty; to allow nobody",
        ),
        (("--set", "aclEnable=true", "--acl-file", "{file}.none"), "", "{file}.none cannot be read: No such"),
        (
            ("--namesrv-acl-file", "{file}"),
            "accessKey: a\n",
            "namesrvAclFile: {file}: line 1: secretKey missing",
        ),
    ],
)
def test_setting_that_cannot_be_used_refuses_the_start(
    tmp_path: Path, flags: tuple[str, ...], text: str, line: str
) -> None:
    file = tmp_path / "file.yml"
    file.write_text(text)
    found = run(
        *("--store", str(tmp_path / "store")),
        *(flag.format(file=file) for flag in flags),
        environment={"PATH": "/usr/bin:/bin"},
    )
    assert found.returncode == 2
    assert found.stderr.startswith("mqbroker: ")
    assert line.format(file=file) in found.stderr.splitlines()[-1]


@pytest.mark.faults
def test_every_request_to_a_present_and_a_former_nameserver_is_signed(
    tmp_path: Path, start_broker: StartBroker, nameserver: RecordingNameserver
) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: admins-of-all\nsecretKey: secret-of-admins\n")
    broker = start_broker("--namesrv-acl-file", str(file), namesrv=nameserver.addr)
    requests = [nameserver.expect(103)]
    change = RemotingCommand.request(25, {}, b"namesrvAddr=127.0.0.1:1\n")
    with BlockingClient() as client:
        assert client.invoke(broker.addr, change, timeout_s=20).code == 0
    requests += [nameserver.expect(319), nameserver.expect(104)]
    assert requests == [ADMIN.signed(request) for request in requests]
    assert "secret-of" not in broker.log.read_text()


@pytest.mark.faults
def test_operators_requests_come_from_the_admin_networks_alone(
    tmp_path: Path, start_broker: StartBroker
) -> None:
    running = start_broker("--admin-networks", "10.0.0.0/8,192.168.1.1")
    with BlockingClient() as client:
        broker = Secured(running.addr, tmp_path, running.log, client)
        refused = {code for code in sorted(HANDLERS) if broker.ask(code, {}).code == 16}
        assert refused == {code for code, rule in BROKER_RULES.items() if rule.admin} - ACCOUNT_REQUESTS
        assert broker.ask(310, send("Orders"), None, b"x").code == 0
        # Without account checks there are no accounts to show.
        assert broker.ask(54, {}).code == 3
    lines = 'change=UPDATE_AND_CREATE_TOPIC accessKey="" reason='
    wait_until(lambda: lines in running.log.read_text(), "the audit line")
