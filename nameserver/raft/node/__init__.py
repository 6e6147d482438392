"""One engine with its clock, disk and links on the event loop.

Here belongs whatever waits or touches the machine for a member; what decides is in ``consensus/``.

    member.py     RaftMember: what the layer above sees
    driver.py     the loop: clock, timers, links, the journal's writer, each effect of the engine
    recovery.py   what the disk holds at the start, and the end
    promises.py   votes and standings on their way to the disk, and what waits for them
    certificates.py  the certificate's end, and its files when they change
    images.py     state images: stored, read in blocks
"""
