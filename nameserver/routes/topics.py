"""The topics of a route table, with queue data by broker name, and the numbers that they add to digests."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, repeat
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec.structs import astuple, replace

from routekeeper.nameserver.commands import QueueMapping, TopicQueues
from routekeeper.nameserver.types import BrokerName
from routekeeper.remoting.registration import TopicNumbers
from routekeeper.remoting.route import QueueData
from routekeeper.remoting.steps import STEP, Steps, in_chunks

from .entries import (
    MASK,
    NO_MAPPINGS,
    NO_QUEUES,
    SLICE,
    QueueSet,
    Share,
    TopicEntry,
    host_mark,
    made_of,
    mark_of,
    mark_of_topic,
    sum_of_products,
)
from .room import Ledger, size_of
from .tombstones import Tombstones

_T = TypeVar("_T")

Numbers: TypeAlias = tuple[int, ...]
"""Numbers of a topic at a broker, in this order: read queues, write queues, permission and flag."""

SHARES_SPARE: Final = 1000
"""A broker name keeps at most this number of queue data values, plus two values for each of its topics.

Some of these values belong to no topic at present. They are kept because topics may get them again.
"""

COPIED_FROM: Final = 20_000
"""A change of at least this number of topics is made in copies of the table's mappings.

The copies are changed in steps, and then replace the mappings, so that no step takes long. It takes 0.3 ms to
copy a mapping, but 6 to 14 ms to put 100,000 topics into a mapping in one step.
"""

COPIED_MAX: Final = 4
"""Mappings are copied only if the table has at most this many times as many topics as the change."""

SETS_SPARE: Final = 1000
"""The table keeps at most this number of unused queue sets, plus one quarter of the number of topics.

