"""Tests of Apache's ``mqadmin`` at our nameservers: its output, and its effect on each nameserver."""

from __future__ import annotations

import json

import pytest

from .apache import RELEASES, AdminResult, Apache, ask, wait_until
from .ours import CLUSTER, PRODUCT, OurDeployment, route

pytestmark = pytest.mark.interop


@pytest.fixture
def tool(apaches: dict[str, Apache], deployment: OurDeployment, request: pytest.FixtureRequest) -> Tool:
    return Tool(apaches[request.param], deployment)


class Tool:
    """Apache's mqadmin of one release against one deployment.

    Tests wipe the write permission at the broker ``wiped``, and create topics at the broker ``grown``. These
    brokers must differ. A broker that gets a new topic registers again, and this registration undoes
    ``wipeWritePerm``.
    """

    def __init__(self, apache: Apache, deployment: OurDeployment) -> None:
        self.deployment = deployment
        self.mark = apache.release[0]
        self._apache = apache
        (other,) = (release for release in RELEASES if release != apache.release)
        self.wiped = deployment.apache[apache.release]
        self.grown = deployment.apache[other]

    def run(self, *args: str, stderr: str | None = "") -> AdminResult:
        """Run a subcommand, and check its error output.

        The error output must equal ``stderr``; None switches this check off. A subcommand that fails prints
        to its error output.
        """
        result = self._apache.admin(*args, namesrvs=self.deployment.addrs)
        if stderr is not None:
            assert result.stderr == stderr
        return result

    def perms(self, topic: str) -> list[int]:
        """Return the topic's permission at the broker ``wiped``, one value for each nameserver."""
        found = []
        for addr in self.deployment.addrs:
            data = route(addr, topic)
            assert data is not None
            found += [row["perm"] for row in data["queueDatas"] if row["brokerName"] == self.wiped.name]
        return found


def table(text: str) -> list[list[str]]:
    """Return the rows of a printed table, each as a list of its cells."""
    return [line.split() for line in text.splitlines()]


@pytest.mark.parametrize(("deployment", "tool"), PRODUCT, indirect=True)
def test_apache_mqadmin(tool: Tool) -> None:
    clusters_are_listed(tool)
    topics_come_and_go(tool)
    kv_config_comes_and_goes(tool)
    write_permission_goes_and_comes(tool)
    settings_are_read_and_changed(tool)


def clusters_are_listed(tool: Tool) -> None:
    # mqadmin of 4.9.7 expects a value in the answer that 5.x brokers no longer send. It prints an error about
    # the missing value, but it lists all brokers.
    def listed() -> dict[str, list[str]]:
        return {row[1]: row for row in table(tool.run("clusterList", stderr=None).stdout) if len(row) > 4}

    def versions_are_told() -> bool:
        rows.update(listed())
        return all(row[4].startswith("V") for row in rows.values() if row[0] == CLUSTER)

    rows: dict[str, list[str]] = {}
    wait_until(versions_are_told, "brokers say their versions: Apache's own do not in their first seconds")
    for broker, version in (
        (tool.deployment.apache["4.9.7"], "V4_9_7"),
        (tool.deployment.apache["5.3.3"], "V5_3_3"),
        (tool.deployment.ours, "V5_3_3"),
    ):
        assert rows[broker.name][:5] == [CLUSTER, broker.name, "0", broker.addr, version]


def topics_come_and_go(tool: Tool) -> None:
    topic = f"Admin{tool.mark}"
    broker = tool.grown
    created = tool.run("updateTopic", "-b", broker.addr, "-t", topic, "-r", "3", "-w", "5").stdout
    assert f"create topic to {broker.addr} success." in created
    queues = {
        "brokerName": broker.name,
        "perm": 6,
        "readQueueNums": 3,
        "writeQueueNums": 5,
        "topicSysFlag": 0,
    }
    tool.deployment.everywhere(lambda addr: route(addr, topic) is not None, f"{topic} routed")
    for addr in tool.deployment.addrs:
        found = route(addr, topic)
        assert found is not None
        assert found["queueDatas"] == [queues]

    printed = tool.run("topicRoute", "-t", topic).stdout
    # Apache prints integer keys without quotes, which is not JSON.
    shown = json.loads(printed.replace("{0:", '{"0":'))
    assert shown["brokerDatas"][0]["brokerAddrs"] == {"0": broker.addr}
    assert shown["queueDatas"] == [queues]

    topics = tool.run("topicList").stdout.split()
    assert {topic, *tool.deployment.kept.values(), "TBW102", "SELF_TEST_TOPIC"} <= set(topics)

    deleted = tool.run("deleteTopic", "-c", CLUSTER, "-t", topic).stdout
    assert f"delete topic [{topic}] from cluster [{CLUSTER}] success." in deleted
    assert f"delete topic [{topic}] from NameServer success." in deleted
    for addr in tool.deployment.addrs:
        assert route(addr, topic) is None
    assert f'"{topic}"'.encode() not in ask(broker.addr, 21)[2]


