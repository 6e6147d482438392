"""The configuration in force, and who is a majority of it."""

from __future__ import annotations

from collections.abc import Collection

from nameserver.raft.library import Library

from .contact import Contact
from .log import RaftLog
from .members import Configuration, majority


class Electorate:
    """Whose votes and acknowledgements count.

    D36: what the log holds last is in force, from append on, and no more once it is dropped.

    Attributes:
        configuration: The one in force.
        other_voters: Its voters but this member; ``other_members``: and learners.
    """

    def __init__(self, me: str, log: RaftLog, contact: Contact, library: Library) -> None:
        self._me = me
        self._log = log
        self._contact = contact
        self._library = library
        self._three = False
        self.follow()

    def follow(self) -> None:
        """Put in force what the log holds; library and contact count by it from here on."""
        self.configuration: Configuration = self._log.configuration
        voters = self.configuration.voters
        self.other_voters = tuple(name for name in voters if name != self._me)
        self.other_members = tuple(name for name in self.configuration.members if name != self._me)
        self._three = len(voters) == 3 and not self.configuration.learners
        self._library.follow_voters(self.other_voters)
        self._contact.voters_are(self.other_voters)

    def is_majority(self, others: Collection[str]) -> bool:
        """Whether this member and those of ``others`` that are voters are more than half of the voters."""
        voters = self.configuration.voters
        return 1 + sum(name in voters for name in others) >= majority(len(voters))

    @property
    def settled_three(self) -> bool:
        """Three voters and nobody else are in force, and that is committed."""
        return self._three and self._log.configuration_index <= self._library.commit_index
