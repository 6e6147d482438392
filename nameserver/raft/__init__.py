"""The Raft engine under the replicated nameserver: the only package that knows PySyncObj.

Here belongs what makes a replicated log of any state machine; what a route is stays above.

    types.py           settings, roles, the state machine it drives
    library.py         the library behind plain names, and the private ones that we lean on
    pysyncobj_seam.py  the library, loaded for us alone
    consensus/         pure: what a member decides
    storage/           what it keeps on disk
    links/             how it talks to the others
    node/              one engine with its clock, disk and links on the event loop
"""
