"""A member's files, and the thread that writes them.

Here belongs code for file formats and for reading files after any kind of stop; ``consensus`` decides.

    journal.py         entries
    end.py             the position at which the journal ends
    images.py          snapshots
    slots.py           a small value, replaced in place
    identity.py        the data directory: lock, identity, member state, term and vote
    writer.py          the journal's thread
"""
