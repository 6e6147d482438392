"""Access to the disk, for independent mode and for raft mode.

This package defines which bytes and file names survive a power cut, and contains the code for the real disk.
Other packages define the content of the files.

    files.py      all access to the disk; it replaces whole files and syncs file names
    directory.py  a data directory: its lock, and the mode to which it belongs
"""
