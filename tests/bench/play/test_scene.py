"""The playground computes the state of a design only from its observations and from clients' answers.

It observes the design's processes, servers and links.
"""

from __future__ import annotations

from collections.abc import Iterable

from routekeeper.bench.events import Operation, View
from routekeeper.bench.links import GateState, Passes
from routekeeper.bench.play.model import Change, Life, TopicKnown
from routekeeper.bench.play.scene import Happened, Look, Reading, Scene

MS = 1_000_000
SERVERS = {f"nameserver-{number}": f"127.0.0.1:{number}" for number in range(3)}
BROKERS = {f"broker-{number}": f"127.0.0.1:1{number}" for number in range(3)}
CLIENTS = [f"client-{number}" for number in range(4)]


class Stand:
    """A design's state that a test observes every 100 ms of an invented clock.

    Attributes:
        lives: State and process id that the next observation finds for each process, by name.
        cut: Directions of links that are cut at the next observation.
    """

    def __init__(self) -> None:
        self.scene = Scene(
            "raft", servers=SERVERS, brokers=BROKERS, clients=CLIENTS, learns="poll", start_ns=0
        )
        self.lives: dict[str, tuple[Life, int | None]] = {
            name: ("up", pid) for pid, name in enumerate([*SERVERS, *BROKERS, "clients"], start=1)
        }
        self.cut: set[tuple[str, str]] = set()
        self.now_ms = 0
        for broker in BROKERS:
            list(self.scene.made("Orders", broker, begun_ns=0, acked_ns=0))

    def look(self, *, passes: bool = True) -> list[Happened]:
        before_ms, self.now_ms = self.now_ms, self.now_ms + 100
        found = [
            Passes(
                dialler=dialler,
                acceptor=acceptor,
                forward=GateState(open=(dialler, acceptor) not in self.cut, bytes=self.now_ms),
                back=GateState(open=(acceptor, dialler) not in self.cut),
            )
            for dialler in [*CLIENTS, *BROKERS]
            for acceptor in [*SERVERS, *BROKERS]
            if dialler != acceptor and not (dialler in BROKERS and acceptor in BROKERS)
        ]
        return list(
            self.scene.look(
                Look(
                    before_ns=before_ms * MS,
                    begin_ns=self.now_ms * MS,
                    end_ns=self.now_ms * MS,
                    lives=self.lives,
                    passes=found if passes else None,
                )
            )
        )

    def answer(self, brokers: list[int], *, client: int = 0, at_ms: int | None = None) -> None:
        at_ns = (self.now_ms if at_ms is None else at_ms) * MS
        self.scene.answered(
            Operation(
                op="lookup",
                user=client,
                target=0,
                due_ns=at_ns,
                sent_ns=at_ns,
                done_ns=at_ns + 1,
                outcome="ok",
                topic="Orders",
                brokers=brokers,
                client_side=f"client-{client}",
            )
        )


def changes(things: Iterable[Happened]) -> list[Change]:
    return [each.change for each in things if each.change is not None]


def verdict(stand: Stand, client: int = 0) -> str | None:
    last = stand.scene.design.clients[client].last
    return None if last is None else last.verdict


def test_an_answer_is_judged_by_a_look_that_comes_after_it() -> None:
    """Check an answer that lists a broker which dies between the observations before and after the answer.

    It is unknown whether the broker died before or after the answer, so the answer is uncounted. The same
    answer is wrong after the observation that showed the broker's death.
    """
    stand = Stand()
    stand.look()
    stand.answer([0, 1, 2], at_ms=150)
    assert verdict(stand) is None
    stand.lives["broker-1"] = "down", None
    facts = [(each.broker, each.fact) for each in stand.look() if each.fact is not None]
    assert facts == [("broker-1", "down")]
    assert verdict(stand) == "uncounted"
    stand.answer([0, 1, 2], at_ms=250)
    stand.look()
    assert verdict(stand) == "wrong"


def test_an_answer_that_ends_after_a_look_began_waits_for_the_next_one() -> None:
    stand = Stand()
    stand.answer([0, 1, 2], at_ms=101)
    stand.look()
    assert verdict(stand) is None, "nobody has looked since"
    stand.look()
    assert verdict(stand) == "right"


def test_each_answer_that_is_not_right_is_told_and_equal_right_ones_only_once() -> None:
    stand = Stand()
    stand.look()
    told = []
    for brokers in ([0, 1, 2], [0, 1, 2], [0, 1], [0, 1], [0, 1, 2]):
        stand.answer(brokers)
        told.append(
            [each.client.last.verdict for each in changes(stand.look()) if each.client and each.client.last]
        )
    assert told == [["right"], [], ["wrong"], ["wrong"], ["right"]]
    assert (stand.scene.counters.right, stand.scene.counters.wrong) == (3, 2)


