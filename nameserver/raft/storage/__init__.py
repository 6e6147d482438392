"""A member's files, and the thread that writes the journal.

Code for file formats belongs here, and code that reads the files again after a crash or a clean stop. Code
that makes Raft's decisions belongs to ``consensus``.

    journal.py         log entries
    end.py             the position at which the journal ends
    images.py          snapshots
    slots.py           a small value that is replaced in place
    identity.py        the data directory: lock, identity, member state, term and vote
    writer.py          the journal's thread
"""
