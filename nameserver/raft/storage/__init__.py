"""A member's files, and the thread that writes them.

Here belongs the form of files and how they are read back after any end; ``consensus`` decides what to keep.

    journal.py         entries
    end.py             where the journal ends
    images.py          state images
    slots.py           a small value, replaced in place
    identity.py        the data directory: lock, identity, standing, term and vote
    writer.py          the journal's thread
"""
