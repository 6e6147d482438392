"""A message that is tried again after a pause holds no worker, so other messages go on at full rate.

Unreadable messages that the broker does not copy do not hold workers either.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from routekeeper.client.consumer import ConsumeResult
from routekeeper.client.queue_reader import ReceivedMessage
from routekeeper.remoting.codes import RETRY_PREFIX, RequestCode, ResponseCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import SYS_COMPRESSED, StoredMessage
from tests.client.test_consumer_sim import Broker, History, Member, World
from tests.client.test_orderly_resets import ALL, reset, seek

WORKERS = 4
FOREVER = 10**9


class Failing(History):
    """Listeners that fail at the first tries of some messages.

    Attributes:
        fails: Number of tries that fail, by queue id and offset.
        tries: For each message of ``fails``, the time of each try in s and the retries that the listener saw.
    """

    def __init__(self, world: World, fails: dict[tuple[int, int], int]) -> None:
        super().__init__(world.rng, failing=0.0)
        self.world = world
        self.fails = Counter(fails)
        self.tries: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)

    def begin(self, batch: Sequence[ReceivedMessage]) -> Callable[[], ConsumeResult]:
        (message,) = batch
        place = message.queue.queue_id, message.queue_offset
        if message.queue.topic != "T" or place not in self.fails:
            return super().begin(batch)
        self.tries[place].append((self.world.now_s, message.reconsume_times))
        if len(self.tries[place]) > self.fails[place]:
            return super().begin(batch)
        self.running[message.queue] += 1
        self.overlaps += self.running[message.queue] > 1

        def end() -> ConsumeResult:
            self.running[message.queue] -= 1
            return ConsumeResult.RECONSUME_LATER

        return end

    def gaps(self, queue_id: int, offset: int = 0) -> list[float]:
        """Return the seconds between the tries of a message."""
        return [later - earlier for (earlier, _), (later, _) in pairwise(self.tries[queue_id, offset])]


def new_world(*, queues: int = 8) -> World:
    """Return a world without losses, in which a listener takes 5 ms and a network packet 1 to 2 ms."""
    world = World(1, loss=0.0)
    world.listener_s, world.way_s = (0.005, 0.005), (0.001, 0.002)
    world.broker.queue_nums = queues
    return world


def fill(world: World, queue_ids: Iterable[int], count: int) -> set[bytes]:
    """Append ``count`` messages to each queue, and return their bodies."""
    bodies = set()
    for queue_id in queue_ids:
        for number in range(count):
            body = b"%d of %d" % (number, queue_id)
            world.broker.append("T", queue_id, body)
            bodies.add(body)
    return bodies


def stored(world: World) -> list[int]:
    """Return the offsets that the group stored, by queue id; 0 for a queue without an offset."""
    return [world.broker.offsets.get(("g", "T", number), 0) for number in range(world.broker.queue_nums)]


def time_of_healthy_queues(failing: int, *, workers: int, orderly: bool = True) -> float:
    """Return the seconds in which 4 queues are consumed while the heads of ``failing`` more queues fail."""
    world = new_world()
    fill(world, range(4, 4 + failing), 100)
    wanted = fill(world, range(4), 100)
    history = Failing(world, {(queue_id, 0): FOREVER for queue_id in range(4, 4 + failing)})
    Member(world, history, 1, orderly=orderly, workers=workers)
    world.run_until(lambda: bool(history.finished), 60)
    began_s = world.now_s
    world.run_until(lambda: wanted <= set(history.finished), 300)
    assert history.overlaps == 0
    assert [history.order[queue_id] for queue_id in range(4)] == [list(range(100))] * 4
    assert all(history.order[queue_id] == [] for queue_id in range(4, 4 + failing))
    return world.now_s - began_s


@pytest.mark.parametrize(("workers", "failing"), [(WORKERS, 3), (WORKERS, 4), (1, 1)])
def test_orderly_queues_whose_heads_fail_do_not_slow_down_other_queues(workers: int, failing: int) -> None:
    alone_s = time_of_healthy_queues(0, workers=workers)
    assert time_of_healthy_queues(failing, workers=workers) < 1.15 * alone_s


def test_a_failed_message_of_an_orderly_queue_comes_again_after_each_pause_before_its_successors() -> None:
    world = new_world()
    wanted = fill(world, range(8), 20)
    history = Failing(world, {(queue_id, 3 * queue_id): 1 + queue_id for queue_id in range(1, 6)})
    Member(world, history, 1, orderly=True, workers=WORKERS)
    world.run_until(lambda: set(history.finished) == wanted, 60)
    assert set(history.finished.values()) == {1}
    assert history.overlaps == 0
    assert [history.order[queue_id] for queue_id in range(8)] == [list(range(20))] * 8
    for queue_id in range(1, 6):
        seen = history.tries[queue_id, 3 * queue_id]
        assert [times for _, times in seen] == list(range(queue_id + 2))
        assert history.gaps(queue_id, 3 * queue_id) == pytest.approx([1.005] * (queue_id + 1), abs=0.01)
    world.run_until(lambda: stored(world) == [20] * 8, 60)


def test_a_pause_ends_in_time_although_the_worker_that_began_it_is_busy() -> None:
    world = new_world(queues=2)
    fill(world, (0, 1), 1)
    history = Failing(world, {(0, 0): 3})
    Member(world, history, 1, orderly=True, workers=2)
    world.run_until(lambda: len(history.tries[0, 0]) == 1, 60)
    world.listener_s = (0.5, 0.5)
    world.run_until(lambda: history.finished[b"0 of 0"] == 1, 60)
    assert max(history.gaps(0)) < 1.6


def test_a_member_that_closes_during_a_pause_ends_at_once(caplog: pytest.LogCaptureFixture) -> None:
    world = new_world(queues=4)
    wanted = fill(world, range(4), 3)
    history = Failing(world, {(queue_id, 1): 1 for queue_id in range(4)})
    member = Member(world, history, 1, orderly=True, workers=WORKERS)
    world.run_until(lambda: len(history.tries) == 4, 60)
    world.pass_time(0.1)
    began_s = world.now_s
    left: list[bool] = []
    world.start(member, member.consumer.close(), lambda: left.append(True))
    world.run_until(lambda: bool(left), 60)
    assert world.now_s - began_s < 0.1
    assert "abandoned" not in caplog.text
    Member(world, history, 2, orderly=True, workers=WORKERS)
    world.run_until(lambda: set(history.finished) == wanted, 60)
    assert [history.order[queue_id] for queue_id in range(4)] == [[0, 1, 2]] * 4


def test_an_orderly_queue_moves_to_another_member_during_a_pause() -> None:
    world = new_world(queues=4)
    wanted = fill(world, range(4), 3)
    history = Failing(world, {(queue_id, 1): 20 for queue_id in range(4)})
    Member(world, history, 1, orderly=True, workers=WORKERS)
    world.run_until(lambda: len(history.tries) == 4, 60)
    second = Member(world, history, 2, orderly=True, workers=WORKERS)
    world.run_until(lambda: sum(queue.topic == "T" for queue in second.consumer.assigned) == 2, 10)
    world.run_until(lambda: set(history.finished) == wanted, 60)
    assert history.overlaps == 0
    assert [history.order[queue_id] for queue_id in range(4)] == [[0, 1, 2]] * 4


@pytest.mark.parametrize("change", [reset, seek])
def test_offsets_that_change_during_a_pause_begin_a_new_order(change: Callable[[Member], None]) -> None:
    world = new_world(queues=4)
    fill(world, range(4), 4)
    history = Failing(world, {(queue_id, 1): 3 for queue_id in range(4)})
    member = Member(world, history, 1, orderly=True, workers=WORKERS)
    world.run_until(lambda: len(history.tries) == 4, 60)
    world.pass_time(0.1)
    change(member)
    world.run_until(lambda: all(history.order[queue.queue_id][-1:] == [3] for queue in ALL), 60)
    world.pass_time(5)
    assert history.overlaps == 0
    assert [history.order[queue.queue_id] for queue in ALL] == [[0, 0, 1, 2, 3]] * 4


@dataclass
class Refusing(Broker):
    """A broker that refuses to copy messages, and to store copies of consumers.

    Attributes:
        refusal: Code and remark of the answer to a request to copy; without it, no answer comes.
        asked: Time in s of each request to copy, by the message's place in the log.
    """

    refusal: tuple[int, str] | None = (ResponseCode.SYSTEM_ERROR, "look message by offset failed, 7")
    asked: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def serve(self, member: Member, request: RemotingCommand) -> tuple[float, RemotingCommand]:
        match request.code:
            case RequestCode.CONSUMER_SEND_MSG_BACK:
                self.asked[int(request.ext_fields["offset"])].append(self.world.now_s)
                if self.refusal is None:
                    return FOREVER, request.reply()
                return 0, request.reply(self.refusal[0], remark=self.refusal[1])
            case RequestCode.SEND_MESSAGE_V2:
                return 0, request.reply(ResponseCode.MESSAGE_ILLEGAL, remark="refused by the test")
        return super().serve(member, request)

    def append_unreadable(self, queue_id: int) -> None:
        log = self.queues["T", queue_id]
        log.append(
            StoredMessage(
                topic="T",
                queue_id=queue_id,
                body=b"no stream",
                sys_flag=SYS_COMPRESSED,
                queue_offset=len(log),
                physical_offset=1000 * queue_id + len(log),
            )
        )


def refusing_world(refusal: tuple[int, str] | None, *, queues: int = 4) -> tuple[World, Refusing]:
    world = new_world(queues=queues)
    broker = world.broker = Refusing(world, queue_nums=queues, refusal=refusal)
    broker.queues[RETRY_PREFIX + "g", 0]
    return world, broker


LOST = (int(ResponseCode.SYSTEM_ERROR), "look message by offset failed, 7")


def test_failed_messages_that_cannot_be_sent_back_do_not_slow_down_other_messages() -> None:
    world, _ = refusing_world(LOST)
    wanted = fill(world, range(4), 100)
    history = Failing(world, {(queue_id, 2 * number): 2 for queue_id in range(4) for number in range(3)})
    Member(world, history, 1, workers=WORKERS)
    world.run_until(lambda: bool(history.finished), 60)
    began_s = world.now_s
    world.run_until(lambda: len(history.finished) == len(wanted) - 12, 60)
    assert world.now_s - began_s < 1.0
    world.run_until(lambda: set(history.finished) == wanted, 60)
    assert set(history.finished.values()) == {1}
    assert all(history.gaps(*place) == pytest.approx([5.0] * 2, abs=0.1) for place in history.tries)
    world.run_until(lambda: stored(world) == [100] * 4, 60)


def left_behind(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if line.startswith("message left behind unread ")]


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param((ResponseCode.MESSAGE_ILLEGAL, "the message is illegal"), id="our broker"),
        pytest.param((ResponseCode.SYSTEM_ERROR, "PROPERTIES_SIZE_EXCEEDED"), id="Java's broker"),
    ],
)
def test_an_unreadable_message_that_no_broker_can_copy_is_left_behind_at_once(
    refusal: tuple[int, str], orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world, broker = refusing_world(refusal)
    for queue_id in range(4):
        broker.append_unreadable(queue_id)
    wanted = fill(world, range(4), 50)
    history = Failing(world, {})
    Member(world, history, 1, orderly=orderly, workers=WORKERS)
    world.run_until(lambda: set(history.finished) == wanted, 10)
    assert [len(times) for times in broker.asked.values()] == [1] * 4
    assert len(left_behind(caplog)) == 4
    world.run_until(lambda: stored(world) == [51] * 4, 60)


@pytest.mark.parametrize("orderly", [False, True])
def test_unreadable_messages_that_the_broker_refuses_do_not_slow_down_other_messages(
    orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world, broker = refusing_world(LOST)
    for queue_id in range(4):
        for _ in range(10):
            broker.append_unreadable(queue_id)
    wanted = fill(world, range(4), 50)
    history = Failing(world, {})
    Member(world, history, 1, orderly=orderly, workers=WORKERS)
    world.run_until(lambda: set(history.finished) == wanted, 5)
    assert left_behind(caplog) == []
    world.run_until(lambda: stored(world) == [60] * 4, 120)
    assert len(left_behind(caplog)) == 40
    for times in broker.asked.values():
        assert len(times) == 16
        assert all(5.0 <= later - earlier < 5.1 for earlier, later in pairwise(times))
    assert set(history.finished.values()) == {1}
    if orderly:
        assert history.overlaps == 0
        assert [history.order[queue_id] for queue_id in range(4)] == [list(range(10, 60))] * 4


@pytest.mark.parametrize("orderly", [False, True])
def test_an_unreadable_message_is_kept_while_its_broker_does_not_answer(
    orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world, broker = refusing_world(None)
    for queue_id in range(4):
        broker.append_unreadable(queue_id)
    wanted = fill(world, range(4), 50)
    history = Failing(world, {})
    member = Member(world, history, 1, orderly=orderly, workers=WORKERS)
    world.run_until(lambda: set(history.finished) == wanted, 10)
    world.run_until(lambda: len(broker.asked[0]) == 20, 600)
    assert left_behind(caplog) == []
    left: list[bool] = []
    member.leave(lambda: left.append(True))
    world.run_until(lambda: bool(left), 60)
    assert stored(world) == [0] * 4, "they are tried again"
    broker.refusal = (ResponseCode.SUCCESS, "")
    Member(world, history, 2, orderly=orderly, workers=WORKERS)
    world.run_until(lambda: stored(world) == [51] * 4, 60)
    assert left_behind(caplog) == []
