"""Handlers: functions of a request and the broker's state that return an answer, now or later.

Here belongs all handlers of request codes. No code here waits, and only the store does IO.

    handlers.py          the table from codes to handlers
    sending.py           storing messages: 10, 36, 310, 320
    pulling.py           reading queues: 11, 361, and offsets
    client_requests.py   heartbeats, members and groups
    admin.py             topics and the broker itself
    group_requests.py    operators' requests about groups
    inspection.py        operators' requests about a broker's inner state
    lists.py             lists of topics and of groups: 18, 225
    queries.py           messages by key
    forwarding.py        requests that consumers answer
    audited.py           requests that leave an audit line, and its words
    tags.py              codes by which messages are filtered
"""
