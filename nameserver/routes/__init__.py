"""The route table: which brokers, topics and KV configuration there are, as a deterministic state machine.

Here belongs what a route is and what changes it; all of it is pure. State lives in ``store.py`` and the parts
below it, and only there; what a command does to it are functions above it, which take the store.

    table.py           RouteTable: a command is applied and becomes a verdict
    view.py            RouteView: routes, brokers and KV configuration as readers see them
    registrations.py   what a registration changes, and what its sender is told
    updates.py         a registration as the difference that it makes
    leaving.py         what goes when a broker goes
    store.py           all that is kept: revisions, what moved since, digests, images
    topics.py          topics and their queue data
    brokers.py         records, and broker names with their addresses
    listings.py        encoded lists, kept while the table does not change
    kv.py              the KV configuration
    tombstones.py      what was removed, and when
    image.py           the state image, as bytes too
    room.py            how much there is, of each host too, and whether there may be more
    entries.py         the values that are kept, and their marks
"""
