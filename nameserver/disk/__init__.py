"""Access to the disk, in the independent mode and in the raft mode.

This package defines which bytes and file names survive a power cut, and contains the code for the real disk.
Other packages define the content of the files.

files.py      all access to the disk: files that are replaced as a whole, names that are synced

directory.py  a data directory: its lock, and the mode to which it belongs
"""
