"""Tests of further ``mqadmin`` subcommands, with Apache's tool and our tool, at Apache's and our servers.

Apache's tool and our tool run each subcommand against the same cluster. Both tools must print the same
output, except for values that differ from run to run. Java clients write the message traces that the tools
read.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from routekeeper.client.mqadmin.__main__ import COMMANDS
from tests.signals import inherited

from .apache import ADMIN_MAIN, RELEASES, START_S, AdminResult, Apache, ask, has_route, wait_until
from .daily import Tool, comparable, our_tool
from .ours import Fleet, await_namesrv, create_topic, our_servers, start_namesrv
from .watchdog import guard

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC: Final = "Traced"
GROUP: Final = "traced_group"
COUNT: Final = 3
#: One run per line: its name and its command line. FOLDER, TOPICS and GROUPS stand for paths; each tool has
#: its own files there.
RUNS: Final = """
printMsgByQueue|printMsgByQueue -t Traced -a BROKER_NAME -i 0 -p true -d true -f true
printMsgByQueue-s|printMsgByQueue -t Traced -a BROKER_NAME -i 0 -p true -s B
sendMsgStatus|sendMsgStatus -b BROKER_NAME -c 3 -s 50
checkMsgSendRT|checkMsgSendRT -t Measured -a 4 -s 50
queryMsgTraceById|queryMsgTraceById -i UNIQUE TRACE_OPTION
exportConfigs|exportConfigs -c DefaultCluster -f FOLDER
exportMetrics|exportMetrics -c DefaultCluster -f FOLDER
exportMetadata|exportMetadata -c DefaultCluster -f FOLDER
exportMetadata-t|exportMetadata -c DefaultCluster -t -f FOLDER
exportMetadata-g|exportMetadata -c DefaultCluster -g -f FOLDER
exportMetadata-s|exportMetadata -b BROKER -t -s -f FOLDER/special
allocateMQ|allocateMQ -t Measured -i a,b,c
"""
OF_5: Final = """
updateTopicList-b|updateTopicList -b BROKER -f TOPICS
updateTopicList-c|updateTopicList -c DefaultCluster -f TOPICS
updateSubGroupList-b|updateSubGroupList -b BROKER -f GROUPS
updateSubGroupList-c|updateSubGroupList -c DefaultCluster -f GROUPS
haStatus-b|haStatus -b BROKER
"""
#: Runs that make a JSON document, with both tools.
DOCUMENTS: Final = ("exportConfigs", "exportMetrics", "exportMetadata", "allocateMQ")
EXPORTED: Final = {
    "exportConfigs": "configs.json",
    "exportMetrics": "metrics.json",
    "exportMetadata": "metadata.json",
    "exportMetadata-t": "topic.json",
    "exportMetadata-g": "subscriptionGroup.json",
    "exportMetadata-s": "special/topic.json",
}
DAILY: Final = (
    *("printMsgByQueue", "sendMsgStatus", "checkMsgSendRT", "clusterRT", "allocateMQ", "startMonitoring"),
    *("queryMsgTraceById", "exportConfigs", "exportMetadata", "exportMetrics"),
    *("updateTopicList", "updateSubGroupList", "haStatus"),
    *("updateAclConfig", "deleteAclConfig", "updateGlobalWhiteAddr", "clusterAclConfigVersion"),
    "getAclConfig",
)
ONLY_IN: Final = {
    **dict.fromkeys(("updateTopicList", "updateSubGroupList", "haStatus"), "5.3.3"),
    **dict.fromkeys(
        (
            *("updateAclConfig", "deleteAclConfig", "updateGlobalWhiteAddr", "clusterAclConfigVersion"),
            "getAclConfig",
        ),
        "4.9.7",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """Output of both tools at one cluster, by run.

    Attributes:
        documents: Pairs of exported or printed JSON documents: Apache's document and ours.
    """

    theirs: Mapping[str, AdminResult]
    ours: Mapping[str, AdminResult]
    documents: Mapping[str, tuple[Any, Any]]
    helps: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Clusters:
    """Output of Apache's tool and our tool at each cluster.

    The tools run when a test first asks for a cluster.
    """

    fleet: Fleet
    apaches: Mapping[str, Apache]
    folder: Path
    found: dict[tuple[str, str], Both | BaseException] = field(default_factory=dict)

    def printed(self, release: str, servers: str) -> Both:
        """Return the output of both tools at a cluster of a release; ``servers`` is "apache" or "ours"."""
        if (release, servers) not in self.found:
            run = self._at_apaches if servers == "apache" else self._at_ours
            try:
                self.found[release, servers] = run(release)
            except BaseException as error:
                self.found[release, servers] = error
                raise
        both = self.found[release, servers]
        if isinstance(both, BaseException):
            raise both  # later tests fail at once with the same error
        return both

    def _at_apaches(self, release: str) -> Both:
        deployment, folder = self.fleet.apache(release), self.folder / f"apache-{release}"
        place = Place(
            namesrv=deployment.namesrv.addr,
            broker=deployment.broker.addr,
            name=deployment.broker.name,
            trace_topic="Traces",
        )
        return run_all(self.apaches[release], folder, place)

    def _at_ours(self, release: str) -> Both:
        apache, home = self.apaches[release], self.folder / f"ours-{release}"
        # Use only one mode of our nameservers for each release, because the tools send the same requests in
        # both modes.
        mode = "raft" if release.startswith("4.") else "independent"
        with our_servers(home, mode, {"traceTopicEnable": "true"}) as (namesrv, broker):
            place = Place(
                namesrv=namesrv.addr,
                broker=broker.addr,
                name=broker.name,
                trace_topic="RMQ_SYS_TRACE_TOPIC",
            )
            if release.startswith("4."):
                return run_all(apache, home / "runs", place)
            return run_all(apache, home / "runs", place, lambda: endless(apache, home, place.namesrv))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Addresses of a cluster's nameserver and broker, the broker's name, and the topic of message traces."""

    namesrv: str
    broker: str
    name: str
    trace_topic: str


