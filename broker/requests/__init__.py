"""Handlers: functions that take a request and the broker's state, and return an answer.

If an answer has to wait, the handler returns an object that says what to wait for. This folder holds the
handlers of all request codes. No code in this folder waits, and only the store reads and writes files.

    handlers.py          the table from codes to handlers
    sending.py           storing messages: 10, 36, 310, 320
    pulling.py           reading queues: 11, 361, and offsets
    client_requests.py   heartbeats, members and groups
    admin.py             topics and the broker itself
    group_requests.py    operators' requests about groups
    inspection.py        operators' requests about a broker's internal state
    lists.py             requests with lists of topics or of groups: 18, 225
    queries.py           messages by key: 12
    forwarding.py        requests that consumers answer
    audited.py           requests that write an audit line, and the texts of that line
    tags.py              tag codes, by which messages are filtered
"""
