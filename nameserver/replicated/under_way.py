"""The entry that is being applied, for reads that need not wait for its end (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from routekeeper.nameserver.commands import Command, RegisterBroker, Touch, Update
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.remoting.steps import Steps, in_chunks

_LARGE: Final = (RegisterBroker, Update)
"""Commands that can take long. A read waits for any other command, because nearly all others are short."""

PREPARED_FROM: Final = 20_000
"""Number of topics of an entry from which on they are collected in steps: 100,000 take 6 ms."""


class EntryUnderWay:
    """The commands of an entry, and whether they can change the route of a topic.

    A command is in the table either completely or not at all. So a route that none of them can change is
    equal before and after the entry.
    """

    def __init__(self, commands: Sequence[Command], table: RouteTable) -> None:
        """Examine the commands of an entry of which nothing is applied yet.

        Facts that hold for all topics are found here, because many reads may ask while the entry is applied.
        """
        self._table = table
        self._concerns_all = any(self._may_concern_all(command) for command in commands)
        large = [command for command in commands if isinstance(command, _LARGE)]
        self._names = frozenset(command.broker_name for command in large)
        self._topics_of = [command.topics for command in large]
        # All topics that the commands name; made when first needed, because most entries need none.
        self._topics: frozenset[str] | set[str] | None = None
        self._prepares = False

    def prepare(self) -> Steps[None]:
        """Collect the topics now if there are many. Meanwhile the entry may change any topic."""
        if self._concerns_all or sum(map(len, self._topics_of)) < PREPARED_FROM:
            return
        self._prepares, found = True, set[str]()
        for topics in self._topics_of:
            for chunk in in_chunks(topics):
                found.update([queues.topic for queues in chunk])
                yield
        self._prepares, self._topics = False, found

    def _may_concern_all(self, command: Command) -> bool:
        if isinstance(command, Touch):
            return False
        if not isinstance(command, _LARGE) or (isinstance(command, RegisterBroker) and command.mappings):
            return True
        record = self._table.brokers.records.get(command.broker)
        return record is not None and record.broker_name != command.broker_name  # it leaves its former name

    def may_change(self, topic: str) -> bool:
        """Return whether the entry may change the topic's route.

        A command can change the topics that it names. It can also change its broker name's addresses, which
        all topics with queues there show.
        """
        if self._concerns_all or self._prepares:
            return True
        if self._topics is None:
            self._topics = frozenset(queues.topic for topics in self._topics_of for queues in topics)
        if topic in self._topics:
            return True
        entry = self._table.topics.entries.get(topic)
        return entry is not None and not self._names.isdisjoint(entry.queues)
