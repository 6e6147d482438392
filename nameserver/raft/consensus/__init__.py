"""Consensus without IO: elections, replication, membership, images, contact, as state machines on values.

Here belongs what decides; clock and chance are passed in, and what is to be sent and stored comes out as
effects. Files, threads and sockets stay out.

    engine.py          the order of things: what a message, an append, the journal or the clock makes due
    effects.py         what a step wants done, as values in order
    elections.py, following.py, leading.py   the parts that close the library's defects
    replication.py, watch.py   what a follower is sent; whether this member stood still
    greetings.py       whom this member has met, and its own standing
    membership.py      who takes part and who leads
    members.py         configurations and standings as values
    images.py          state images: made, taken, restored
    contact.py         how old what a leader said is
    log.py             entries in memory, and the operations that the journal is to keep
    messages.py        what members say to each other, and its bytes
    part.py            what the parts share: who counts, who is silent; it imports none of them
"""
