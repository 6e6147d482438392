"""Consensus without IO: elections, replication, membership, snapshots, contact, as state machines on values.

Here belongs code that decides. Clock and randomness are passed in; messages and writes come out as effects.
Files, threads and sockets stay out.

    engine.py          the order of events: the effects of a message, an append, the journal or the clock
    effects.py         work for the caller of the engine, as values in order
    elections.py, following.py, leading.py   the parts that close the library's defects
    replication.py, watch.py   messages under way to a follower; pauses of this member itself
    greetings.py       the members that this one has met, and its own member state
    membership.py      who takes part and who leads
    members.py         configurations and member states as values
    images.py          snapshots: making, receiving and restoring them
    contact.py         the age of the leader's last statement
    log.py             entries in memory, and operations for the journal
    messages.py        messages between members, and their bytes
    part.py            state that the parts share: voters, silent members; it imports none of the parts
"""