The search for unused sets reads all topics. Because of this margin, the search is rare.
"""


@dataclass(slots=True)
class Pool:
    """The topics of one broker name, with data that is derived from the topics.

    Attributes:
        topics: The name's queue data, by topic.
        shares: Queue data by read queues, write queues, permission and flag. Topics with equal values share
            one object. This saves memory, because most topics of a broker have equal values.
        host: Host whose limits count the queue data and the new topics of this name.
        size: Bytes of the name's mapping infos for static topics.
    """

    topics: dict[str, Share] = field(default_factory=dict)
    shares: dict[tuple[int, ...], Share] = field(default_factory=dict)
    host: str = ""
    size: int = 0

    def bound(self) -> None:
        """Forget the queue data values that no topic has, if there are too many values."""
        if len(self.shares) > SHARES_SPARE + 2 * len(self.topics):
            in_use = frozenset(self.topics.values())
            self.shares = {key: share for key, share in self.shares.items() if share in in_use}


_NO_POOL: Final = Pool()


class Difference(msgspec.Struct):
    """Topics for which a registration has other queue data than the table has for the broker name.

    Attributes:
        topics: These topics, with the new queue data.
        adds_topics: True if the table has no queue data of the broker name for one of these topics yet.
    """

    topics: list[TopicQueues] = []
    adds_topics: bool = False


class TopicStore:
    """Queue data of topics by broker name. The caller passes each change's revision.

    Each change also updates this store's part of the digests. Each topic adds a product to a digest: the
    topic's hash (mark) times the hash of its queue set, or times its revision. So a change of a topic needs
    one multiplication and no hashing. This matters because one registration may change 100,000 topics.

    Attributes:
        entries: Entries by topic. Each entry has queue data. A broker name with a mapping of a topic also has
            queue data of the topic.
        marks: Hashes of all topics in ``entries`` (see :func:`.entries.mark_of_topic`).
        names: Each topic in ``entries``, as key and as value. All other mappings use the same text objects as
            keys, so a hundred brokers with the same topics keep each name in memory only once. Names are not
            interned, because Python 3.12 never frees interned texts, and any client can choose the names.
        pools: Topics and derived data by broker name.
        shown: Number that this store adds to the digest of the state that clients see.
        rest: Number that this store adds to the digest of the other replicated state. Removed entries are not
            counted here.
    """

    __slots__ = ("_ledger", "_sets", "_tombstones", "entries", "marks", "names", "pools", "rest", "shown")

    def __init__(self, entries: Mapping[str, TopicEntry], tombstones: Tombstones, ledger: Ledger) -> None:
        self._tombstones = tombstones
        self._ledger = ledger
        self.entries = dict(entries)
        self.pools: defaultdict[str, Pool] = defaultdict(Pool)
        # Queue sets by mark (a hash): all sets in use, and some unused sets. Code that finds a set here must
        # compare the content, because two sets may have equal marks.
        self._sets: dict[int, QueueSet] = {}
        members: dict[QueueSet, list[str]] = defaultdict(list)
        for topic, kept in entries.items():
            members[kept.queue_set].append(topic)
        for queue_set, topics in members.items():
            self._sets[queue_set.mark] = queue_set
            for name, data in queue_set.by_name.items():
                pool, numbers = self.pools[name], astuple(data)[1:]
                share = pool.shares.get(numbers) or pool.shares.setdefault(numbers, Share.of(data))
                for start in range(0, len(topics), SLICE):
                    pool.topics.update(dict.fromkeys(topics[start : start + SLICE], share))
        values = entries.values()
        marks = [mark_of_topic(topic) for topic in entries]
        self.marks = dict(zip(entries, marks, strict=True))
        self.names = dict(zip(entries, entries, strict=True))
        self.shown = sum_of_products(marks, [entry.queue_set.mark for entry in values])
        self.rest = sum_of_products(marks, [entry.revision for entry in values])
        charged: defaultdict[str, list[str]] = defaultdict(list)
        for topic, entry in entries.items():
            charged[entry.host].append(topic)
            for name, mapping in entry.mappings.items():
                self.shown += mapping_mark(name, mapping)
                self.pools[name].size += size_of((mapping.info,))
        for host, topics in charged.items():
            ledger.add(host, topics=len(topics), size=size_of(topics))
            self.rest += host_mark(host) * sum([self.marks[topic] for topic in topics])
        for pool in self.pools.values():
            ledger.add(pool.host, pairs=len(pool.topics), size=pool.size)

    # -- reading

    def share(self, name: str, *numbers: int) -> Share:
        """Return the broker name's shared queue data object with these numbers, and make it if needed.

        Args:
            numbers: Number of read queues, number of write queues, permission, and flag.
        """
        shares = self.pools[name].shares
        share = shares.get(numbers)
        if share is None:
            share = shares[numbers] = Share.of(made_of(QueueData, name, *numbers))
        return share

    def find_differing(
        self, said: Iterable[tuple[str, TopicNumbers]], difference: Difference, name: BrokerName, mask: int
    ) -> None:
        """Find the topics for which a broker's queue data differ from the table's data of its broker name.

        Args:
            said: Topics, each with the broker's queue data.
            difference: Receives the topics that differ.
            mask: Permission bits that the table stores for this broker.
        """
        listed, found = self.of_name(name).get, difference.topics.append
        for topic, of in said:
            share, perm = listed(topic), of.perm & mask
            if share is None:
                difference.adds_topics = True
            elif (
                (data := share.data).read_queue_nums == of.read_queue_nums
                and data.write_queue_nums == of.write_queue_nums
                and data.perm == perm
                and data.topic_sys_flag == of.topic_sys_flag
            ):
                continue
            found(TopicQueues(topic, of.read_queue_nums, of.write_queue_nums, perm, of.topic_sys_flag))

    def find_shares(
        self,
        said: Iterable[TopicQueues],
        found: dict[str, Share],
        made: dict[Numbers, Share],
        name: BrokerName,
        mask: int = -1,
    ) -> None:
        """Find the topics for which queue data differ, and collect :class:`Share` objects for these topics.

        Like :meth:`find_differing`, this method compares a broker's queue data with the table. It puts no new
        Share objects into the store, because the command may still be rejected.

        Args:
            found: Receives the Share objects by topic. It already contains the objects of earlier steps.
            made: Receives the new Share objects by content. It already contains the objects of earlier steps.
        """
        pool = self.pools.get(name) or _NO_POOL
        listed, share_of, name_of = pool.topics.get, pool.shares.get, self.names.get
        for of in said:
            numbers = of.read_queue_nums, of.write_queue_nums, of.perm & mask, of.topic_sys_flag
            share = share_of(numbers) or made.get(numbers)
            if share is None:
                share = made[numbers] = Share.of(made_of(QueueData, name, *numbers))
            topic = of.topic
            if listed(topic) is not share:
                found[name_of(topic, topic)] = share

    def of_name(self, name: str) -> Mapping[str, Share]:
        """Return a broker name's queue data by topic, in the order in which the topics were added."""
        pool = self.pools.get(name)
        return {} if pool is None else pool.topics

    def with_other_perms(self, name: BrokerName, perm_of: Callable[[int], int]) -> dict[str, Share]:
        """Return the new queue data, by topic, of all topics that a change of permissions affects.

        Args:
            perm_of: Function that returns the new permission for an old permission.
        """
        pool = self.pools.get(name)
        if pool is None:
            return {}
        after = {}
        for share in tuple(pool.shares.values()):
            after[share] = self.share(*astuple(replace(share.data, perm=perm_of(share.data.perm))))
        return {topic: after[share] for topic, share in pool.topics.items() if after[share] is not share}

    # -- writing

    def charge(self, name: str, host: str) -> None:
        """Count a broker name's queue data, and its future topics, against the limits of ``host``."""
        if host or name in self.pools:
            pool = self.pools[name]
            self._ledger.add(pool.host, pairs=-len(pool.topics), size=-pool.size)
            pool.host = host
            self._ledger.add(host, pairs=len(pool.topics), size=pool.size)

    def put(
        self, name: BrokerName, shares: Mapping[str, Share], revision: int, *, without: Collection[str] = ()
    ) -> None:
        """Change a broker name's topics in one step (see :class:`Draft`)."""
        draft = Draft(self, name, revision)
        for _ in draft.put(shares, without=without):
            pass
        draft.commit()

    def put_known(self, name: BrokerName, topics: Sequence[TopicQueues], revision: int) -> None:
        """Store queue data of a few topics that all exist already.

        Most changes are of this kind. For them, this method is faster than a :class:`Draft`.

        Args:
            topics: Each topic once, with queue data that differ from the present data of the broker name.
        """
        pool, sets = self.pools[name], self._sets
        listed, entries, marks, names = pool.topics, self.entries, self.marks, self.names
        pairs = -len(listed)
        entry = _NO_ENTRY
        last: TopicEntry | None = None
        last_numbers: Numbers = ()
        total = change = shown = rest = 0
        for of in topics:
            topic, numbers = of.topic, (of.read_queue_nums, of.write_queue_nums, of.perm, of.topic_sys_flag)
            before = entries[topic]
            # If a topic has the same entry and the same new data as the previous topic, the two topics share
            # one new entry.
            if before is not last or numbers != last_numbers:
                if last is not None:
                    shown += total * change
                    rest += total * (revision - last.revision)
                    total = 0
                last, last_numbers = before, numbers
                share = pool.shares.get(numbers) or self.share(name, *numbers)
                queue_set, change = step_of(sets, sets, before.queue_set, name, listed.get(topic), share)
                entry = TopicEntry(queue_set, before.mappings, revision, before.host)
            total += marks[topic]
            entries[topic] = entry
            listed[topic if topic in listed else names[topic]] = share
        self.shown = (self.shown + shown + total * change) & MASK
        self.rest = (self.rest + rest + total * (revision - before.revision)) & MASK
        pairs += len(listed)
        if pairs:
            self._ledger.add(pool.host, pairs=pairs)
        if len(pool.shares) > SHARES_SPARE:
            pool.bound()
        if len(sets) > SETS_SPARE:
            self._bound_sets()

    def put_mapping(self, name: BrokerName, mapping: QueueMapping, revision: int) -> None:
        """Store the mapping of a static topic.

        The broker name must have queue data of the topic, because an entry has mappings only for such names.
        """
        before = self.entries[mapping.topic]
        old = before.mappings.get(name)
        change = mapping_mark(name, mapping) - (0 if old is None else mapping_mark(name, old))
        self.shown = (self.shown + change) & MASK
        pool = self.pools[name]
        more = size_of((mapping.info,)) - (0 if old is None else size_of((old.info,)))
        pool.size += more
        self._ledger.add(pool.host, size=more)
        mappings = {**before.mappings, name: mapping}
        self._put_entry(mapping.topic, before, replace(before, mappings=mappings, revision=revision))

    def renew(self, topic: str, revision: int) -> bool:
        """Record a change that affects only this topic's route. Return True if the topic exists."""
        entry = self.entries.get(topic)
        if entry is None:
            return False
        self._put_entry(topic, entry, replace(entry, revision=revision))
        return True

    def _put_entry(self, topic: str, before: TopicEntry, entry: TopicEntry) -> None:
        self.rest = (self.rest + self.marks[topic] * (entry.revision - before.revision)) & MASK
        self.entries[topic] = entry

    def forget_name(self, name: str) -> None:
        """Remove the derived data of a broker name that has no queue data any more."""
        self.pools.pop(name, None)

    def _bound_sets(self) -> None:
        """Forget the queue sets that no topic has, if there are too many sets."""
        in_use_max = len(self.entries)
        if len(self._sets) > SETS_SPARE + in_use_max + in_use_max // 4:
            self._sets = {entry.queue_set.mark: entry.queue_set for entry in self.entries.values()}


