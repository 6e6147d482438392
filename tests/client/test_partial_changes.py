"""Changes at several queues or brokers, some of which fail.

The client makes all other changes, and its error names the failed changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from routekeeper.client.admin import Admin
from routekeeper.client.config import ClientConfig, ConsumeFrom, PullConsumerConfig
from routekeeper.client.core import ClientCore
from routekeeper.client.errors import NotApplied, OutcomeUnknown
from routekeeper.client.operation import Operation, Sleep
from routekeeper.client.pull_consumer import PullConsumerCore
from routekeeper.remoting.bodies import ConsumerIdList, HeartbeatData, MessageQueue
from routekeeper.remoting.codes import RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import BrokerData, ClusterInfo, TopicConfig, encode_cluster_info

NAMES = ("broker-a", "broker-b", "broker-c")
REFUSED = ResponseCode.NO_PERMISSION


class Brokers:
    """Three scripted brokers with two queues each. The first broker is the nameserver, too.

    Attributes:
        stored: Offsets that the brokers stored, by broker name and queue id.
        refusing: Names of brokers that refuse changes of offsets and topics.
        silent: Names of brokers that do not answer such changes.
        topics: Names of brokers that have created the topic.
    """

    def __init__(self, new_peer: Callable[[], Any], answers: Any, route_body: Callable[..., bytes]) -> None:
        self.peers = {name: new_peer() for name in NAMES}
        self.members: set[str] = set()
        self.stored: dict[tuple[str, int], int] = {}
        self.refusing: set[str] = set()
        self.silent: set[str] = set()
        self.topics: list[str] = []
        addrs = {name: peer.addr for name, peer in self.peers.items()}
        self._known = answers({"T": route_body(queues=2, **addrs)})
        self._clusters = ClusterInfo(
            broker_addr_table={
                name: BrokerData(cluster="C", broker_name=name, broker_addrs={0: addr})
                for name, addr in addrs.items()
            },
            cluster_addr_table={"C": NAMES},
        )
        for name, peer in self.peers.items():
            peer.answer = lambda request, name=name: self.answer(name, request)

    def answer(self, name: str, request: RemotingCommand) -> Any:
        fields = request.ext_fields
        match request.code:
            case RequestCode.HEART_BEAT:
                self.members.add(HeartbeatData.decode(request.body).client_id)
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                return request.reply(body=ConsumerIdList(consumer_ids=tuple(self.members)).encode())
            case RequestCode.QUERY_CONSUMER_OFFSET:
                return request.reply(ext_fields={"offset": "0"})
            case RequestCode.PULL_MESSAGE:
                # Do not answer: like a broker that waits for a new message (long polling).
                return None
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                return request.reply(body=encode_cluster_info(self._clusters))
            case RequestCode.UPDATE_CONSUMER_OFFSET | RequestCode.UPDATE_AND_CREATE_TOPIC:
                if name in self.refusing:
                    return request.reply(REFUSED, remark="not today")
                if name in self.silent:
                    return None
                if request.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
                    self.topics.append(name)
                else:
                    self.stored[name, int(fields["queueId"])] = int(fields["commitOffset"])
        return self._known(request)

    @property
    def config(self) -> ClientConfig:
        # Only a test with a silent broker waits for a timeout. Nothing else may time out on a busy machine.
        timeout_s = 1.5 if self.silent else 20.0
        addr = self.peers["broker-a"].addr
        return ClientConfig(nameservers=(addr,), call_timeout_s=timeout_s, shutdown_s=0.5)


@pytest.fixture
def brokers(new_peer: Any, answers: Any, route_body: Any) -> Brokers:
    return Brokers(new_peer, answers, route_body)


def committing(core: ClientCore, mend: Callable[[], None] | None = None) -> Operation[None]:
    """Commit offset 5 of all six queues.

    If the commit fails, call ``mend``, which repairs the brokers, and commit again.
    """
    config = PullConsumerConfig(group="g", consume_from=ConsumeFrom.FIRST_OFFSET, auto_commit=False)
    consumer = PullConsumerCore(core, config, {"T": "*"})
    yield from consumer.start()
    try:
        while len(consumer.assigned) < 6:
            yield Sleep(0.01)
        for queue in consumer.assigned:
            yield from consumer.seek(queue, 5)
        try:
            yield from consumer.commit()
        except NotApplied:
            if mend is None:
                raise
            mend()
            yield from consumer.commit()
    finally:
        yield from consumer.close()


def queues_of(*names: str) -> set[MessageQueue]:
    return {MessageQueue(topic="T", broker_name=name, queue_id=number) for name in names for number in (0, 1)}


def stored_at(*names: str) -> dict[tuple[str, int], int]:
    return {(queue.broker_name, queue.queue_id): 5 for queue in queues_of(*names)}


@pytest.mark.parametrize("refusing", NAMES)
def test_a_commit_that_one_broker_refuses_is_stored_at_the_others(
    refusing: str, brokers: Brokers, run: Any
) -> None:
    brokers.refusing = {refusing}
    with pytest.raises(NotApplied) as raised:
        run(brokers.config, committing)
    assert brokers.stored == stored_at(*(name for name in NAMES if name != refusing))
    failures = raised.value.failures  # type: ignore[attr-defined]
    assert set(failures) == queues_of(refusing)
    assert "2 of 6" in str(raised.value)
    assert refusing in str(raised.value)
    assert "not today" in str(raised.value)


def test_a_commit_that_one_broker_does_not_answer_has_an_unknown_outcome(brokers: Brokers, run: Any) -> None:
    brokers.refusing, brokers.silent = {"broker-b"}, {"broker-a"}
    with pytest.raises(OutcomeUnknown) as raised:
        run(brokers.config, committing)
    assert brokers.stored == stored_at("broker-c")
    failures = raised.value.failures  # type: ignore[attr-defined]
    assert set(failures) == queues_of("broker-a", "broker-b")


def test_the_next_commit_stores_only_the_offsets_that_failed(brokers: Brokers, run: Any) -> None:
    brokers.refusing = {"broker-b"}
    before: list[dict[tuple[str, int], int]] = []

    def mend() -> None:
        brokers.refusing = set()
        before.append(dict(brokers.stored))
        brokers.stored.clear()

    run(brokers.config, lambda core: committing(core, mend))
    assert before == [stored_at("broker-a", "broker-c")]
    assert brokers.stored == stored_at("broker-b")


@pytest.mark.parametrize(
    ("refusing", "silent", "kind"),
    [({"broker-a"}, set(), NotApplied), ({"broker-b"}, {"broker-a"}, OutcomeUnknown)],
    ids=["one refuses", "one refuses and one is silent"],
)
def test_a_topic_is_created_at_each_broker_of_a_cluster_that_takes_it(
    refusing: set[str], silent: set[str], kind: type[Exception], brokers: Brokers, run: Any
) -> None:
    brokers.refusing, brokers.silent = refusing, silent
    topic = TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
    with pytest.raises(kind) as raised:
        run(brokers.config, lambda core: Admin(core.directory).create_topic_in_cluster("C", topic))
    others = [name for name in NAMES if name not in refusing | silent]
    assert brokers.topics == others
    failures = raised.value.failures  # type: ignore[attr-defined]
    assert set(failures) == {brokers.peers[name].addr for name in refusing | silent}
    assert f"{len(refusing | silent)} of 3" in str(raised.value)
