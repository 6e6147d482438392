"""The entry that is being applied, for reads that need not wait for its end (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from routekeeper.nameserver.commands import Command, RegisterBroker, Touch, Update
from routekeeper.nameserver.routes.table import RouteTable

_LARGE: Final = (RegisterBroker, Update)
"""Commands that can take long. Of all others nearly none does, and a read waits for those."""


class EntryUnderWay:
    """The commands of an entry, and whether they can change the route of a topic.

    A command is in the table either completely or not at all. So a route that none of them can change is
    equal before and after the entry.
    """

    def __init__(self, commands: Sequence[Command], table: RouteTable) -> None:
        """Examine the commands of an entry of which nothing is applied yet.

        Facts that hold for all topics are found here, because many reads may ask while the entry is applied.
        """
        self._commands = commands
        self._table = table
        self._concerns_all = any(self._may_concern_all(command) for command in commands)
        self._names = frozenset(command.broker_name for command in commands if isinstance(command, _LARGE))

    def _may_concern_all(self, command: Command) -> bool:
        if isinstance(command, Touch):
            return False
        if not isinstance(command, _LARGE) or (isinstance(command, RegisterBroker) and command.mappings):
            return True
        record = self._table.brokers.records.get(command.broker)
        return record is not None and record.broker_name != command.broker_name  # it leaves a name

    def may_change(self, topic: str) -> bool:
        """Return whether the entry may change the topic's route.

        A command can change the topics that it names. It can also change its broker name's addresses, which
        all topics with queues there show.
        """
        if self._concerns_all or topic in self._topics:
            return True
        entry = self._table.topics.entries.get(topic)
        return entry is not None and not self._names.isdisjoint(entry.queues)

    @cached_property
    def _topics(self) -> frozenset[str]:
        """Return all topics that the commands name; made on the first call, because most entries need
        none.
        """
        return frozenset(
            queues.topic
            for command in self._commands
            if isinstance(command, _LARGE)
            for queues in command.topics
        )