@pytest.fixture(scope="module")
def clusters(fleet: Fleet, apaches: dict[str, Apache], tmp_path_factory: pytest.TempPathFactory) -> Clusters:
    return Clusters(fleet, apaches, tmp_path_factory.mktemp("daily-commands"))


def run_all(
    apache: Apache,
    folder: Path,
    place: Place,
    beside: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Both:
    """Run all subcommands of both tools at a cluster, while a consumer group with a Java client is online.

    Args:
        beside: Context manager that is active while the subcommands run.
    """
    folder.mkdir(parents=True)
    namesrv, broker, traces = place.namesrv, place.broker, place.trace_topic
    own_topics = {} if traces.startswith("RMQ") else {traces: 1}
    for topic, queues in ({TOPIC: 1, "Measured": 3} | own_topics).items():
        create_topic(broker, topic, queues=queues)
        wait_until(lambda topic=topic: has_route(namesrv, topic, broker), f"route of {topic}")  # type: ignore[misc]
    their_tool, tool = apaches(apache, namesrv), our_tool(namesrv)
    enough = folder / "enough"
    consumer = apache.consumer([namesrv], TOPIC, GROUP, f"@{enough}", seconds=400, trace=traces, tags="*")
    try:
        sent = apache.produce([namesrv], TOPIC, COUNT, tags="A,B", trace=traces)
        assert sent["status SEND_OK"] == str(COUNT), sent
        unique = unique_id(tool, "key0")
        wait_until(lambda: traced(tool, unique, traces), f"the traces of {unique}", START_S)
        theirs: dict[str, AdminResult] = {}
        ours: dict[str, AdminResult] = {}
        documents: dict[str, tuple[Any, Any]] = {}
        lines = list(filter(None, (RUNS + (OF_5 if apache.release.startswith("5.") else "")).splitlines()))

        def run_lines(*, export: bool) -> None:
            for line in lines:
                run, _, words = line.partition("|")
                if run.startswith("export") is not export:
                    continue
                found = []
                for whose, one, results in (("theirs", their_tool, theirs), ("ours", tool, ours)):
                    own = folder / whose
                    write_lists(own)
                    values = {
                        "BROKER_NAME": place.name,
                        "TRACE_OPTION": f"-t {traces}" if own_topics else "",
                        "BROKER": broker,
                        "UNIQUE": unique,
                        "FOLDER": str(own),
                        "TOPICS": str(own / "topics"),
                        "GROUPS": str(own / "groups"),
                    }
                    filled = words
                    for mark, value in values.items():
                        filled = filled.replace(mark, value)
                    results[run] = one(*shlex.split(filled))
                    if run.startswith(DOCUMENTS):
                        text = (own / EXPORTED[run]).read_text() if run in EXPORTED else results[run].stdout
                        found.append(json.loads(text))
                if found:
                    documents[run] = (found[0], found[1])

        # Run the exports first. The commands in ``beside`` create topics and groups, and could do so between
        # the exports of the two tools.
        run_lines(export=True)
        with beside():
            run_lines(export=False)
        commands = [one for one in DAILY if ONLY_IN.get(one, apache.release) == apache.release]
        helps = {one: their_tool("help", one).stdout for one in commands}
    finally:
        partial_file = folder / "partial"
        partial_file.write_text("0")
        partial_file.rename(enough)
        consumer.wait(60)
    return Both(theirs=theirs, ours=ours, documents=documents, helps=helps)


def apaches(apache: Apache, namesrv: str) -> Tool:
    """Return a function that runs Apache's tool; the runs at all clusters of a release share one JVM."""
    return lambda *args: apache.admin(*args, namesrvs=[namesrv], session="daily commands")


def write_lists(folder: Path) -> None:
    """Write files that list topics and groups for the subcommands; the two tools use different names."""
    folder.mkdir(exist_ok=True)
    topics = [{"topicName": f"Listed-{folder.name}-{n}", "readQueueNums": 2, "perm": 6} for n in range(5)]
    groups = [{"groupName": f"listed-{folder.name}-{n}", "retryMaxTimes": 3} for n in range(5)]
    (folder / "topics").write_text(json.dumps(topics))
    (folder / "groups").write_text(json.dumps(groups))


def unique_id(tool: Tool, key: str) -> str:
    def found() -> bool:
        return tool("queryMsgByKey", "-t", TOPIC, "-k", key).returncode == 0

    wait_until(found, f"the message with {key}")
    row = tool("queryMsgByKey", "-t", TOPIC, "-k", key).stdout.splitlines()[1]
    return row.split()[0]


def traced(tool: Tool, unique: str, topic: str) -> bool:
    text = tool("queryMsgTraceById", "-i", unique, "-t", topic).stdout
    return "\nPub " in f"\n{text}" and "\nSub " in text


_MASKS: Final = (
    (re.compile(r"rt=\d+ms"), "rt=MS"),
    (re.compile(r"queue(Id|Offset)=\d+"), r"queue\1=N"),
    (re.compile(r", recallHandle=null"), ""),  # 4.9 has no such field in a send result
    (re.compile(r"\b\d+ms\b"), "MS"),
    (re.compile(r"interop_producer_\w+"), "PRODUCER"),
    (re.compile(r"(#MasterCommitLogMaxOffset\s+)\d+"), r"\1N"),
)
#: Usage text of a subcommand. Apache's tool prints it after the result of a command for a whole cluster.
_USAGE: Final = re.compile(r"usage: mqadmin.*", re.DOTALL)


def lines_of(run: str, text: str) -> list[str]:
    """Return the lines of a run's output that must be equal for both tools."""
    for pattern, mark in _MASKS:
        text = pattern.sub(mark, text)
    lines = comparable(run, _USAGE.sub("", text))
    if run == "checkMsgSendRT":
        lines = [re.sub(r"(true|false) \d+$", r"\1 MS", line) for line in lines]
    return lines


def shape(value: Any) -> Any:
    """Return a JSON document with each value replaced by the name of its type."""
    if isinstance(value, dict):
        return {name: shape(member) for name, member in sorted(value.items())}
    return type(value).__name__


@pytest.mark.parametrize("servers", ["apache", "ours"])
@pytest.mark.parametrize("release", RELEASES)
def test_both_tools_print_the_same_of_one_cluster(release: str, servers: str, clusters: Clusters) -> None:
    both = clusters.printed(release, servers)
    differing = []
    for run, result in both.ours.items():
        if run.startswith("allocateMQ"):
            continue
        theirs = both.theirs[run]
        if run in EXPORTED:
            assert re.fullmatch(r"export \S+ success\n", result.stdout), result
            assert theirs.stdout.startswith("export "), theirs
            continue
        have, want = lines_of(run, result.stdout), lines_of(run, theirs.stdout)
        if have != want or result.returncode or not want:
            detail = (*want, "-- but", *have, result.stderr[:600], theirs.stderr[:600])
            differing.append(f"== {run} {result.args}\n" + "\n".join(detail))
    if differing:
        pytest.fail("\n".join(differing), pytrace=False)


@pytest.mark.parametrize("servers", ["apache", "ours"])
@pytest.mark.parametrize("release", RELEASES)
def test_both_tools_export_the_same_of_one_cluster(release: str, servers: str, clusters: Clusters) -> None:
    documents = clusters.printed(release, servers).documents
    theirs, ours = documents["exportConfigs"]
    assert ours == theirs
    theirs, ours = documents["exportMetrics"]
    for document in (theirs, ours):
        for report in document["evaluateReport"].values():
            report["runtimeVersion"]["clientInfo"] = sorted(report["runtimeVersion"]["clientInfo"])
    assert shape(ours) == shape(theirs)
    for run in ("exportMetadata", "exportMetadata-t", "exportMetadata-g", "exportMetadata-s"):
        theirs, ours = documents[run]
        assert set(ours) >= {name for name in theirs if not name.startswith("topicQueueMapping")} - {
            "mappingDataVersion"
        }
        for table in ("topicConfigTable", "subscriptionGroupTable"):
            if table not in theirs:
                continue
            assert set(ours[table]) == set(theirs[table]), run
            for name, settings in ours[table].items():
                common = settings.keys() & theirs[table][name].keys()
                assert len(common) >= 5, (run, name)
                assert {key: settings[key] for key in common} == {
                    key: theirs[table][name][key] for key in common
                }
    theirs, ours = documents["allocateMQ"]
    # Apache's tool distributes the queues in the order of a hash table, so its members get other queues than
    # ours. Compare only the number of queues of each member, and all queues together.
    assert {name: len(share) for name, share in ours["result"].items()} == {
        name: len(share) for name, share in theirs["result"].items()
    }
    assert queues_of(ours) == queues_of(theirs)


def queues_of(shares: Mapping[str, Any]) -> list[str]:
    return sorted(str(queue) for share in shares["result"].values() for queue in share)


def test_lists_are_there_at_each_broker(clusters: Clusters, fleet: Fleet) -> None:
    clusters.printed("5.3.3", "apache")
    deployment = fleet.apache("5.3.3")
    for broker in (deployment.broker.addr, deployment.ours.addr):
        topics = json.loads(ask(broker, 21)[2])["topicConfigTable"]
        groups = json.loads(ask(broker, 201)[2])["subscriptionGroupTable"]
        for whose in ("theirs", "ours"):
            assert {topics[f"Listed-{whose}-{n}"]["readQueueNums"] for n in range(5)} == {2}
            assert {groups[f"listed-{whose}-{n}"]["retryMaxTimes"] for n in range(5)} == {3}


#: Words that differ on purpose. Our tool prints an export; Apache's tool writes it to a file in /tmp.
_REWORDED: Final = re.compile(r"json path \| default.*")


@pytest.mark.parametrize("release", RELEASES)
def test_descriptions_are_those_of_apache(release: str, clusters: Clusters) -> None:
    helps = clusters.printed(release, "ours").helps
    tool = our_tool("127.0.0.1:9876")
    for name, theirs in helps.items():
        ours = tool("help", name).stdout.partition("\nOptions of RouteKeeper:\n")[0]
        if release == ONLY_IN.get(name, "5.3.3"):
            have, want = (" ".join(_REWORDED.sub("json path", text).split()) for text in (ours, theirs))
            assert have == want, name
        for line in re.findall(r"^ -(\w),--([\w ]+?)(?: +<arg>)? ", theirs, re.MULTILINE):
            assert f"-{line[0]},--{line[1].strip()}" in ours, (name, line)
    assert set(helps) <= set(COMMANDS)


# Subcommands that run until they are interrupted ---------------------------------------------------

SEEN: dict[str, str] = {}
UNDONE: Final = re.compile(rf"reportUndoneMsgs: UndoneMsgs \[consumerGroup={GROUP}, topic={TOPIC}, .*\]")


@contextmanager
def endless(apache: Apache, home: Path, namesrv: str) -> Iterator[None]:
    """Run clusterRT and startMonitoring of both tools during the context, and keep their output."""
    started = {
        **{f"theirs {name}": theirs(apache, home / name, namesrv, *words) for name, words in ENDLESS.items()},
        **{f"ours {name}": ours(home / f"ours-{name}", namesrv, *words) for name, words in ENDLESS.items()},
    }
    try:
        yield
        for whose in ("theirs", "ours"):
            monitor = started[f"{whose} startMonitoring"]
            wait_until(lambda monitor=monitor: UNDONE.search(monitor.text()) is not None, f"{whose}", START_S)  # type: ignore[misc]
        for name, program in started.items():
            SEEN[name] = program.text()
        for name in ENDLESS:
            program = started[f"ours {name}"]
            program.popen.send_signal(signal.SIGINT)
            SEEN[f"exit {name}"] = str(program.popen.wait(20))
    finally:
        for program in started.values():
            program.popen.kill()
            program.popen.wait()


ENDLESS: Final = {
    "clusterRT": ("clusterRT", "-a", "3", "-s", "50", "-i", "1"),
    "startMonitoring": ("startMonitoring",),
}


@dataclass(frozen=True, slots=True)
class Endless:
    """A running subcommand and the file to which it prints or logs."""

    popen: subprocess.Popen[bytes]
    output: Path

    def text(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""


def theirs(apache: Apache, home: Path, namesrv: str, *words: str) -> Endless:
    home.mkdir(parents=True)
    command, environment = apache.command(ADMIN_MAIN, [*words, "-n", namesrv], home, level="INFO")
    printed = home / "output.txt"
    with printed.open("wb") as sink:
        popen = subprocess.Popen(
            command,
            env=environment,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    guard(popen.pid)
    return Endless(popen, home / "apache.log" if words[0] == "startMonitoring" else printed)


def ours(home: Path, namesrv: str, *words: str) -> Endless:
    home.mkdir(parents=True)
    printed = home / "output.txt"
    command = [sys.executable, "-m", "routekeeper.client.mqadmin", *words, "-n", namesrv]
    if words[0] == "startMonitoring":
        command += ["--roundInterval", "2"]
    with printed.open("wb") as sink, inherited(signal.SIGINT, signal.SIG_DFL):
        popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT)
    guard(popen.pid)
    return Endless(popen, printed)


def test_what_runs_on_prints_the_same_columns_and_ends_at_an_interrupt(clusters: Clusters) -> None:
    clusters.printed("5.3.3", "ours")
    rows = {
        whose: [line.split() for line in SEEN[f"{whose} clusterRT"].splitlines() if "mqadmin" not in line]
        for whose in ("theirs", "ours")
    }
    assert rows["ours"][0] == rows["theirs"][0]
    for whose, (_, first, *_) in rows.items():
        assert (first[:2], len(first), first[3:]) == (["DefaultCluster", "broker-a"], 5, ["3", "0"]), whose
    lines = [UNDONE.search(SEEN[f"{whose} startMonitoring"]) for whose in ("theirs", "ours")]
    texts = [re.sub(r"\d+", "N", line[0]) for line in lines if line is not None]
    assert len(texts) == 2
    assert texts[0] == texts[1]
    assert (SEEN["exit clusterRT"], SEEN["exit startMonitoring"]) == ("130", "130")


# ACL 1.0 -------------------------------------------------------------------------------------------

ACCOUNTS: Final = """
globalWhiteRemoteAddresses:
- 127.0.0.1
accounts:
- accessKey: admin-of-all
  secretKey: secret-of-admin
  admin: true
"""
ACL_RUNS: Final = """
updateAclConfig|updateAclConfig -b BROKER -a WHOSE-key -s WHOSE-secret -w 10.0.0.* -i DENY -u SUB -t A=PUB
updateAclConfig-c|updateAclConfig -c DefaultCluster -a WHOSE-other -s WHOSE-secret -m true
updateGlobalWhiteAddr|updateGlobalWhiteAddr -b BROKER -g 127.0.0.1,10.0.0.WHOSE -p ACL_FILE
clusterAclConfigVersion-b|clusterAclConfigVersion -b BROKER
clusterAclConfigVersion-c|clusterAclConfigVersion -c DefaultCluster
getAclConfig-b|getAclConfig -b BROKER
getAclConfig-c|getAclConfig -c DefaultCluster
deleteAclConfig|deleteAclConfig -b BROKER -a WHOSE-key
deleteAclConfig-c|deleteAccessConfig -c DefaultCluster -a WHOSE-other
getAclConfig-after|getAccessConfigSubCommand -b BROKER
"""


def test_accounts_of_acl_1_are_changed_and_shown_as_by_apaches_tool(
    apaches: dict[str, Apache], tmp_path_factory: pytest.TempPathFactory
) -> None:
    apache, home = apaches["4.9.7"], tmp_path_factory.mktemp("acl")
    namesrv = start_namesrv(["--data", str(home / "data")], home / "namesrv", "127.0.0.1:0")
    try:
        await_namesrv(namesrv)
        broker = apache.broker(
            [namesrv.addr], settings={"aclEnable": "true"}, files={"conf/plain_acl.yml": ACCOUNTS}
        )
        try:
            compare_accounts(apache, namesrv.addr, broker.addr, str(broker.home / "conf" / "plain_acl.yml"))
        finally:
            broker.kill()
    finally:
        namesrv.stop()


def compare_accounts(apache: Apache, namesrv: str, broker: str, file: str) -> None:
    tools = {"1": apaches(apache, namesrv), "2": our_tool(namesrv)}
    found: dict[str, list[list[str]]] = {}
    for number, tool in tools.items():
        for line in filter(None, ACL_RUNS.splitlines()):
            run, _, words = line.partition("|")
            for mark, value in (("BROKER", broker), ("ACL_FILE", file), ("WHOSE", f"account{number}")):
                words = words.replace("10.0.0.WHOSE", "10.0.0.9").replace(mark, value)
            if run.startswith("getAclConfig"):
                settled(tool, broker)
            result = tool(*shlex.split(words))
            assert result.returncode == 0, result
            found.setdefault(run, []).append(acl_lines(result.stdout))
    for run, (theirs, ours) in found.items():
        assert ours == theirs, run
    # Give no path of an accounts file. The broker of 4.9.7 then refuses the request of Apache's tool. Our
    # tool's request must succeed.
    result = tools["2"]("updateGlobalWhiteAddr", "-b", broker, "-g", "127.0.0.1,10.0.0.7")
    assert (result.returncode, result.stderr) == (0, "")
    wait_until(lambda: "10.0.0.7" in tools["2"]("getAclConfig", "-b", broker).stdout, "the new addresses")
    assert tools["2"]("deleteAclConfig", "-b", broker, "-a", "nobody").stderr.startswith(
        f"mqadmin deleteAclConfig: account not deleted at 1 of 1: {broker}: CODE: "
    )


def settled(tool: Tool, broker: str) -> None:
    """Wait until the broker, which checks its accounts file every 0.5 s, has read the changed file."""
    text, since = "", time.monotonic()

    def unchanged() -> bool:
        nonlocal text, since
        now, said = time.monotonic(), tool("getAclConfig", "-b", broker).stdout
        if said != text:
            text, since = said, now
        return now - since > 1.5

    wait_until(unchanged, "the accounts settled")


def acl_lines(text: str) -> list[str]:
    """Return the lines about accounts that must be equal; one name replaces both tools' account names."""
    text = re.sub(r"org\.apache\.rocketmq\.common\.PlainAccessConfig@\w+", "", text)
    text = re.sub(r"account[12]", "ACCOUNT", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "DATE", text)
    text = re.sub(r"(plain_acl\.yml\s+)\d+", r"\1N", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]
