"""One engine with its clock, disk and links on the event loop.

Here belongs whatever waits or touches the machine for a member; what decides is in ``consensus/``.

    driver.py     the loop: timers, links, the journal's writer, each of the engine's ports
"""
