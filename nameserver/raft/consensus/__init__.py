"""Consensus without I/O: elections, replication, membership, snapshots and contact, as pure state machines.

Code that makes Raft's decisions belongs here. The caller passes in the clock and the random source. The
engine returns messages and disk writes as values (effects), and the caller performs these effects. Code that
uses files, threads or sockets belongs to the other packages.

    engine.py          the order of the work that a message, an append, a journal write or a timer triggers
    effects.py         effects: values that name the actions which the caller must perform, in order
    elections.py, following.py, leading.py   the parts that repair the defects of the library (PySyncObj)
    replication.py, watch.py   messages under way to a follower; detection of this member's own pauses
    greetings.py       greetings received from other members, and this member's own greeting
    membership.py      changes of the members, and of the leader
    members.py         configurations and member states as values
    images.py          how a member makes, receives and restores snapshots
    contact.py         the newest time at which this member certainly belonged to the cluster
    log.py             entries in memory, and operations for the journal
    messages.py        messages between members, and their bytes
    part.py            state that the parts share, such as the voters; this module imports none of the parts
"""
