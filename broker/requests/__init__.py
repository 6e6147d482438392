"""A request and the broker's state become an answer, or one that comes later.

Here belongs what serves a request code. Nothing waits here, and nothing but the store does IO.

    handlers.py          which code is served by whom
    sending.py           messages are stored: 10, 36, 310, 320
    pulling.py           queues are read: 11, 361, and offsets
    client_requests.py   heartbeats, members and groups
    admin.py             topics and the broker itself
    group_requests.py    groups, as operators ask for them
    inspection.py        a broker's insides, as operators ask for them
    lists.py             lists of topics and of groups: 18, 225
    queries.py           messages by key
    forwarding.py        requests that consumers answer
    audited.py           requests that leave an audit line, and its words
    tags.py              codes by which messages are filtered
"""
