"""A playground of real processes shows the effects of its commands, and faults that others caused."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgspec
import psutil
import pytest

from routekeeper.bench.events import Fault, Operation, Truth, View
from routekeeper.bench.links import Command
from routekeeper.bench.play.model import Counters, Design, Log, Order, Saved
from routekeeper.bench.play.picture import apply
from routekeeper.bench.runfolder import find_run_folders, read_manifest
from tests.bench.lives import rows
from tests.bench.play.sessions import (
    READY,
    STARTED_S,
    Session,
    at_once,
    broker,
    client,
    ended,
    is_whole,
    link,
    mend,
    server,
    session,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.bench, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Yield a playground of the designs independent and raft for this module's tests, with short timers."""
    out = tmp_path_factory.mktemp("out")
    with session("--designs", "independent,raft", "--divisor", "60", out=out) as made:
        made.await_started()
        yield made


@pytest.fixture
def whole(played: Session) -> Iterator[Session]:
    """Yield the playground without faults, and heal all faults before and after each test."""
    mend(played)
    yield played
    mend(played)


def of_session(folder: Path) -> list[psutil.Process]:
    """Return the processes whose command line contains a path in this folder for temporary files."""
    return [
        each
        for each in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in each.info["cmdline"] or ())
    ]


def link_is(dialler: str, acceptor: str, **facts: object) -> Callable[[Design], bool]:
    """Return a function that checks if the named fields of a design's link have these values."""

    def shown(design: Design) -> bool:
        found = msgspec.structs.asdict(link(design, dialler, acceptor))
        return all(found[name] == value for name, value in facts.items())

    return shown


# -- the first line of output, and the end of the process -------------------------------------------------


def test_timers_start_a_design_again_also_one_that_is_not_read_any_more_and_ctrl_c_leaves_no_process(
    tmp_path: Path,
) -> None:
    """New timers start a design again, even a design that failed because of a wrong line of its clients.

    The test writes a line that is not JSON to the clients' output. The design must then be shown as failed.
    After such a line, the playground reads no more answers of this design's clients. If it did not report the
    failure, the page would show an old state for ever.
    """
    with session("--designs", "independent", "--divisor", "60", out=tmp_path) as made:
        assert made.first_line.startswith(READY)
        made.await_started()
        children = made.children()
        assert len(children) == 8, "three servers, three brokers, the proxy, the clients"
        done = made.do(Order(do="timers", divisor=30.0))
        assert [each.result for each in done.outcomes] == ["applied"]
        assert ended(children) == [], "the designs have started again"
        assert made.await_started().divisor == 30
        assert len(made.children()) == 8

        (clients,) = [each for each in made.children() if "routekeeper.bench.play.clients" in each.cmdline()]
        Path(f"/proc/{clients.pid}/fd/1").write_bytes(b"no line of ours\n")
        made.shows("independent", lambda design: design.phase == "failed", "it is shown as failed")
        assert "listen to the clients has ended: DecodeError" in made.design("independent").reason
        wait_until(lambda: not made.children(), "its processes are ended")
        outcomes = made.do(Order(do="kill", target="broker-1")).outcomes
        assert [(each.result, each.reason) for each in outcomes] == [("not applied", "independent is failed")]
        made.do(Order(do="timers", divisor=60.0))
        made.await_started()
        assert made.end(signal.SIGINT) == 0, made.said
        assert of_session(tmp_path) == []


def test_a_signal_while_the_designs_start_leaves_no_process(tmp_path: Path) -> None:
    with session("--designs", "independent,raft", "--divisor", "60", out=tmp_path) as made:
        wait_until(lambda: len(made.children()) >= 4, "some processes are started")
        assert made.end() == 0, made.said
        assert of_session(tmp_path) == []


