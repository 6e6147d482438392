"""Layout of brokers' nodes in ZooKeeper, as in RocketMQ's predecessor MetaQ.

This module does no I/O and reads no clock.

- Ephemeral ``/meta/brokers/ids/ID/master`` holds the address of a broker.
- Ephemeral ``/meta/brokers/topics-pub/TOPIC/ID-m`` and ``topics-sub/TOPIC/ID-m`` hold the number of the
  broker's queues of a topic.

Source: MetaZookeeper of metamorphosis (MetaQ 1.4): brokerIdsPath, brokerTopicsPubPath, brokerIdsPathOf.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from routekeeper.bench.arms.interface import CLUSTER, broker_name
from routekeeper.remoting.codes import MASTER_ID, PERM_READ, PERM_WRITE
from routekeeper.remoting.route import BrokerData, QueueData, TopicRouteData

ROOT: Final = "/meta/brokers"
IDS: Final = f"{ROOT}/ids"
TOPICS_PUB: Final = f"{ROOT}/topics-pub"
TOPICS_SUB: Final = f"{ROOT}/topics-sub"
_SCHEME: Final = "meta://"
_MASTER: Final = "-m"


def master_path(index: int) -> str:
    return f"{IDS}/{index}/master"


def topic_path(topic: str) -> str:
    """Return the path of the node whose children are the brokers that accept messages of the topic."""
    return f"{TOPICS_PUB}/{topic}"


def topic_child(index: int) -> str:
    return f"{index}{_MASTER}"


def child_index(name: str) -> int | None:
    """Return N if ``name``, the name of a topic's child node, is ``N-m`` (a master broker); else None."""
    number, mark, rest = name.partition(_MASTER)
    return int(number) if mark and not rest and number.isdigit() else None


def encode_addr(addr: str) -> bytes:
    return f"{_SCHEME}{addr}".encode()


def decode_addr(data: bytes) -> str:
    """Return ``host:port`` from the data of a broker's master node.

    Raises:
        ValueError: If the data is not an address in MetaQ's form.
    """
    text = data.decode()
    if not text.startswith(_SCHEME):
        raise ValueError(f"broker address {text!r} does not start with {_SCHEME}")
    return text[len(_SCHEME) :]


def nodes_of(index: int, addr: str, topics: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the data of every ephemeral node of a broker.

    The nodes of topics come first, so that a client that finds a broker's address also finds its topics.
    """
    for topic, queues in topics.items():
        for root in (TOPICS_PUB, TOPICS_SUB):
            yield f"{root}/{topic}/{topic_child(index)}", str(queues).encode()
    yield master_path(index), encode_addr(addr)


def route_of(queues: Mapping[int, bytes], masters: Mapping[int, bytes]) -> TopicRouteData:
    """Return a topic's route, without the brokers that lack an address or queues.

    Args:
        queues: Data of the brokers' nodes below the topic, by broker.
        masters: Data of the brokers' master nodes, by broker.
    """
    both = sorted(queues.keys() & masters.keys())
    return TopicRouteData(
        queue_datas=tuple(
            QueueData(
                broker_name=broker_name(index),
                read_queue_nums=int(queues[index]),
                write_queue_nums=int(queues[index]),
                perm=PERM_READ | PERM_WRITE,
            )
            for index in both
        ),
        broker_datas=tuple(
            BrokerData(
                cluster=CLUSTER,
                broker_name=broker_name(index),
                broker_addrs={MASTER_ID: decode_addr(masters[index])},
            )
            for index in both
        ),
    )
