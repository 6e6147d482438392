"""One engine with its clock, disk and links on the event loop.

Here belongs anything that waits or touches the machine for a member; what decides is in ``consensus/``.

    member.py     RaftMember: the loop with clock, timers, links, the journal's writer, each effect of the
                  engine; and what the layer above sees
    applier.py    committed entries on their way into the state machine, a part at a time
    changes.py    changes of the cluster that an operator asks for: members, leadership, snapshots
    recovery.py   what the disk holds at the start, and the end
    promises.py   votes and standings on their way to the disk, and what waits for them
    certificates.py  the certificate's end, and its files when they change
    secret_file.py   the secrets in the file that members share
    images.py     state images: stored, read in blocks
"""
