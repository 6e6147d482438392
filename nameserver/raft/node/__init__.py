"""One engine with its clock, disk and links on the event loop.

Code that waits, or that uses the clock, disk or network for a member, belongs here. Code that makes Raft's
decisions belongs to ``consensus/``.

    member.py     RaftMember: one engine with clock, timers, links and the journal's writer. It performs the
                  engine's effects, and is the interface for the code that uses this package.
    applier.py    applies committed entries to the state machine, a few at a time
    changes.py    changes of the cluster that an operator asks for: members, leadership, snapshots
    recovery.py   reads the disk at the start, and records a clean stop
    promises.py   stores votes and member states before any message that depends on them leaves
    certificates.py  warns before the certificate expires, and reads the TLS files again when they change
    secret_file.py   the file with the secret that members share
    images.py     stores snapshots, and reads them in blocks
"""
