"""Access of both modes to the disk.

Here belongs the guarantees for bytes and names on a disk, and the code for this machine's disk. The
content of the files is defined elsewhere.

files.py      all access to the disk: files that are replaced whole, names that are synced

directory.py  a data directory: its lock, and the mode that it belongs to
"""
