"""One engine with its clock, disk and links on the event loop.

Here belongs code that waits, or uses the clock, disk or network for a member; ``consensus/`` decides.

    member.py     RaftMember: the loop with clock, timers, links and the journal's writer. It performs the
                  engine's effects, and it is the interface to the layer above.
    applier.py    applies committed entries to the state machine, a few at a time
    changes.py    changes of the cluster that an operator asks for: members, leadership, snapshots
    recovery.py   reads the disk at the start, and records a clean stop
    promises.py   stores votes and member states, and holds messages back until they are stored
    certificates.py  warns before the certificate ends, and reads its files again when they change
    secret_file.py   the file with the secret that members share
    images.py     stores snapshots, and reads them in blocks
"""
