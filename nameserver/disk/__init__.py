"""Access of both modes to the disk.

Here belongs what is promised of bytes and names on a disk, and this machine's side of it; not what is kept.

    files.py           the one way to the disk: files that are replaced whole, names that are synced
    directory.py       a data directory: its lock, and the mode that it belongs to
"""
