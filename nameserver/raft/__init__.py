"""The Raft engine of the replicated nameserver, and the only package that imports PySyncObj.

Code that replicates a log for any state machine belongs here. Code that knows routes belongs to the packages
that use this one.

Comments name defects of PySyncObj (D1 to D38, see docs/pysyncobj-defects.md) and rules (docs/raft-rules.md).

    types.py           settings, roles, the state machine that the engine drives
    library.py         PySyncObj's Raft; each private name of PySyncObj that is used here has a public name
    pysyncobj_seam.py  a private copy of the PySyncObj modules
    consensus/         the decisions of a member, without I/O
    storage/           the files of a member
    links/             the connections to the other members
    node/              one engine with its clock, disk and links on the event loop
"""
