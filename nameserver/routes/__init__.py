"""The route table: brokers, topics and KV configuration, as a deterministic state machine.

This package holds all code that defines routes and changes them. It does no I/O and reads no clock. Only
``store.py`` and the modules that it uses hold state. The functions that apply commands take the store as an
argument.

    table.py           RouteTable: applies a command and returns a verdict
    view.py            RouteView: routes, brokers and KV configuration as readers see them
    registrations.py   changes by registrations, and the answers to the brokers
    updates.py         a registration as a difference from the table
    leaving.py         changes when a broker is removed
    store.py           the whole state: revisions, changes since a revision, digests, snapshots
    topics.py          topics and their queue data
    brokers.py         records of brokers, and broker names with their addresses
    listings.py        encoded lists, each used for many requests
    sorting.py         sorting of names in steps
    kv.py              the KV configuration
    tombstones.py      removed entries with their revisions
    image.py           the snapshot of the state, also as bytes
    room.py            sizes of the table, in total and per host, and their limits
    entries.py         the values of the table, and the hash of each value for the digests
"""
