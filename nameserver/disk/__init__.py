"""How both modes reach the disk: files that are replaced whole, and threads that wait in place of the loop.

files.py           the one way to the disk: what is promised of bytes and names, and this machine's side of it
threads.py         a thread that waits for the disk
"""
