"""The route table: brokers, topics and KV configuration, as a deterministic state machine.

Here belongs routes and all changes of them; it is pure. Only ``store.py`` and the parts that it uses
hold state. Commands are applied by functions that take the store as an argument.

    table.py           RouteTable: a command is applied and becomes a verdict
    view.py            RouteView: routes, brokers and KV configuration as readers see them
    registrations.py   changes by registrations, and the answers to their senders
    updates.py         a registration as a difference from the table
    leaving.py         changes when a broker leaves
    store.py           the whole state: revisions, changes since a revision, digests, snapshots
    topics.py          topics and their queue data
    brokers.py         records, and broker names with their addresses
    listings.py        encoded lists, kept while the table does not change
    kv.py              the KV configuration
    tombstones.py      removed entries with their revisions
    image.py           the snapshot of the state, also as bytes
    room.py            sizes, in all and by host, and their bounds
    entries.py         the values of the table, and their marks
"""