def kv_config_comes_and_goes(tool: Tool) -> None:
    space, key, value = f"INTEROP{tool.mark}", "key one", "a=b;c wide é"
    fields = {"namespace": space, "key": key}
    printed = tool.run("updateKvConfig", "-s", space, "-k", key, "-v", value).stdout
    assert printed == "create or update kv config to namespace success.\n"
    for addr in tool.deployment.addrs:
        code, answer, _ = ask(addr, 101, fields)
        assert (code, answer["extFields"]["value"]) == (0, value)

    printed = tool.run("deleteKvConfig", "-s", space, "-k", key).stdout
    assert printed == "delete kv config from namespace success.\n"
    assert [ask(addr, 101, fields)[0] for addr in tool.deployment.addrs] == [22, 22, 22]


def write_permission_goes_and_comes(tool: Tool) -> None:
    name = tool.wiped.name
    (topic,) = (
        kept for release, kept in tool.deployment.kept.items() if tool.deployment.apache[release].name == name
    )
    assert tool.perms(topic) == [6, 6, 6]

    def wiped() -> list[int]:
        assert_each_named(tool, "wipe", tool.run("wipeWritePerm", "-b", name).stdout)
        return tool.perms(topic)

    # Because a topic was deleted before, the broker registers once more, perhaps after the wipe. Such a
    # registration restores all permissions. It comes only once, so a second wipe must succeed.
    assert any(wiped() == [4, 4, 4] for _ in range(2))
    assert_each_named(tool, "add", tool.run("addWritePerm", "-b", name).stdout)
    assert tool.perms(topic) == [6, 6, 6]


def assert_each_named(tool: Tool, verb: str, printed: str) -> None:
    """Check that the output has a line for each nameserver, with a number of topics.

    In raft mode, the request to the first nameserver already changes the table that all nameservers share.
    The other nameservers must nevertheless count the topics in their answers.
    """
    lines = printed.splitlines()
    assert len(lines) == len(tool.deployment.addrs)
    for addr in tool.deployment.addrs:
        begin = f"{verb} write perm of broker[{tool.wiped.name}] in name server[{addr}] OK, "
        (line,) = (line for line in lines if line.startswith(begin))
        assert int(line.removeprefix(begin)) > 5


def settings_are_read_and_changed(tool: Tool) -> None:
    key, value = "productEnvName", f"interop-{tool.mark}"
    before = settings_by_namesrv(tool.run("getNamesrvConfig").stdout)
    assert set(before) == set(tool.deployment.addrs)
    for addr, settings in before.items():
        assert settings["scanNotActiveBrokerInterval"] == ask_setting(addr, "scanNotActiveBrokerInterval")
        assert settings["orderMessageEnable"] == "false"
        assert settings[key] != value

    printed = tool.run("updateNamesrvConfig", "-k", key, "-v", value).stdout
    assert "update name server config success!" in printed
    assert all(addr in printed for addr in tool.deployment.addrs)
    assert [ask_setting(addr, key) for addr in tool.deployment.addrs] == [value] * 3
    after = settings_by_namesrv(tool.run("getNamesrvConfig").stdout)
    assert after == {addr: settings | {key: value} for addr, settings in before.items()}

    refused = tool.run("updateNamesrvConfig", "-k", "kvConfigPath", "-v", "/nowhere/kv.json", stderr=None)
    assert "CODE: 16" in refused.stderr
    for addr in tool.deployment.addrs:
        assert b"/nowhere" not in ask(addr, 319)[2]


def ask_setting(addr: str, key: str) -> str:
    """Return a setting as the nameserver at ``addr`` itself reports it."""
    (line,) = (line for line in ask(addr, 319)[2].decode().splitlines() if line.startswith(f"{key}="))
    return line.partition("=")[2]


def settings_by_namesrv(printed: str) -> dict[str, dict[str, str]]:
    """Return the settings of each nameserver from the output of ``getNamesrvConfig``."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in printed.splitlines():
        if line.startswith("============"):
            current = found.setdefault(line.strip("="), {})
        elif "=" in line:
            key, _, value = line.partition("=")
            current[key.strip()] = value.strip()
    return found