class Draft:
    """A change of one broker name's topics, prepared in many steps and made in one step.

    Readers see nothing of the change before :meth:`commit`, and the whole change afterwards. The preparation
    does the slow work for each topic. The commit then needs only a few calls of C functions for all topics
    together. Between the first step and the commit, only the commit of ``over`` may change the store.

    Args:
        host: Host whose limits count the new topics of this change; None for the broker name's host.
        over: Another change by the same command, whose commit comes before the commit of this change.
    """

    __slots__ = (
        "_back",
        "_entries",
        "_gone",
        "_host",
        "_info_size",
        "_lost",
        "_made",
        "_name",
        "_new",
        "_new_size",
        "_over",
        "_removed",
        "_removed_at",
        "_removed_marks",
        "_rest",
        "_revision",
        "_sets",
        "_shares",
        "_shown",
        "_steps",
        "_store",
        "_without",
    )

    def __init__(
        self,
        store: TopicStore,
        name: BrokerName,
        revision: int,
        *,
        host: str | None = None,
        over: Draft | None = None,
    ) -> None:
        self._store = store
        self._name = name
        self._revision = revision
        self._host = store.pools[name].host if host is None and name in store.pools else host or ""
        self._over = over
        self._shares: Mapping[str, Share] = {}
        self._without: Collection[str] = ()
        self._entries: dict[str, TopicEntry] = {}
        # Hashes (marks) of topics that this change adds to the table, and of topics that it removes.
        self._new: dict[str, int] = {}
        self._removed: dict[str, int] = {}
        self._removed_at: dict[str, int] = {}  # the topics of _removed, each with the value _revision
        # The topics that this change adds and whose earlier removal the store remembers. The outer key is the
        # revision of the removal, the inner key is the topic, and the value is the topic's hash (mark).
        self._back: dict[int, dict[str, int]] = {}
        # The store's present mapping of removed topics. If the store forgets removals, it gets another
        # mapping object, so the commit can detect this.
        self._gone = store._tombstones.by_kind["topic"]
        self._sets: dict[int, QueueSet] = {} if over is None else over._sets
        # Results of step_of(), which are the same for many topics. Key: an old queue set, and the new queue
        # data of the broker name. Value: the new queue set, and the difference of the two sets' hashes.
        self._steps: dict[tuple[QueueSet, Share | None], tuple[QueueSet, int]] = {}
        self._shown = self._rest = self._removed_marks = self._info_size = self._new_size = 0
        # For each host: the number of its topics that this change removes from the table, and the size of
        # these topics' names in bytes.
        self._lost: dict[str, list[int]] = {}
        # Changed copies of the store's mappings. The commit replaces the mappings by these copies. For a
        # small change this is None, and the commit changes the mappings themselves.
        self._made: tuple[dict[str, Share], dict[str, TopicEntry], dict[str, int], dict[str, str]] | None = (
            None
        )

    def put(self, shares: Mapping[str, Share], *, without: Collection[str] = ()) -> Iterable[None]:
        """Prepare new queue data of the broker name for some topics.

        Args:
            without: Topics that the broker name no longer has. A topic that no other broker name has is
                removed from the table.

        Returns:
            The remaining steps. If there are few topics, no step remains.
        """
        self._shares, self._without = shares, without
        topics: list[str] = [*shares, *without]
        to_have: list[Share | None] = [*shares.values(), *repeat(None, len(without))]
        if len(topics) > STEP:
            return self._put_steps(topics, to_have)
        if topics:
            self._put_step(topics, to_have)
        return ()

    def _put_steps(self, topics: list[str], to_have: list[Share | None]) -> Steps[None]:
        for start in range(0, len(topics), STEP):
            if start:
                yield
            self._put_step(topics[start : start + STEP], to_have[start : start + STEP])
        store = self._store
        if (
            self._over is None
            and not self._without
            and len(topics) >= COPIED_FROM
            and len(store.entries) <= COPIED_MAX * len(topics)
        ):
            listed = yield from _copy_with(store.of_name(self._name), self._shares)
            entries = yield from _copy_with(store.entries, self._entries)
            marks, names = store.marks, store.names
            if self._new:
                marks = yield from _copy_with(marks, self._new)
                names = yield from _copy_with_names(names, self._new)
            self._made = listed, entries, marks, names

    def look(self, topic: str) -> TopicEntry | None:
        """Return the entry that a topic will have after this change; None if the topic will not exist."""
        entry = self._entries.get(topic)
        return entry if entry is not None or topic in self._removed else self._before(topic)

    def _before(self, topic: str) -> TopicEntry | None:
        return self._store.entries.get(topic) if self._over is None else self._over.look(topic)

    def _mark(self, topic: str) -> int:
        over = self._over
        if over is None:
            return self._store.marks[topic]
        return over._new[topic] if topic in over._new else over._mark(topic)

    def _put_step(self, topics: list[str], shares: list[Share | None]) -> None:
        """Prepare some topics. Handle equal changes together, because most topics change in the same way."""
        befores = list(map(self._store.entries.get if self._over is None else self._before, topics))
        if befores.count(befores[0]) == shares.count(shares[0]) == len(topics):
            self._put_run(befores[0], shares[0], topics)
            return
        for (before, share), run in groupby(zip(befores, shares, topics, strict=True), key=_BEFORE_AND_SHARE):
            self._put_run(before, share, [topic for _, _, topic in run])

    def _put_run(self, before: TopicEntry | None, share: Share | None, topics: list[str]) -> None:
        name, revision = self._name, self._revision
        if before is None:
            before = _NO_ENTRY
            host = self._host
            marks = list(map(mark_of_topic, topics))
            self._new.update(zip(topics, marks, strict=True))
            self._new_size += size_of(topics)
            if self._gone:
                for topic, mark in zip(topics, marks, strict=True):
                    if (removed_at := self._gone.get(topic)) is not None:
                        self._back.setdefault(removed_at, {})[topic] = mark
        else:
            host = before.host
            marks = list(map(self._store.marks.__getitem__ if self._over is None else self._mark, topics))
        total = sum(marks)
        if before is _NO_ENTRY and host:
            self._rest += total * host_mark(host)
        was, mappings = before.queue_set, before.mappings
        step = self._steps.get((was, share))
        if step is None:
            listed = self._store.of_name(name).get(topics[0])
            step = step_of(self._store._sets, self._sets, was, name, listed, share)
            self._steps[was, share] = step
        queue_set, change = step
        self._shown += total * change
        self._rest += total * (revision - before.revision)
        # If the entry has mappings, ``topics`` has only one topic: topics with mappings never share an entry.
        if share is None and name in mappings:
            self._shown -= mapping_mark(name, mappings[name])
            self._info_size += size_of((mappings[name].info,))
            mappings = {n: kept for n, kept in mappings.items() if n != name}
        if queue_set is NO_QUEUES:
            self._removed.update(zip(topics, marks, strict=True))
            self._removed_at.update(dict.fromkeys(topics, revision))
            self._removed_marks += total
            self._rest -= total * (revision + (host_mark(host) if host else 0))
            lost = self._lost.setdefault(host, [0, 0])
            lost[0] += len(topics)
            lost[1] += size_of(topics)
        else:
            self._entries.update(dict.fromkeys(topics, TopicEntry(queue_set, mappings, revision, host)))

    def commit(self) -> None:
        """Make the prepared change in the store."""
        store, ledger, tombstones = self._store, self._store._ledger, self._store._tombstones
        pool = store.pools[self._name]
        pairs = -len(pool.topics)
        if self._made is None:
            pool.topics.update(self._shares)
        else:
            pool.topics, store.entries, store.marks, store.names = self._made
        if self._without:
            _forget(pool.topics, self._without)
        pairs += len(pool.topics)
        for _, share in self._steps:
            # Put the queue data into the pool again: the commit of ``over`` may have replaced the pool.
            if share is not None:
                pool.shares[astuple(share.data)[1:]] = share
        pool.bound()
        pool.size -= self._info_size
        marks, gone = Counter[int](), tombstones.by_kind["topic"]
        over = self._over
        # An earlier change by the same command may have removed a topic that this change adds.
        while over is not None:
            again = self._back.setdefault(over._revision, {})
            for topic in over._removed.keys() & self._new.keys():
                again[topic] = self._new[topic]
            over = over._over
        if pairs or self._new or self._info_size:
            size = self._new_size - self._info_size
            ledger.add(pool.host, topics=len(self._new), pairs=pairs, size=size)
            for removed_at, back in self._back.items():
                if gone is not self._gone or self._over is not None:
                    back = {topic: mark for topic, mark in back.items() if gone.get(topic) == removed_at}
                marks[removed_at] -= sum(back.values())
                _forget(gone, back)
        if self._removed:
            for host, (topics, size) in self._lost.items():
                ledger.add(host, topics=-topics, size=-size)
            _forget(store.entries, self._removed)
            _forget(store.marks, self._removed)
            marks[self._revision] += self._removed_marks
            _forget(store.names, self._removed)
        if self._made is None:
            store.entries.update(self._entries)
            store.marks.update(self._new)
            store.names.update(zip(self._new, self._new, strict=True))
        store.shown = (store.shown + self._shown) & MASK
        store.rest = (store.rest + self._rest) & MASK
        store._sets.update(self._sets)
        store._bound_sets()
        if marks:
            tombstones.topics_moved(marks, self._removed_at)


