"""The log entry that is being applied. A read need not wait if the entry cannot change the read's topic.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from routekeeper.nameserver.commands import Command, RegisterBroker, Touch, Update
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.remoting.steps import Steps, in_chunks

_LARGE: Final = (RegisterBroker, Update)
"""Commands that can take long to apply. A read waits for them only if they may change its topic's route.

Every read waits for all other commands except :class:`Touch`, because nearly all of them are short.
"""

PREPARED_FROM: Final = 20_000
"""If an entry names at least this number of topics, the set of these topics is made in several steps.

To make a set of 100,000 topics in one step would take 6 ms.
"""


class EntryUnderWay:
    """The commands of the entry that is being applied; it tells if they may change a topic's route.

    Readers never see a half-applied command. So if no command of the entry can change a topic's route,
    readers may read this route while the entry is applied.
    """

    def __init__(self, commands: Sequence[Command], table: RouteTable) -> None:
        """Examine an entry's commands before the first of them is applied.

        The work that is the same for all topics is done here. Many reads may call :meth:`may_change` while
        the entry is applied, and each call must be cheap.
        """
        self._table = table
        self._concerns_all = any(self._may_concern_all(command) for command in commands)
        large = [command for command in commands if isinstance(command, _LARGE)]
        self._names = frozenset(command.broker_name for command in large)
        self._topics_of = [command.topics for command in large]
        # All topics that the commands name. The set is made when a read first needs it; for most entries, no
        # read needs it.
        self._topics: frozenset[str] | set[str] | None = None
        self._prepares = False

    def prepare(self) -> Steps[None]:
        """Collect the entry's topics in steps, if there are many.

        Until the last step, :meth:`may_change` returns True for every topic.
        """
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
        return record is not None and record.broker_name != command.broker_name  # the broker changes its name

    def may_change(self, topic: str) -> bool:
        """Return True if the entry may change the topic's route.

        A command can change the topics that it names. It can also change the addresses of its broker name.
        The routes of all topics with queues at that broker name show these addresses.
        """
        if self._concerns_all or self._prepares:
            return True
        if self._topics is None:
            self._topics = frozenset(queues.topic for topics in self._topics_of for queues in topics)
        if topic in self._topics:
            return True
        entry = self._table.topics.entries.get(topic)
        return entry is not None and not self._names.isdisjoint(entry.queues)