def test_a_start_that_fails_half_way_is_said_and_leaves_no_process(tmp_path: Path) -> None:
    """If a part of the start fails, the playground must say so and leave no process.

    The test kills the proxy after the servers have started.
    A module ``sitecustomize`` makes the proxy wait at its start, so the proxy is killed before it is ready.
    """
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(
        "import signal, sys\nif 'routekeeper.bench.proxy' in sys.orig_argv: signal.pause()\n"
    )
    environment = {"PYTHONPATH": str(own)}
    with session(
        "--designs", "independent", "--divisor", "60", out=tmp_path, environment=environment
    ) as made:
        wait_until(lambda: len(made.children()) >= 4, "the proxy and three servers are started")
        proxy_of(made, "independent").kill()
        assert made.process.wait(STARTED_S) == 1
        assert "independent failed: proxy-0 ended with -9" in made.errors()
        assert of_session(tmp_path) == []


# -- commands to the playground ----------------------------------------------------------------------------


def test_a_killed_broker_is_shown_down_its_listing_wrong_and_its_return_right(whole: Session) -> None:
    done = whole.do(Order(do="kill", target="broker-1"))
    assert [(each.design, each.result) for each in done.outcomes] == [
        ("independent", "applied"),
        ("raft", "applied"),
    ]
    for design in whole.state().designs:
        assert broker(design, "broker-1").life == "down"
        assert design.counters.since_ms <= done.at_ms
    again = whole.do(Order(do="kill", target="broker-1"))
    assert [(each.result, each.reason) for each in again.outcomes] == [
        ("not applied", "broker-1 is down")
    ] * 2
    for name in ("independent", "raft"):
        whole.shows(name, lambda each: broker(each, "broker-1").registered == [], "it is not listed any more")
    whole.do(Order(do="start", target="broker-1"))
    for name in ("independent", "raft"):
        whole.shows(name, lambda each: broker(each, "broker-1").life == "up", "it runs again")
        whole.shows(name, lambda each: len(broker(each, "broker-1").registered) == 3, "it is listed again")


def test_a_paused_leader_is_followed_by_another_one_and_resumed(whole: Session) -> None:
    (outcome,) = whole.do(Order(do="pause", target="leader", designs=["raft"])).outcomes
    assert outcome.result == "applied"
    paused = outcome.target
    assert server(whole.design("raft"), paused).life == "paused"
    whole.shows("raft", lambda each: not server(each, paused).answers, "it does not answer")

    def another(design: Design) -> bool:
        return any(each.role == "leader" and each.answers and each.name != paused for each in design.servers)

    whole.shows("raft", another, "another one leads")
    assert {each.life for each in whole.design("independent").servers} == {"up"}
    whole.do(Order(do="resume", target=paused, designs=["raft"]))
    whole.shows("raft", lambda each: server(each, paused).life == "up", "it goes on")


def test_a_server_that_restarts_empty_knows_no_broker_before_it_has_reported(whole: Session) -> None:
    before = server(whole.design("independent"), "nameserver-0").pid
    brokers = [each.name for each in whole.design("independent").brokers]
    # Pause the brokers. Otherwise, with these short timers, a broker could register before the test sees the
    # empty server.
    for name in brokers:
        whole.do(Order(do="pause", target=name, designs=["independent"]))
    (outcome,) = whole.do(Order(do="restart-empty", target="nameserver-0", designs=["independent"])).outcomes
    assert outcome.result == "applied"

    def runs_and_knows_nothing(design: Design) -> bool:
        found = server(design, "nameserver-0")
        return found.life == "up" and found.answers and found.pid != before and not found.brokers

    whole.shows("independent", runs_and_knows_nothing, "it runs again and knows no broker")
    for name in brokers:
        whole.do(Order(do="resume", target=name, designs=["independent"]))
    whole.shows("independent", lambda each: len(server(each, "nameserver-0").brokers) == 3, "it has learnt")


def test_a_cut_one_way_is_shown_one_way_and_what_waits_in_it(whole: Session) -> None:
    whole.do(Order(do="cut", target="client-1", to="nameserver-1", oneway=True, designs=["raft"]))
    whole.shows("raft", link_is("client-1", "nameserver-1", forward="cut", back="open"), "it is cut one way")
    whole.shows("independent", link_is("client-1", "nameserver-1", forward="open", back="open"), "it is not")
    whole.do(Order(do="heal"))
    whole.shows("raft", link_is("client-1", "nameserver-1", forward="open", back="open"), "it is open again")