_NO_ENTRY: Final = TopicEntry(NO_QUEUES, NO_MAPPINGS, 0)
"""The entry of a topic that does not exist, with no queue data, no mappings, and revision 0."""

_BEFORE_AND_SHARE: Final = itemgetter(0, 1)
TOPIC: Final[Callable[[TopicQueues], str]] = attrgetter("topic")


def step_of(
    known: Mapping[int, QueueSet],
    made: dict[int, QueueSet],
    old: QueueSet,
    name: str,
    was: Share | None,
    share: Share | None,
) -> tuple[QueueSet, int]:
    """Add, replace or remove a broker name's queue data in a queue set.

    Return the new set, and the difference between its hash and the old set's hash.

    Args:
        known: Existing sets by hash (mark).
        made: New sets by hash. The resulting set is added to ``made`` if neither mapping has it yet.
        was: The name's queue data in the old set; None if the old set does not contain the name.
        share: The name's new queue data; None to remove the name.
    """
    by_name = dict(old.by_name)
    if share is None:
        del by_name[name]
    else:
        by_name[name] = share.data
    change = (0 if share is None else share.mark) - (0 if was is None else was.mark)
    if not by_name:
        return NO_QUEUES, change
    mark = (old.mark + change) & MASK
    found = known.get(mark) or made.get(mark)
    if found is not None and found.by_name == by_name:
        return found, change
    queue_set = made[mark] = QueueSet(by_name, mark)
    return queue_set, change


def _copy_with(mapping: Mapping[str, _T], changes: Mapping[str, _T]) -> Steps[dict[str, _T]]:
    """Return a changed copy of a mapping, in steps. No code may change the mapping before the last step."""
    yield
    copy = dict(mapping)
    for chunk in in_chunks(changes.items()):
        yield
        copy.update(chunk)
    return copy


def _copy_with_names(names: Mapping[str, str], new: Collection[str]) -> Steps[dict[str, str]]:
    """Return a copy of ``names`` with new names, each as key and as value, in steps."""
    yield
    copy = dict(names)
    for chunk in in_chunks(new):
        yield
        copy.update(zip(chunk, chunk, strict=True))
    return copy


def _forget(mapping: dict[Any, Any], keys: Collection[Any]) -> None:
    """Delete keys of a mapping by one call of a C function, which is faster than a loop."""
    if len(keys) == len(mapping):
        mapping.clear()
    else:
        deque(map(mapping.pop, keys), maxlen=0)


def mapping_mark(name: str, mapping: QueueMapping) -> int:
    return mark_of("m", mapping.topic, name, mapping.epoch, mapping.info)
