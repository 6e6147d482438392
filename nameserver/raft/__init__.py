"""The Raft engine of the replicated nameserver, and the only package that imports PySyncObj.

Here belongs code that replicates a log for any state machine; code that knows routes is above it.

    types.py           settings, roles, the state machine it drives
    library.py         the library under public names, with the private names that we use
    pysyncobj_seam.py  a private copy of the library
    consensus/         pure: what a member decides
    storage/           files of a member
    links/             connections to the other members
    node/              one engine with its clock, disk and links on the event loop
"""
