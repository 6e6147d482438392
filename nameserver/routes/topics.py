"""The topics of a route table: who has which queues, how that is shared, and its part of the digests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Final

from msgspec.structs import astuple, replace

from routekeeper.nameserver.commands import QueueMapping, TopicQueues
from routekeeper.nameserver.types import BrokerName
from routekeeper.remoting.registration import TopicNumbers
from routekeeper.remoting.route import QueueData

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

SHARES_SPARE: Final = 1000
"""Queue data without a topic that are kept for a broker name, in case that topics have them again."""

SETS_SPARE: Final = 1000
"""Queue sets without a topic that are kept, and a quarter of the topics: what is no longer in use is looked
for over all topics, which may cost next to nothing per change."""


@dataclass(slots=True)
class Pool:
    """What is derived from the topics for one broker name.

    Attributes:
        topics: Topics of which the name has queue data, and which.
        shares: By read queues, write queues, permission and flag. Most topics of a broker have equal ones:
            one object serves all of them, and unequal objects are unequal shares.
        host: The one that is charged for the queue data and for new topics.
        size: Bytes of the name's mappings.
    """

    topics: dict[str, Share] = field(default_factory=dict)
    shares: dict[tuple[int, ...], Share] = field(default_factory=dict)
    host: str = ""
    size: int = 0

    def bound(self) -> None:
        """Forget shares without a topic if there are too many."""
        if len(self.shares) > SHARES_SPARE + 2 * len(self.topics):
            in_use = frozenset(self.topics.values())
            self.shares = {key: share for key, share in self.shares.items() if share in in_use}


class TopicStore:
    """Queue data of topics by broker name; who changes them names the revision of the change.

    The part of digests is kept up to date. A topic's is a product, its own mark times the mark of its queue
    set (or times its revision), so that a change of a topic costs a multiplication and no hashing: one
    registration may change 100,000 topics while everybody waits for the loop.

    Attributes:
        entries: By topic; none is without queue data, and no mapping is without its queue data.
        pools: By broker name.
        shown: Part of the digest of what clients see.
        rest: Part of the digest of what is replicated beside that, but for removals.
    """

    __slots__ = ("_ledger", "_sets", "_tombstones", "entries", "pools", "rest", "shown")

    def __init__(self, entries: Mapping[str, TopicEntry], tombstones: Tombstones, ledger: Ledger) -> None:
        self._tombstones = tombstones
        self._ledger = ledger
        self.entries = dict(entries)
        self.pools: defaultdict[str, Pool] = defaultdict(Pool)
        # Sets in use and some that were, by mark. Who finds one compares its content: a mark is no proof.
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
        marks = [entry.mark for entry in values]
        self.shown = sum_of_products(marks, [entry.queue_set.mark for entry in values])
        self.rest = sum_of_products(marks, [entry.revision for entry in values])
        charged: defaultdict[str, list[str]] = defaultdict(list)
        for topic, entry in entries.items():
            charged[entry.host].append(topic)
            for name, mapping in entry.mappings.items():
                self.shown += _mapping_mark(name, mapping)
                self.pools[name].size += size_of((mapping.info,))
        for host, topics in charged.items():
            ledger.add(host, topics=len(topics), size=size_of(topics))
            self.rest += host_mark(host) * sum([entries[topic].mark for topic in topics])
        for pool in self.pools.values():
            ledger.add(pool.host, pairs=len(pool.topics), size=pool.size)

    # -- looking

    def share(self, name: str, *numbers: int) -> Share:
        """Return the one share with this content: read queues, write queues, permission, flag."""
        shares = self.pools[name].shares
        share = shares.get(numbers)
        if share is None:
            share = shares[numbers] = Share.of(made_of(QueueData, name, *numbers))
        return share

    def shares_of(self, name: BrokerName, topics: Iterable[TopicQueues]) -> dict[str, Share]:
        """Return the one share of each of these topics at a broker name, by topic."""
        shares = self.pools[name].shares
        found = {}
        for queues in topics:
            key = queues.read_queue_nums, queues.write_queue_nums, queues.perm, queues.topic_sys_flag
            found[queues.topic] = shares.get(key) or self.share(name, *key)
        return found

    def differing(
        self, name: BrokerName, said: Iterable[tuple[str, TopicNumbers | TopicQueues]], *, mask: int
    ) -> list[TopicQueues]:
        """Return what a broker says otherwise than is listed of its name, as it is to be kept.

        Args:
            said: Topics, and what it says of each.
            mask: Bits of permissions that are stored.
        """
        listed = self.of_name(name)
        found = []
        for topic, of in said:
            share, perm = listed.get(topic), of.perm & mask
            if (
                share is None
                or (data := share.data).read_queue_nums != of.read_queue_nums
                or data.write_queue_nums != of.write_queue_nums
                or data.perm != perm
                or data.topic_sys_flag != of.topic_sys_flag
            ):
                found.append(
                    TopicQueues(topic, of.read_queue_nums, of.write_queue_nums, perm, of.topic_sys_flag)
                )
        return found

    def of_name(self, name: str) -> Mapping[str, Share]:
        """Return a broker name's queue data by topic, in the order in which the topics came."""
        pool = self.pools.get(name)
        return {} if pool is None else pool.topics

    def with_other_perms(self, name: BrokerName, perm_of: Callable[[int], int]) -> dict[str, Share]:
        """Return the shares that a change of permissions makes, by topic; of those only that differ."""
        pool = self.pools.get(name)
        if pool is None:
            return {}
        after = {}
        for share in tuple(pool.shares.values()):
            after[share] = self.share(*astuple(replace(share.data, perm=perm_of(share.data.perm))))
        return {topic: after[share] for topic, share in pool.topics.items() if after[share] is not share}

    # -- writing

    def charge(self, name: str, host: str) -> None:
        """Have a host charged for a broker name's queue data, and for topics that come with it from now."""
        if host or name in self.pools:
            pool = self.pools[name]
            self._ledger.add(pool.host, pairs=-len(pool.topics), size=-pool.size)
            pool.host = host
            self._ledger.add(host, pairs=len(pool.topics), size=pool.size)

    def put(
        self, name: BrokerName, shares: Mapping[str, Share], revision: int, *, without: Collection[str] = ()
    ) -> None:
        """Give a broker name other queue data of some topics, by topic.

        Args:
            without: Topics that it has, and is to have no more. Those that nobody else has are removed.
        """
        pool = self.pools[name]
        entries, listed, gone = self.entries, pool.topics, self._tombstones.by_kind["topic"]
        digest = rest = back = removed = come = info_size = 0
        pairs = len(listed)
        new: list[str] = []
        lost: defaultdict[str, list[str]] = defaultdict(list)
        # Topics that had the same set get the same set, and mostly stand one behind the other: what can be
        # done once per set, or per run of topics alike, is not done per topic.
        steps: dict[tuple[QueueSet, Share | None], tuple[QueueSet, int]] = {}
        old = NO_QUEUES
        run_share: Share | None = None
        run_revision = change = marks = 0
        changes: Iterable[tuple[str, Share | None]] = chain(shares.items(), zip(without, repeat(None)))
        for topic, share in changes:
            before = entries.get(topic)
            if before is None:
                was, mappings, at, mark, host = NO_QUEUES, NO_MAPPINGS, 0, mark_of_topic(topic), pool.host
                new.append(topic)
                come += mark
                if gone:
                    back += mark * gone.pop(topic, 0)
            else:
                was, mappings, at = before.queue_set, before.mappings, before.revision
                mark, host = before.mark, before.host
            if was is not old or share is not run_share or at != run_revision:
                digest += marks * change
                rest += marks * (revision - run_revision)
                old, run_share, run_revision, marks = was, share, at, 0
                step = steps.get((old, share))
                if step is None:
                    step = steps[old, share] = self._step(old, name, listed.get(topic), share)
                queue_set, change = step
            marks += mark
            if share is None and name in mappings:
                digest -= _mapping_mark(name, mappings[name])
                info_size += size_of((mappings[name].info,))
                mappings = {n: kept for n, kept in mappings.items() if n != name}
            if queue_set is NO_QUEUES:
                del entries[topic]
                gone[topic] = revision
                removed += mark
                lost[host].append(topic)
                rest -= mark * host_mark(host) if host else 0
            else:
                entries[topic] = TopicEntry(queue_set, mappings, revision, mark, host)
        digest += marks * change
        rest += marks * (revision - run_revision) - removed * revision + come * host_mark(pool.host)
        listed.update(shares)
        for topic in without:
            del listed[topic]
        pool.bound()
        pool.size -= info_size
        self._ledger.add(pool.host, topics=len(new), pairs=len(listed) - pairs, size=size_of(new) - info_size)
        for host, topics in lost.items():
            self._ledger.add(host, topics=-len(topics), size=-size_of(topics))
        self.shown = (self.shown + digest) & MASK
        self.rest = (self.rest + rest) & MASK
        if back or removed:
            self._tombstones.topics_moved(removed * revision - back)

    def put_share(self, name: str, topic: str, share: Share, revision: int) -> bool:
        """As :meth:`put`, of one topic that is there already, as most changes are; return whether it was."""
        before = self.entries.get(topic)
        if before is None:
            return False
        pool = self.pools[name]
        queue_set, change = self._step(before.queue_set, name, pool.topics.get(topic), share)
        self.shown = (self.shown + before.mark * change) & MASK
        self._put_entry(
            topic, before, TopicEntry(queue_set, before.mappings, revision, before.mark, before.host)
        )
        if topic not in pool.topics:
            self._ledger.add(pool.host, pairs=1)
        pool.topics[topic] = share
        pool.bound()
        return True

    def put_mapping(self, name: BrokerName, mapping: QueueMapping, revision: int) -> None:
        """Put the mapping of a static topic of which the broker name has queue data."""
        before = self.entries[mapping.topic]
        old = before.mappings.get(name)
        change = _mapping_mark(name, mapping) - (0 if old is None else _mapping_mark(name, old))
        self.shown = (self.shown + change) & MASK
        pool = self.pools[name]
        more = size_of((mapping.info,)) - (0 if old is None else size_of((old.info,)))
        pool.size += more
        self._ledger.add(pool.host, size=more)
        mappings = {**before.mappings, name: mapping}
        self._put_entry(mapping.topic, before, replace(before, mappings=mappings, revision=revision))

    def renew(self, topic: str, revision: int) -> bool:
        """Note that something changed which only this topic's route shows; return whether it is there."""
        entry = self.entries.get(topic)
        if entry is None:
            return False
        self._put_entry(topic, entry, replace(entry, revision=revision))
        return True

    def _put_entry(self, topic: str, before: TopicEntry, entry: TopicEntry) -> None:
        self.rest = (self.rest + before.mark * (entry.revision - before.revision)) & MASK
        self.entries[topic] = entry

    def forget_name(self, name: str) -> None:
        """Forget what is kept for a broker name that has no queue data any more."""
        self.pools.pop(name, None)

    # -- sets

    def _step(self, old: QueueSet, name: str, was: Share | None, share: Share | None) -> tuple[QueueSet, int]:
        """Return the set with a name's share put or taken out, and by how much its mark is greater."""
        by_name = dict(old.by_name)
        if share is None:
            del by_name[name]
        else:
            by_name[name] = share.data
        change = (0 if share is None else share.mark) - (0 if was is None else was.mark)
        return self._set(by_name, (old.mark + change) & MASK) if by_name else NO_QUEUES, change

    def _set(self, by_name: Mapping[str, QueueData], mark: int) -> QueueSet:
        """Return the one set with this content."""
        found = self._sets.get(mark)
        if found is not None and found.by_name == by_name:
            return found
        in_use_max = len(self.entries)
        if len(self._sets) > SETS_SPARE + in_use_max + in_use_max // 4:
            self._sets = {entry.queue_set.mark: entry.queue_set for entry in self.entries.values()}
        made = self._sets[mark] = QueueSet(by_name, mark)
        return made


def _mapping_mark(name: str, mapping: QueueMapping) -> int:
    return mark_of("m", mapping.topic, name, mapping.epoch, mapping.info)
