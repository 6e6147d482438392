"""What a member keeps on disk, and the thread that writes it; what to keep is decided in ``consensus``.

journal.py         entries
images.py          state images
identity.py        the data directory: lock, identity, standing, vote
writer.py          the journal's thread
"""
