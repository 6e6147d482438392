"""The known defects of PySyncObj 0.3.17, and where each is closed.

Terms, votes, the election restriction, the rule that only an entry of the current term commits, and the order
in which entries are applied are the library's. What it gets wrong is decided by the parts of
:class:`.engine.Engine`: :mod:`.part` (who counts, who is silent), :mod:`.elections`,
:mod:`.following`, :mod:`.leading`, :mod:`.membership`. Each defect: what happens, and where it is closed. Its
scenario is played by the tests that have its number in their names, and once more with the fix switched off,
which must be found wrong.

D1
    A follower drops what follows older entries that are sent again, though it has acknowledged it: a leader
    counts on entries that are gone. :meth:`.following.Following.on_append`
D2
    The commit index is taken from pieces of a snapshot without a log check: the uncommitted tail of an old
    leader is applied, and reported as a success. :meth:`.following.Following.follow`
D3
    An acknowledgement of an earlier leadership counts for the entry that has its index now.
    :meth:`.leading.Leading.on_append_reply`
D4
    A member that was cut off or paused comes back with a higher term and deposes a working leader.
    :meth:`.elections.Elections.ask_before_standing`, :mod:`.watch`
D5
    Votes are counted by message: one voter that repeats itself makes a leader.
    :meth:`.elections.Elections.on_vote_reply`
D6
    Whoever is in an older term gets no answer: a stale leader leads on. :meth:`.engine.Engine.take`,
    :meth:`.elections.Elections.on_stale`
D7
    Nothing is synced before it is acknowledged: a power cut of a majority loses it.
    :meth:`.following.Following.on_durable`, :meth:`.leading.Leading.quorum_index`,
    :mod:`routekeeper.nameserver.raft.storage.journal`
D8
    Quorum is a count of connections: a leader that hears from nobody leads on for 30 s.
    :data:`.part.FALLBACK`, :mod:`.contact`
D9
    A read has no date: a leader that was replaced answers with old state. :mod:`.contact` (a barrier is a
    majority's echo of a later clock)
D10
    Anyone who can connect takes part: one message of a stranger deposes the leader.
    :meth:`.engine.Engine.take`, :mod:`routekeeper.nameserver.raft.links.auth`
D11
    A command that raises is tried again in each tick, by each leader: the cluster stops for ever.
    :meth:`.engine.Engine._applying`
D12
    A callback that raises makes its member apply the command twice. There are no callbacks:
    :meth:`routekeeper.nameserver.raft.library.Library._applyCommand` is refused, verdicts come by apply.
D13
    A command that is lost on its way, or has no leader to go to, is never answered. As D12; what is proposed
    is sent again and has a deadline: ``routekeeper.nameserver.replicated.proposals``,
    ``routekeeper.nameserver.replicated``
D14
    A dump newer than the journal's first entries, as after a crash in between, makes the start throw the
    journal away. :func:`routekeeper.nameserver.raft.node.recovery.join`
D15
    A damaged dump is passed over in silence: the member starts with nothing, and may lead.
    :meth:`routekeeper.nameserver.raft.storage.images.Snapshots.recover`
D16
    A snapshot older than the state is installed, and rolls it back. :meth:`.images.Images.on_part`
D17
    A peer that came back with less counts with what it once had. :meth:`.leading.Leading.link_changed`
D18
    A conflict moves the leader back by one entry a heartbeat, and large tails for ever.
    :meth:`.following.Following.on_append` (the hint), :mod:`.replication`
D19
    A reset beyond the leader's own log is believed: nothing more is sent.
    :meth:`.leading.Leading.on_append_reply`
D20
    While a dump is being written, a lagging peer is sent ten thousand empty messages a tick.
    :meth:`.leading.Leading._send_image`
D21
    What a socket does not take at once leaves with the next message, whenever that is.
    :mod:`routekeeper.nameserver.raft.links.transport`
D22
    Each acknowledgement takes the leader back to it: what is under way is sent again.
    :meth:`.replication.Progress.acknowledged`
D23
    Request numbers begin at 1 in each life: the answer to a former one completes another command. As D12;
    proposals bear the number of their process: ``routekeeper.nameserver.replicated.proposals``
D24
    The first message after a silence is thrown away with its connection: a vote request, mostly.
    :meth:`routekeeper.nameserver.raft.links.transport.Link._check`
D25
    A member that was emptied, or keeps all in memory, votes again in a term in which it has voted, and counts
    for entries that it has lost. :attr:`.part.Shared.may_vote`, :mod:`.members`, :mod:`.greetings`
    (learner)
D26
    Where the last piece of a large entry begins is computed from another length: the follower reads half an
    entry and raises. Entries travel whole. :meth:`.leading.Leading.replicate`
D27
    A command waits in a deposed leader's queue and is applied over what is newer.
    :meth:`.engine.Engine.append` asks for the term; commands name what they were decided from:
    ``routekeeper.nameserver.routes``
D28
    A dump that fails is begun again at every second tick. :meth:`.images.Images.failed`
D29
    The child process that writes a dump holds every socket: the port of a killed member stays taken, and its
    dump appears later. There are no children.
    :meth:`routekeeper.nameserver.raft.node.driver.Driver._make_image`
D30
    The journal file is compacted in place, has no checksums and never shrinks: a crash on the way loses
    acknowledged entries. :mod:`routekeeper.nameserver.raft.storage.journal`
D31
    A version command above a member's own version is applied again and again. There is none: an entry of a
    kind that this program does not know stops the member. :meth:`.engine.Engine._applying`
D32
    The pipe that wakes the member is full after 65,536 submissions, which raise though they were taken.
    There is no pipe. :meth:`routekeeper.nameserver.raft.node.driver.Driver.wake`
D33
    A member listens on every address of the machine unless told otherwise.
    :meth:`routekeeper.nameserver.raft.links.transport.Transport.listen`
D34
    What a stopped peer does not read is kept without a bound. :attr:`.replication.Progress.window_open`,
    :mod:`routekeeper.nameserver.raft.links.transport`
D35
    A second membership change is accepted while the first is uncommitted: two majorities may have no member
    in common. :meth:`.membership.Membership._change`
D36
    After a restart the stored membership counts only once its entry is applied again. :class:`.log.RaftLog`,
    :meth:`.part.Shared.follow`
D37
    A leader cannot remove itself, and nothing hands over. :meth:`.membership.Membership._change`,
    :mod:`routekeeper.nameserver.raft.node.member`

All this leans on private names: :mod:`routekeeper.nameserver.raft.library` has them, and checks them at
start.
"""