def test_a_client_that_connects_anew_asks_the_server_that_it_is_sent_to(whole: Session) -> None:
    for number in (2, 0, 1):
        server_name = f"nameserver-{number}"

        def asked(server_name: str = server_name) -> bool:
            last = [client(whole.design(name), "client-1").last for name in ("independent", "raft")]
            if all(each is not None and each.server == server_name for each in last):
                return True
            # If the server answers late, the client connects to the next server. So give the command again.
            whole.do(Order(do="reconnect", target="client-1", to=server_name))
            return False

        wait_until(asked, f"both clients are answered by {server_name}", every_s=3.0)


def test_a_slow_link_is_shown_with_its_delay_and_answers_come_late_until_it_is_healed(whole: Session) -> None:
    done = whole.do(Order(do="slow", target="client-0", delay_ms=150, designs=["independent"]))
    assert [each.result for each in done.outcomes] == ["applied"]
    slow = link_is("client-0", "nameserver-0", forward="open", forward_ms=150, back_ms=150)
    whole.shows("independent", slow, "it is slow both ways")

    def late(design: Design) -> bool:
        last = client(design, "client-0").last
        return last is not None and last.done_ms - last.sent_ms >= 300

    whole.shows("independent", late, "an answer takes a round trip of 300 ms")
    whole.do(Order(do="heal"))
    quick = link_is("client-0", "nameserver-0", forward="open", forward_ms=0, back_ms=0)
    whole.shows("independent", quick, "it is as quick as before")


def test_a_client_behind_a_partition_is_refused_in_raft_mode_and_answered_by_independent_servers(
    whole: Session,
) -> None:
    done = whole.do(Order(do="part", target="leader"))
    assert {each.result for each in done.outcomes} == {"applied"}
    whole.shows(
        "raft",
        lambda each: (last := client(each, "client-0").last) and last.verdict in ("refused", "none"),
        "the client beside the lone server is not answered",
    )
    # nameserver-0 evicts the brokers on the other side of the partition. client-0 cannot reach these brokers
    # either, so the answer that client-0 gets is right.
    whole.shows(
        "independent",
        lambda each: (
            (last := client(each, "client-0").last)
            and (last.verdict, last.brokers) == ("right", ["broker-0"])
        ),
        "the answer is right for a client that reaches no more",
    )


def test_a_new_topic_is_listed_by_every_server_and_asked_for_by_every_client(whole: Session) -> None:
    done = whole.do(Order(do="make-topic", topic="Payments"))
    assert {each.result for each in done.outcomes} == {"applied"}
    for name in ("independent", "raft"):
        whole.shows(
            name,
            lambda each: all(
                (last := one.last) and (last.topic, last.verdict) == ("Payments", "right")
                for one in each.clients
            ),
            "every client is answered",
        )
        assert whole.design(name).topics[-1] == "Payments"
        whole.shows(
            name,
            lambda each: all("Payments" in [known.topic for known in one.topics] for one in each.servers),
            "every server lists it",
        )


def test_a_broker_that_stops_kindly_is_forgotten_at_once(whole: Session) -> None:
    whole.do(Order(do="stop", target="broker-2"))
    for name in ("independent", "raft"):
        whole.shows(name, lambda each: broker(each, "broker-2").life == "down", "it has ended")
        whole.shows(name, lambda each: broker(each, "broker-2").registered == [], "it is listed nowhere")


def test_an_order_that_makes_no_sense_is_refused_in_one_line(whole: Session) -> None:
    status, body = whole.post("/v1/actions", {"do": "kill", "target": "nobody"})
    assert status == 400
    assert "'nobody' is no name" in msgspec.json.decode(body)["error"]
    assert whole.post("/v1/actions", {"do": "destroy"})[0] == 400
    assert whole.post("/v1/actions", {"do": "kill", "target": "broker-0", "designs": ["zookeeper"]})[0] == 400
    assert whole.ask("POST", "/v1/actions", b"{" * 5_000, {"Content-Type": "application/json"})[0] in (
        400,
        413,
    )


