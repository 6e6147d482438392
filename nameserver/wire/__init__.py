"""RocketMQ's protocol on a socket: it sends requests to a mode, and answers to clients.

Here belongs code that only this protocol needs, and HTTP does not. No code here decides a route.

    server.py          NameServer: dispatch, drain
    access.py          accounts and networks that may send requests
    notices.py         request 905 to brokers that registered from their own host
    route_cache.py     answers to 105, encoded once for all topics with equal routes
    kv_print.py        the KV configuration in the log, every ten minutes
    audit_log.py       one log line for each change by people; bounded for each host
"""
