"""The Raft engine of the replicated nameserver, and the only package that imports PySyncObj.

Code that replicates a log for any state machine belongs to this package. Code that knows routes belongs to
the packages that use this package.

Comments name defects of PySyncObj (D1 to D38, see docs/pysyncobj-defects.md) and rules (docs/raft-rules.md).

    types.py           settings, roles, and the interface of the state machine that the engine drives
    library.py         PySyncObj's Raft, with public names for the private names that are used
    pysyncobj_seam.py  a private copy of the PySyncObj modules
    consensus/         the decisions of a member, without I/O
    storage/           the files of a member
    links/             the connections to the other members
    node/              one member on the event loop: the engine with its clock, disk and links
"""