# -- faults that no command to the playground caused -------------------------------------------------------


def test_a_server_that_somebody_else_kills_is_shown_down(whole: Session) -> None:
    pid = server(whole.design("raft"), "nameserver-2").pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    whole.shows("raft", lambda each: server(each, "nameserver-2").life == "down", "it is down")
    assert server(whole.design("raft"), "nameserver-2").brokers == []


def test_a_server_that_somebody_else_stops_is_shown_paused(whole: Session) -> None:
    pid = server(whole.design("independent"), "nameserver-1").pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    whole.shows("independent", lambda each: server(each, "nameserver-1").life == "paused", "it is paused")
    whole.shows("independent", lambda each: not server(each, "nameserver-1").answers, "it does not answer")


def proxy_of(whole: Session, design: str) -> psutil.Process:
    return next(
        each
        for each in whole.children()
        if "routekeeper.bench.proxy" in each.cmdline() and f"-{design}-" in " ".join(each.cmdline())
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the proxy's stdin is reached through /proc")
def test_a_link_that_somebody_else_cuts_is_shown_cut_and_its_client_out_of_reach(whole: Session) -> None:
    """The playground must notice and show a cut that none of its own commands caused.

    The test sends the command for the cut directly to the proxy.
    """
    directions = [("client-3", f"broker-{number}") for number in range(3)]
    command = msgspec.json.encode(Command(do="cut", directions=[*directions, ("client-3", "nameserver-0")]))
    with open(f"/proc/{proxy_of(whole, 'raft').pid}/fd/0", "wb") as stdin:
        stdin.write(command + b"\n")
    whole.shows("raft", link_is("client-3", "nameserver-0", forward="cut", back="open"), "it is cut")
    whole.shows(
        "raft",
        lambda each: (last := client(each, "client-3").last) and last.verdict == "wrong" and last.why,
        "its answers list brokers that it does not reach",
    )
    since_ms = whole.state().at_ms
    whole.shows("independent", lambda each: is_whole(each, since_ms=since_ms), "it is as before")


def test_links_of_a_proxy_that_does_not_answer_are_unknown_until_it_does(whole: Session) -> None:
    proxy = proxy_of(whole, "independent")
    proxy.suspend()
    try:
        whole.shows(
            "independent", lambda each: {one.forward for one in each.links} == {"unknown"}, "nobody knows"
        )
    finally:
        proxy.resume()
    whole.shows("independent", lambda each: {one.forward for one in each.links} == {"open"}, "all are open")


# -- the event stream and the log of changes ---------------------------------------------------------------


def test_the_stream_begins_with_the_picture_and_goes_on_where_a_page_left_it(whole: Session) -> None:
    with whole.events() as stream:
        kind, first, state = next(stream)
        assert (kind, first) == ("state", f"{state['session']}-{state['id']}")
        whole.do(Order(do="kill", target="broker-0", designs=["raft"]))
        seen = list(islice((each for each in stream if each[0] == "change"), 3))
    numbers = [data["id"] for _, _, data in seen]
    assert numbers == list(range(state["id"] + 1, state["id"] + 1 + len(seen)))
    with whole.events(last=seen[0][1]) as stream:
        assert next(stream) == seen[1]
    with whole.events(last="another-5") as stream:
        assert next(stream)[0] == "state"


def test_the_log_makes_the_present_picture_of_its_begin(whole: Session) -> None:
    killed = whole.do(Order(do="kill", target="broker-0", designs=["raft"]))
    log = msgspec.json.decode(whole.ask("GET", "/v1/log")[1], type=Log)
    state = log.base
    for change in log.changes:
        apply(state, change)
    raft = next(each for each in state.designs if each.name == "raft")
    assert broker(raft, "broker-0").life == "down"
    assert killed.outcomes[0].design == "raft"
    assert killed in [each.done for each in log.changes]


def test_the_seventeenth_page_that_watches_is_refused(whole: Session) -> None:
    with contextlib.ExitStack() as opened:
        for _ in range(16):
            next(opened.enter_context(whole.events()))
        assert whole.ask("GET", "/v1/events")[0] == 503


# -- HTTP requests that may give commands to the playground --------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example", "Content-Type": "application/json"},
        {"Host": "evil.example", "Content-Type": "application/json"},
        {"Content-Type": "text/plain"},
    ],
    ids=["another origin", "a name that leads here", "a form"],
)
def test_a_strangers_page_gives_no_order(headers: dict[str, str], whole: Session) -> None:
    body = msgspec.json.encode(Order(do="kill", target="broker-0"))
    assert whole.ask("POST", "/v1/actions", body, headers)[0] == 403
    assert {broker(each, "broker-0").life for each in whole.state().designs} == {"up"}


