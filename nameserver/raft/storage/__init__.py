"""What a member keeps on disk, and the thread that writes it; what to keep is decided in ``consensus``.

journal.py         entries
images.py          state images
slots.py           a small value, replaced in place
identity.py        the data directory: lock, identity, standing, term and vote
writer.py          the journal's thread
"""
