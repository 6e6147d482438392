"""Simulation of one broker on a simulated disk. A seed decides all requests, disk faults, stops and restarts.

The handlers, the tables, the store and the recovery are the code of the real broker. Class Simulation
replaces the broker's sockets, event loop and threads. The real broker uses the disk in a thread, and serves
requests at the same time. Therefore the simulation serves requests and does other work during each call of
the simulated disk.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path

from routekeeper.broker.config import BrokerConfig
from routekeeper.broker.errors import StoreUnavailable
from routekeeper.broker.requests.handlers import Outcome, serve
from routekeeper.broker.server.delay import deliver_due, oldest_waiting
from routekeeper.broker.server.loading import load_broker
from routekeeper.broker.store.files import read_whole
from routekeeper.broker.store.mending import Mending
from routekeeper.broker.store.messages import GetStatus
from routekeeper.broker.store.steps import Steps, run_here
from routekeeper.broker.tables.state import BrokerState, Call, Later, Stepwise, Work
from routekeeper.broker.tables.state_files import TOPICS as TOPIC_TABLE
from routekeeper.broker.tables.state_files import Failure, LogFlush, StateFiles
from routekeeper.broker.tables.topics import SCHEDULE_TOPIC, retry_topic
from routekeeper.remoting.bodies import SubscriptionGroupConfig
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.message import BatchItem, Host, decode_messages, encode_batch

from .disk import PowerCut, SimulatedDisk

ROOT = Path("/data/broker")
HOST = Host("127.0.0.1", 10911)
TOPICS = ("A", "B", "C")
QUEUES = 2
GROUP = "G"
CONFIG = BrokerConfig(
    flush_disk_type="SYNC_FLUSH",
    log_file_size=3000,
    queue_file_size=160,
    message_delay_level="1s 5s",
    index_file_messages=7,
)


def result_of(work: Work) -> RemotingCommand:
    """Run all steps of a query without other work between them, and return its answer."""
    try:
        step = next(work)
        while True:
            step = work.send(step())
    except StopIteration as end:
        answer: RemotingCommand = end.value
        return answer


class Broken(AssertionError):
    """A guarantee of the broker was broken."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A message that was acknowledged.

    Attributes:
        life: Number of the topic's life. If a topic is deleted and created again, another life begins.
    """

    topic: str
    life: int
    queue_id: int
    offset: int
    body: bytes
    physical_offset: int


@dataclass(slots=True)
class Truth:
    """State that the broker must have after its answers. A topic's "life" ends with its deletion.

    Attributes:
        lives: Number of the last life of each topic.
        births: Number of each life. The key is the topic, and the end of the log when the life began.
        dead: Lives that must be over, because the broker acknowledged the deletion of the topic or an
            operation in a later life of the topic.
        doubtful: Lives that may be over, because a deletion was requested.
        joined: Lives that the broker continues as one life, because no topic table recorded the deletion
            between them. Messages of all these lives may be found.
        delayed: Topic and life of each message that is to be delivered later, by the message's body.
        retried: Number of acknowledgements of each message that was sent back, by the message's body.
        groups: Requested values of a group's maximum number of retries, in the order of the requests.
        group_from: Index in ``groups`` of the last acknowledged request, or -1 if there is none.
        log_min: Log offset below which messages may be missing, because the broker removed old log files.
        log_min_next: Log offset up to which the broker has begun to remove log files. If a crash interrupts
            the removal, the next start completes it.
        came: Bodies of messages that were delivered before old log files were removed.
        is_full: True if the broker has removed log files with waiting messages, because the disk was full.
    """

    lives: dict[str, int] = field(default_factory=dict)
    births: dict[tuple[str, int], int] = field(default_factory=dict)
    dead: set[tuple[str, int]] = field(default_factory=set)
    doubtful: set[tuple[str, int]] = field(default_factory=set)
    joined: set[tuple[str, int]] = field(default_factory=set)
    stored: list[Stored] = field(default_factory=list)
    delayed: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    retried: Counter[bytes] = field(default_factory=Counter)
    groups: list[int] = field(default_factory=list)
    group_from: int = -1
    log_min: int = 0
    log_min_next: int = 0
    came: set[bytes] = field(default_factory=set)
    is_full: bool = False


class Simulation:
    """One simulation of a store, with its stops and restarts.

    Args:
        forgets: See :class:`SimulatedDisk`.
        spoil: Called after each start, to plant a fault.
    """

    def __init__(
        self,
        seed: int,
        *,
        forgets: Callable[[str, Path], bool] = lambda _kind, _path: False,
        spoil: Callable[[Simulation], None] = lambda _simulation: None,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.disk = SimulatedDisk(seed, forgets=forgets)
        self.truth = Truth()
        self.count: Counter[str] = Counter()
        self.now_ms = 1_700_000_000_000
        self.boot = 0
        self._number = 0
        self._last_life = 0
        self._depth = 0
        self._busy: set[str] = set()
        self._spoil = spoil
        self._faulty = self.rng.random() < 0.5
        self._ages = self.rng.random() < 0.3
        self._fills = self._ages and self.rng.random() < 0.5
        self._damaged = False
        self.state: BrokerState
        self.files: StateFiles
        self.flush: LogFlush
        self.disk.between = self._between

    # Course of a simulation ----------------------------------------------------------------------

    def run(self, steps: int = 120) -> None:
        """Run the simulation.

        Raises:
            Broken: If a guarantee was broken.
        """
        self._start()
        for _ in range(self.rng.randint(1, 5)):
            self._live(steps)
            self._return()
        self.disk.is_full = False
        self.disk.fault_rate = 0.0
        self._deliver_everything()
        self._judge()
        self._judge_deliveries()

    def _live(self, steps: int) -> None:
        """Serve until a power cut, a kill, or a clean stop."""
        if self.rng.random() < 0.7:
            self.disk.cut_at = self.disk.calls + self.rng.randint(1, steps * 3)
        self.disk.fault_rate = self.rng.choice((0.0, 0.01, 0.05)) if self._faulty else 0.0
        self.disk.read_fault_rate = self.rng.choice((0.0, 0.05)) if self._faulty else 0.0
        try:
            for _ in range(steps):
                if self._faulty and self.rng.random() < 0.02:
                    self.disk.is_full = not self.disk.is_full
                if self.rng.random() < 0.6:
                    self._request()
                else:
                    self._work()
            self.disk.cut_at = None
            if self.rng.random() < 0.3:
                self._stop()
        except PowerCut:
            self._lose_power()
            return
        finally:
            self.disk.read_fault_rate = 0.0
        if self.rng.random() < 0.5:
            self.count["kills"] += 1
            self.disk.end_process()
        else:
            self._lose_power()

    def _lose_power(self) -> None:
        self.count["power cuts"] += 1
        self.disk.lose_power()
        self.boot += 1

    def _return(self) -> None:
        """Start the broker again, perhaps after failed starts, and check the content of its store."""
        self.disk.is_full = False
        self.disk.fault_rate = 0.0
        self._damaged = False
        if self.rng.random() < 0.2:
            self._damage_table()
        while self.rng.random() < 0.3:
            self.disk.cut_at = self.disk.calls + self.rng.randint(1, 40)
            try:
                self._start()
            except PowerCut:
                self.count["power cuts while starting"] += 1
                self._lose_power()
            else:
                self.disk.end_process()
        self._start()
        self._judge()

    def _damage_table(self) -> None:
        """Cut the topic table to half its size, if the table has a backup with a checksum."""
        path = ROOT / "config" / TOPIC_TABLE
        backup, sums = (path.with_name(path.name + suffix) for suffix in (".bak", ".sha256"))
        if not all(map(self.disk.is_there, (path, backup, sums))):
            return
        if sha256(read_whole(self.disk, backup)).hexdigest() not in read_whole(self.disk, sums).decode():
            return  # a power cut stopped the last write of the table before its backup was replaced
        if self.disk.is_same(path, backup):
            return  # a power cut came when table and backup were two names (hard links) of one file
        self.disk.sync_directory(path.parent)
        fd = self.disk.open(path)
        self.disk.cut(fd, self.disk.size(fd) // 2)
        self.disk.sync(fd)
        self.disk.end_process()
        self._damaged = True
        self.count["topic tables damaged"] += 1

    def _start(self) -> None:
        self._busy.clear()
        self._depth = 1  # while the broker starts, ``_between`` must serve no request
        self.disk.now = self.now_ms / 1000
        self.state, self.files = load_broker(
            self.disk, ROOT, CONFIG, store_host=HOST, boot=f"boot {self.boot}", now_ms=self.now_ms
        )
        self.flush = LogFlush(self.state.store)
        self._follow_removals()
        self._spoil(self)
        self._depth = 0
        self.count["starts"] += 1

    def _follow_removals(self) -> None:
        """Record in ``self.truth`` up to which log offset this broker removes old log files.

        The broker first stores at which offset the log begins, and then removes the files. If it crashes
        meanwhile, its next start removes them.
        """
        store, truth = self.state.store, self.truth
        truth.log_min = max(truth.log_min, min(store.log.min_offset, truth.log_min_next))
        note = store.note_begin

        def noted(offset: int) -> None:
            truth.log_min_next = max(truth.log_min_next, offset)
            note(offset)

        store.note_begin = noted  # type: ignore[method-assign]

    def _stop(self) -> None:
        """Write everything to the disk, as the broker does when it stops cleanly."""
        self._depth = 1
        for file in self.files:
            run_here(file.save(whole=True))
        try:
            self.state.store.close()
        except (OSError, StoreUnavailable):
            pass
        self._depth = 0
        self.count["clean ends"] += 1

    # Work with the disk --------------------------------------------------------------------------

    def _work(self) -> None:
        store = self.state.store
        kinds: dict[str, Callable[[], Steps]] = {file.name: file.save for file in self.files}
        kinds |= {"flush": self.flush.flush, "store": store.checkpoint, "index": store.index.follow}
        if self._ages:
            kinds["age"] = self._remove_old_files
        if self._fills:
            kinds["oldest"] = self._remove_oldest_file
        kinds["topics.json whole"] = partial(self.files.topics.save, whole=True)
        name = self.rng.choice([*kinds, "flush", "topics.json", "topics.json"])
        lane = "store" if name in ("age", "oldest") else name.removesuffix(" whole")
        if lane in self._busy or store.log._flushing.locked():
            return
        self._busy.add(lane)
        try:
            self._drive(kinds[name]())
        except (OSError, StoreUnavailable, Mending):
            pass  # the real broker logs the error and tries again
        finally:
            self._busy.discard(lane)
            self.truth.log_min = max(self.truth.log_min, store.log.min_offset)

    def _remove_old_files(self) -> Steps:
        """Remove old log files, as the broker does while the disk has room.

        Messages that still wait for their delivery stay.
        """
        # Record all delivered messages now, because a later removal may remove them from the log.
        self.truth.came |= {body for topic in TOPICS for _, _, body, _ in self._messages(topic)}
        age_s = self.rng.choice((0, 20))
        keep_from = oldest_waiting(self.state)
        return self.state.store.remove_old_files(before=self.now_ms / 1000 - age_s, keep_from=keep_from)

    def _remove_oldest_file(self) -> Steps:
        """Remove the oldest log file, as the broker does while the disk is nearly full."""
        self.truth.is_full = True
        return self.state.store.remove_old_files(before=math.inf, count_max=1)

    def _drive(self, steps: Steps) -> None:
        try:
            work = next(steps)
            while True:
                self._depth += 1
                try:
                    outcome = work()
                except Exception as error:
                    self._depth -= 1
                    work = steps.throw(error)
                else:
                    self._depth -= 1
                    work = steps.send(outcome)
        except StopIteration:
            pass

    def _between(self) -> None:
        """Serve a request or do other work, as the broker may while a thread waits for the disk."""
        if self._busy and self._depth == 1 and self.rng.random() < 0.15:
            before, self._depth = self._depth, 0
            busy = set(self._busy)
            try:
                if self.rng.random() < 0.7:
                    self._depth = 2  # while this request is served, ``_between`` must run nothing else
                    self._request()
                elif len(self._busy) < 2:
                    self._depth = 1
                    self._work()
            finally:
                self._depth = before
                self._busy = busy

    # Requests ------------------------------------------------------------------------------------

    def _request(self) -> None:
        self.now_ms += self.rng.choice((0, 1, 50, 1500))
        self.disk.now = self.now_ms / 1000
        kind = self.rng.choices(
            ("send", "batch", "delay", "retry", "delete", "create", "commit", "group", "deliver", "query"),
            (10, 2, 3, 3, 0.5, 0.7, 1, 0.5, 3, 1),
        )[0]
        getattr(self, f"_{kind}")()

    def _ask(
        self, code: int, ext: dict[str, str], body: bytes, acknowledged: Callable[[RemotingCommand], None]
    ) -> None:
        """Serve a request. Call ``acknowledged`` if the answer says that the request succeeded."""
        self.count[f"request {code}"] += 1
        call = Call(
            request=RemotingCommand.request(code, ext, body),
            connection=1,
            peer=HOST,
            now_ms=self.now_ms,
            now=self.now_ms / 1000,
        )
        outcome: Outcome | None = None
        try:
            outcome = serve(self.state, call)
        except OSError:
            # The real broker answers such a request with an error.
            self.count["requests whose reads failed"] += 1
        for topic in TOPICS:
            born = self.state.topics.born_at(topic)
            if born is not None:
                self.truth.births[topic, born] = self.truth.lives[topic]
        if outcome is None:
            return
        if isinstance(outcome, RemotingCommand):
            if outcome.code == 0:
                acknowledged(outcome)
            return
        assert isinstance(outcome, Later)
        reply = outcome.reply
        missing = [0]

        def done(failure: Failure) -> None:
            missing[0] -= 1 if failure is None else -1000
            if missing[0] == 0:
                self.count["acknowledged"] += 1
                acknowledged(reply)

        for file, wanted in (
            (self.files.topics, outcome.topics_saved),
            (self.files.groups, outcome.groups_saved),
            (self.files.offsets, outcome.offsets_saved),
        ):
            if wanted:
                missing[0] += 1
                file.when_saved(done)
        if outcome.log_offset:
            missing[0] += 1
            self.flush.when_flushed(outcome.log_offset, done)

    def _life(self, topic: str) -> int:
        """Return the number of a topic's current life. Begin a life if the topic does not exist."""
        if topic not in self.state.topics:
            self._last_life += 1
            self.truth.lives[topic] = self._last_life
        return self.truth.lives[topic]

    def _body(self, topic: str, life: int) -> bytes:
        self._number += 1
        return b"%s %d %d %s" % (
            topic.encode(),
            life,
            self._number,
            b"x" * self.rng.choice((0, 0, 30, 200)),
        )

    def _fields(self, topic: str, **changes: str) -> dict[str, str]:
        queue_id = str(self.rng.randrange(QUEUES))
        fields = {
            "a": "P",
            "b": topic,
            "c": "TBW102",
            "d": str(QUEUES),
            "e": queue_id,
            "f": "0",
            "g": "0",
            "h": "0",
            "i": f"KEYS\x01{self._number} {topic}\x02",
        }
        return fields | changes

    def _send(self) -> None:
        topic = self.rng.choice(TOPICS)
        life = self._life(topic)
        body = self._body(topic, life)

        def acknowledged(reply: RemotingCommand) -> None:
            self._keep(topic, life, [body], reply)

        self._ask(310, self._fields(topic), body, acknowledged)

    def _batch(self) -> None:
        topic = self.rng.choice(TOPICS)
        life = self._life(topic)
        bodies = [self._body(topic, life) for _ in range(self.rng.randint(1, 4))]

        def acknowledged(reply: RemotingCommand) -> None:
            self._keep(topic, life, bodies, reply)

        items = (
            BatchItem(body=body, properties=f"KEYS\x01{body.split()[2].decode()}\x02") for body in bodies
        )
        self._ask(320, self._fields(topic, i=""), encode_batch(items), acknowledged)

    def _keep(self, topic: str, life: int, bodies: list[bytes], reply: RemotingCommand) -> None:
        first, queue_id = int(reply.ext_fields["queueOffset"]), int(reply.ext_fields["queueId"])
        for index, (body, text) in enumerate(zip(bodies, reply.ext_fields["msgId"].split(","), strict=True)):
            self.truth.stored.append(Stored(topic, life, queue_id, first + index, body, int(text[-16:], 16)))
        self._lives_now(topic, life)

    def _lives_now(self, topic: str, life: int) -> None:
        """Record that an operation in a topic's life was acknowledged, so the earlier lives must be over."""
        self.truth.dead |= {(topic, earlier) for earlier in range(life)}

    def _delay(self) -> None:
        topic = self.rng.choice(TOPICS)
        life = self._life(topic)
        body = self._body(topic, life)

        def acknowledged(_reply: RemotingCommand) -> None:
            self.truth.delayed[body] = topic, life
            self._lives_now(topic, life)

        properties = f"KEYS\x01{self._number}\x02DELAY\x01{self.rng.randint(1, 2)}\x02"
        self._ask(310, self._fields(topic, i=properties), body, acknowledged)

    def _retry(self) -> None:
        alive = [
            message for message in self.truth.stored[-20:] if message.physical_offset >= self.truth.log_min
        ]
        if not alive:
            return
        message = self.rng.choice(alive)

        def acknowledged(_reply: RemotingCommand) -> None:
            self.truth.retried[message.body] += 1

        self._ask(
            36,
            {"offset": str(message.physical_offset), "group": GROUP, "delayLevel": "1", "originMsgId": ""},
            b"",
            acknowledged,
        )

    def _delete(self) -> None:
        topic = self.rng.choice(TOPICS)
        life = self.truth.lives.get(topic, 0)
        if topic not in self.state.topics:
            return
        self.truth.doubtful.add((topic, life))
        over = {(topic, earlier) for earlier in range(self._last_life + 1)}

        def acknowledged(_reply: RemotingCommand) -> None:
            self.truth.dead |= over
            self.truth.joined -= over

        self._ask(215, {"topic": topic}, b"", acknowledged)

    def _create(self) -> None:
        topic = self.rng.choice(TOPICS)
        life = self._life(topic)
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(QUEUES),
            "writeQueueNums": str(self.rng.randint(1, QUEUES)),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
        }
        self._ask(17, ext, b"", lambda _: self._lives_now(topic, life))

    def _commit(self) -> None:
        topic, queue_id = self.rng.choice(TOPICS), self.rng.randrange(QUEUES)
        offset = self.state.store.bounds(topic, queue_id)[1]
        ext = {"consumerGroup": GROUP, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
        self._ask(15, ext, b"", lambda _: None)

    def _group(self) -> None:
        tries = self.rng.randint(1, 1000)
        self.truth.groups.append(tries)
        position = len(self.truth.groups) - 1
        body = SubscriptionGroupConfig(group_name="H", retry_max_times=tries).encode()

        def acknowledged(_reply: RemotingCommand) -> None:
            self.truth.group_from = max(self.truth.group_from, position)

        self._ask(200, {}, body, acknowledged)

    def _deliver(self) -> None:
        try:
            deliver_due(self.state, now_ms=self.now_ms)
        except (StoreUnavailable, OSError):
            pass  # the real broker tries again

    def _query(self) -> None:
        """Query an acknowledged message by its key, perhaps while other work waits for the disk."""
        try:
            self._judge_query(self.truth.stored[-self.rng.randint(1, 40) :][:1])
        except OSError:
            self.count["queries whose reads failed"] += 1

    # Judging -------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Compare the store's content with the guarantees in ``self.truth``."""
        found = {topic: list(self._messages(topic)) for topic in TOPICS}
        for topic in TOPICS:
            lives = {int(body.split()[1]) for _, _, body, _ in found[topic]}
            born = self.state.topics.born_at(topic)
            # If a deletion was not acknowledged, the topic may still exist in the life before the deletion.
            if born is not None:
                self.truth.lives[topic] = self._life_born_at(topic, born, lives)
                self.truth.births[topic, born] = self.truth.lives[topic]
            now = None if born is None else self.truth.lives[topic]
            # If the topic table lost the second creation of a topic, messages of both lives may be found in
            # one life. Such lives are in ``joined``, and do not count as dead.
            dead = self.truth.dead - self.truth.joined
            if any((topic, life) in dead for life in {now, *lives}):
                raise Broken(f"messages of a deleted topic are back: {topic} lives {sorted(lives)} now {now}")
        there = {topic: {item[:3] for item in items} for topic, items in found.items()}
        for message in self.truth.stored:
            life = message.topic, message.life
            if life in self.truth.dead or (life in self.truth.doubtful and not self._lives(*life)):
                continue
            if self.state.store.bounds(message.topic, message.queue_id)[1] <= message.offset:
                raise Broken(f"queue ends before an acknowledged message, even if it has expired: {message}")
            if message.physical_offset < self.truth.log_min:
                continue
            if (message.queue_id, message.offset, message.body) not in there[message.topic]:
                raise Broken(f"acknowledged message is lost: {message}")
        self.count["messages judged"] += len(self.truth.stored)
        run_here(self.state.store.index.follow())
        self._judge_query(self.truth.stored)
        for topic, group in self.state.offsets.pairs():
            for queue_id, offset in self.state.offsets.queues(topic, group).items():
                if offset > self.state.store.bounds(topic, queue_id)[1]:
                    raise Broken(f"group {group} is behind the end of {topic} {queue_id}: {offset}")
        config = self.state.groups.get("H")
        times = None if config is None else config.retry_max_times
        if self.truth.group_from >= 0 and times not in self.truth.groups[self.truth.group_from :]:
            raise Broken(f"an acknowledged group is lost, found {times}")

    def _judge_query(self, messages: list[Stored]) -> None:
        """Query messages by their keys. Messages of the topic's current life must be found."""
        for message in messages:
            life = message.topic, message.life
            if not self._lives(*life) or life in self.truth.doubtful:
                continue
            ext = {"topic": message.topic, "key": message.body.split()[2].decode(), "maxNum": "64",
                   "beginTimestamp": "0", "endTimestamp": str(self.now_ms)}  # fmt: skip
            outcome = serve(
                self.state,
                Call(
                    request=RemotingCommand.request(12, ext),
                    connection=1,
                    peer=HOST,
                    now_ms=self.now_ms,
                    now=self.now_ms / 1000,
                ),
            )
            assert isinstance(outcome, Stepwise)
            answer = result_of(outcome.work)
            store = self.state.store
            if not store.log.min_offset <= message.physical_offset < store.index.position:
                continue  # the message was removed because of its age, or is not in the index yet
            if message.body not in [found.body for found in decode_messages(answer.body)]:
                raise Broken(f"message is not found by its key: {message} {answer.remark}")
            self.count["queries judged"] += 1

    def _life_born_at(self, topic: str, born: int, lives: set[int]) -> int:
        """Return the last life of a topic that may have begun at the log offset ``born``.

        The simulation records the log offset of each birth. It may differ from ``born`` in two cases:

        - A power cut removed the end of the log. A later birth then counts as a birth at the new end.
        - The table lacked the topic, so the broker found the topic in the log. Then ``born`` is the end of
          the log that the table recorded.

        Args:
            lives: Lives to which the topic's stored messages belong.
        """
        end = self.state.store.log.max_offset
        births = [(life, at) for (name, at), life in self.truth.births.items() if name == topic]
        exact = [life for life, at in births if min(at, end) == born]
        if not exact or (self._damaged and born == self.state.topics.known_until):
            later = [life for life, at in births if at >= born]
            # A deletion that no table contains did not happen, so the lives before and after it are one life.
            # Add later lives even if they have no stored message yet, because their messages may be delayed.
            self.truth.joined |= {(topic, life) for life in {*lives, *later}} - self.truth.dead
            return max(lives.intersection(exact + later) or exact or later)
        return max(exact)

    def _lives(self, topic: str, life: int) -> bool:
        return topic in self.state.topics and self.truth.lives.get(topic) == life

    def _messages(self, topic: str) -> Iterator[tuple[int, int, bytes, int]]:
        store = self.state.store
        for queue_id in range(QUEUES):
            offset, end = store.bounds(topic, queue_id)
            while offset < end:
                batch = store.get(topic, queue_id, offset, count_max=32, bytes_max=1 << 20)
                if batch.status not in (GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING):
                    raise Broken(f"{topic} {queue_id} cannot be read at {offset}: {batch.status}")
                for message in decode_messages(batch.body):
                    if message.topic != topic or message.queue_id != queue_id:
                        raise Broken(f"{topic} {queue_id} holds a message of {message.topic}")
                    yield queue_id, message.queue_offset, message.body, message.physical_offset
                if batch.next_begin <= offset:
                    raise Broken(f"{topic} {queue_id} does not go on at {offset}")
                offset = batch.next_begin

    def _deliver_everything(self) -> None:
        self.now_ms += 60_000
        while deliver_due(self.state, now_ms=self.now_ms) == 0.0:
            pass

    def _judge_deliveries(self) -> None:
        truth = self.truth
        for body, (topic, life) in truth.delayed.items():
            if (topic, life) in truth.dead | truth.doubtful or body in truth.came or truth.is_full:
                continue
            if body not in {item[2] for item in self._messages(topic)}:
                raise Broken(f"acknowledged delayed message is lost: {body!r}")
        retried = Counter(item[2] for item in self._messages_of_retries())
        for body, times in truth.retried.items():
            if retried[body] < times and truth.log_min == 0:
                raise Broken(f"message sent back {times} times came back {retried[body]} times: {body!r}")
        self.count["deliveries judged"] += len(truth.delayed) + truth.retried.total()
        _, waiting = self.state.store.bounds(SCHEDULE_TOPIC, 0)
        self.count["delayed"] += waiting

    def _messages_of_retries(self) -> Iterator[tuple[int, int, bytes, int]]:
        yield from self._messages(retry_topic(GROUP))