def test_a_name_that_leads_here_does_not_read_the_picture(whole: Session) -> None:
    assert whole.ask("GET", "/v1/state", headers={"Host": "evil.example"})[0] == 403


def test_the_own_page_gives_orders(whole: Session) -> None:
    headers = {"Origin": f"http://{whole.addr}", "Content-Type": "application/json"}
    assert whole.ask("POST", "/v1/actions", msgspec.json.encode(Order(do="heal")), headers)[0] == 200


# -- saved sessions and their replay -----------------------------------------------------------------------


def saved(whole: Session) -> Path:
    status, body = whole.post("/v1/save")
    assert status == 200, body
    return Path(msgspec.json.decode(body, type=Saved).folder)


def test_a_saved_session_is_a_run_folder_of_each_design(whole: Session) -> None:
    whole.do(Order(do="kill", target="broker-1"))
    whole.shows("raft", lambda each: broker(each, "broker-1").registered == [], "it is listed nowhere")
    left = ["broker-0", "broker-2"]
    for name in ("independent", "raft"):
        whole.shows(
            name,
            lambda each: any(
                client.last is not None and client.last.brokers == left for client in each.clients
            ),
            "a client is answered without it",
        )
    folder = saved(whole)
    runs = {read_manifest(each).arm: each for each in find_run_folders([folder])}
    assert set(runs) == {"independent", "raft"}
    for arm, run in runs.items():
        manifest = read_manifest(run)
        assert manifest.ended_ns is not None
        assert {"down"} <= {each.what for each in rows(run, Truth) if each.broker == 1}, arm
        fault = rows(run, Fault)[-1]
        assert (fault.kind, fault.targets) == ("kill", ["broker-1"])
        assert fault.until_ns <= manifest.measure_end_ns
        assert any(each.brokers == [0, 2] for each in rows(run, Operation))
        assert {each.observer for each in rows(run, View)} == {"nameserver", "client"}


def test_a_saved_session_is_shown_again_and_takes_no_orders(whole: Session, tmp_path: Path) -> None:
    whole.do(Order(do="kill", target="broker-1", designs=["raft"]))
    folder = saved(whole)
    last = at_once(folder)
    with session("--replay", str(folder), out=tmp_path) as again:
        wait_until(lambda: again.state().id == last, "all of it is shown")
        state = again.state()
        assert state.replayed
        raft = next(each for each in state.designs if each.name == "raft")
        assert broker(raft, "broker-1").life == "down"
        assert again.do(Order(do="heal")).outcomes[0].result == "not applied"
        assert again.post("/v1/save")[0] == 409


def test_a_folder_without_a_session_is_refused_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "routekeeper.bench", "play", "--no-open", "--replay", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        f"mqbench: --replay {tmp_path}: session.jsonl: No such file or directory"
    ]


# -- counters of answers since the newest fault ------------------------------------------------------------


def test_counters_begin_again_with_a_fault_and_count_every_answer_since(whole: Session) -> None:
    done = whole.do(Order(do="kill", target="broker-0", designs=["independent"]))
    state = whole.state()
    assert state.mark is not None
    assert state.mark.action == done.id
    assert state.mark.text == "kill broker-0"

    def counted(design: Design) -> bool:
        counters: Counters = design.counters
        assert counters.since_ms == state.mark.at_ms if state.mark is not None else False
        return counters.right + counters.wrong + counters.uncounted + counters.stale >= 8

    whole.shows("independent", counted, "answers are counted")
