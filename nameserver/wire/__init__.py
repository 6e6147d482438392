"""RocketMQ's protocol on a socket: requests to a mode and answers back; nothing here decides a route.

Here belongs what a connection of that protocol needs and HTTP does not.

    server.py          NameServer: dispatch, drain
    access.py          accounts and networks that may ask something
    notices.py         request 905 to brokers that registered from where they say they are
    route_cache.py     answers to 105, encoded once for all topics whose routes are made of the same
    kv_print.py        the KV configuration in the log, every ten minutes
    audit_log.py       who changed what, in one line a change; a bounded number for each host
"""