def test_counters_from_an_instant_on_count_the_answers_that_have_come_since() -> None:
    stand = Stand()
    stand.look()
    for _ in range(3):
        stand.answer([0, 1, 2])
        stand.look()
    stand.scene.count_from(stand.now_ms - 100)
    assert stand.scene.counters.right == 1


def test_another_process_knows_nothing_of_what_the_one_before_knew() -> None:
    stand = Stand()
    stand.look()
    known = TopicKnown(topic="Orders", queues={"broker-0": 4})
    reading = Reading(answered=True, role="leader", term=3, brokers=["broker-0"], topics=[known], sent_ns=MS)
    list(stand.scene.read("nameserver-0", reading))
    assert stand.scene.design.brokers[0].registered == ["nameserver-0"]
    stand.lives["nameserver-0"] = "starting", 77
    stand.look()
    shown = stand.scene.design.servers[0]
    assert (shown.brokers, shown.topics, shown.role, shown.read_ms) == ([], [], "unknown", None)
    assert stand.scene.design.brokers[0].registered == []


def test_a_server_that_falls_silent_keeps_what_it_knew_with_the_instant_of_the_reading() -> None:
    stand = Stand()
    stand.look()
    list(stand.scene.read("nameserver-0", Reading(answered=True, role="leader", term=3, sent_ns=50 * MS)))
    list(stand.scene.read("nameserver-0", Reading(answered=False, sent_ns=90 * MS)))
    shown = stand.scene.design.servers[0]
    assert (shown.answers, shown.role, shown.read_ms) == (False, "leader", 50)


def test_a_reading_that_comes_after_the_process_has_ended_is_not_shown() -> None:
    stand = Stand()
    stand.lives["nameserver-0"] = "down", None
    stand.look()
    late = Reading(answered=True, role="leader", brokers=["broker-0"], sent_ns=MS)
    assert list(stand.scene.read("nameserver-0", late)) == []


def test_a_topic_that_is_made_again_is_the_newest_one() -> None:
    stand = Stand()
    told = []
    for topic in ("Payments", "Orders"):
        for broker in BROKERS:
            told += changes(stand.scene.made(topic, broker, begun_ns=0, acked_ns=0))
    assert [each.topics for each in told] == [["Orders", "Payments"], ["Payments", "Orders"]]
    assert stand.scene.design.topics == ["Payments", "Orders"]


def test_links_are_unknown_while_the_proxy_is_silent() -> None:
    stand = Stand()
    stand.look()
    (change,) = changes(stand.look(passes=False))
    assert change.links is not None
    assert {(each.forward, each.back) for each in change.links} == {("unknown", "unknown")}
    assert changes(stand.look(passes=False)) == []


def test_a_broker_is_cut_off_when_no_direction_of_it_is_open() -> None:
    stand = Stand()
    stand.look()
    others = [*SERVERS, *CLIENTS]
    stand.cut = {("broker-2", other) for other in others} | {(other, "broker-2") for other in others}
    spared = ("client-3", "broker-2")
    stand.cut.remove(spared)
    assert [each.fact for each in stand.look() if each.fact] == []
    stand.cut.add(spared)
    assert [(each.broker, each.fact) for each in stand.look() if each.fact] == [("broker-2", "cut")]
    stand.cut = set()
    assert [(each.broker, each.fact) for each in stand.look() if each.fact] == [("broker-2", "healed")]


def test_a_kept_route_becomes_stale_without_any_answer() -> None:
    stand = Stand()
    stand.look()
    view = View(
        observer="client", index=1, topic="Orders", state="routed", brokers=[0, 1, 2], seen_ns=50 * MS
    )
    (happened,) = stand.scene.kept(view)
    assert happened.change is not None
    stand.lives["broker-0"] = "paused", 4
    stand.look()
    (cached,) = stand.scene.design.clients[1].cached
    assert (cached.verdict, cached.by, cached.since_ms) == ("stale", "poll", 50)


def test_a_tick_tells_what_has_passed_since_the_one_before() -> None:
    stand = Stand()
    stand.look()
    assert {each.forward for each in stand.scene.tick().traffic} == {100}
    assert stand.scene.tick().traffic == []
    stand.look()
    stand.look()
    assert {each.forward for each in stand.scene.tick().traffic} == {200}
