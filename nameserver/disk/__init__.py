"""How both modes reach the disk: files that are replaced whole.

files.py           the one way to the disk: what is promised of bytes and names, and this machine's side of it
"""
