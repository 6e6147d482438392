"""One member's Raft core: messages, appends and ticks in; messages and applied entries out.

The library elects, votes and advances the commit index (:mod:`nameserver.raft.library`). What it has
wrong is closed by the parts of this core, see :mod:`.hardening`. Each is given what it needs, and this file
calls them in order.
"""

from __future__ import annotations

import math
from typing import Final

from nameserver.raft.library import CANDIDATE, LEADER

from .applying import Applying
from .elections import Elections
from .following import Following
from .leading import Leading
from .messages import (
    Append,
    AppendReply,
    Message,
    PreVote,
    PreVoteReply,
    RequestVote,
    SnapshotReply,
    Stale,
    TimeoutNow,
    VoteReply,
)
from .part import Part, Shared


class RaftCore(Part):
    """The parts of a core, and what the library asks of them (:class:`nameserver.raft.library.Rules`)."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.library: Final = shared.library
        self.elections: Final = Elections(shared)
        self.following: Final = Following(shared)
        self.leading: Final = Leading(shared)
        self.applying: Final = Applying(shared, self.leading)
        self.replicate = self.leading.replicate
        self.leadership_begins = self.leading.leadership_begins
        self.apply = self.applying.apply
        self.library.rules = self

    # ---- events

    def next_wake(self) -> float:
        """The next instant at which a tick has something to do."""
        library = self.library
        if library.state == LEADER:
            return min((p.beat_at for p in self.leading.progress.values()), default=math.inf)
        deadline = library.election_deadline
        return min(deadline, self._patience.watch.due) if self._electorate.other_voters else deadline

    @property
    def due(self) -> bool:
        """Whether :meth:`tick` has something to do already, before :meth:`next_wake`."""
        library = self.library
        commit = library.commit_index
        if library.applied_index < commit:
            return True
        if library.state != LEADER:
            return self.elections.elected_if_standing or library.election_deadline <= self._clock()
        return self.leading.due or (commit < self._log.last_index and self.leading.quorum_index() > commit)

    def tick(self) -> None:
        """Do what time, or a message, has made due: stand, commit, replicate."""
        now, library = self._clock(), self.library
        led, limit = library.state == LEADER, None
        if led:
            limit = self.leading.quorum_index()
            self.leading.doing = "no majority answered in time"
        else:
            self.elections.ask_before_standing(now)
        try:
            library.tick(now, commit_limit=limit)
            if library.state == CANDIDATE and library.election_deadline > now + self._timeout:
                self._patience.ask_again_soon(now, syncs=True)
            if led and library.state != LEADER:
                self.leading.ask_successor()
        finally:
            self.elections.elected_if_standing = False

    def link_down(self, peer: str) -> None:
        self.library.link_down(peer)
        self.leading.link_changed(peer)
        self._patience.link_down(peer)

    def receive(self, peer: str, message: Message) -> None:
        """Take one message from an authenticated peer. D10: only those take part that proved who they are.

        That may be more than the configuration here names: the leader can be a member that was added while
        this one was away. What counts in a majority is decided by the configuration.
        """
        if not self._electorate.knows(peer):
            return
        if self.library.state == LEADER:
            self.leading.doing = f"{type(message).__name__} from {peer}"
        match message:
            case Append():
                self.following.on_append(peer, message)
            case AppendReply():
                self.leading.on_append_reply(peer, message)
            case SnapshotReply():
                self.leading.on_snapshot_reply(peer, message)
            case PreVote():
                self.elections.on_pre_vote(peer, message)
            case PreVoteReply():
                self.elections.on_pre_vote_reply(peer, message)
            case RequestVote():
                self.elections.on_request_vote(peer, message)
            case VoteReply():
                self.elections.on_vote_reply(peer, message)
            case Stale():
                self.elections.on_stale(message.term)
            case TimeoutNow():
                if self.shared.may_stand:
                    self.library.timeout_now(self._clock(), peer, term=message.term)
            case _:
                raise AssertionError(f"{type(message).__name__} is the engine's")

    # ---- what the library asks (library.Rules)

    def send_vote_request(self, peer: str, term: int, last_index: int, last_term: int) -> None:
        self._effects.send(peer, RequestVote(term, last_index, last_term, self.library.transferring))

    def send_vote(self, peer: str, term: int) -> None:
        self._effects.send(peer, VoteReply(term))

    def term_begins(self, term: int) -> None:
        """D3, D5: what was said in the term before is void, and whoever led in it does no more."""
        if self.library.state == LEADER:  # the library would do so a moment later
            self.leading.doing += f", of term {term}"
            self.library.stop_leading()
        self.elections.term_begins()
        self.following.term_begins()
        self._contact.new_term()

    def state_changed(self, before: int, state: int) -> None:
        if before == LEADER:
            self.leading.leadership_ends()
        elif state == CANDIDATE:
            self.elections.say_standing()
        self._effects.wake()
