"""RocketMQ's protocol on a socket: requests from clients, and answers to them.

Requests that change something go to the nameserver's mode: independent (one process) or raft (a group). This
package contains the code of the nameserver that only this protocol needs. No code here decides which route a
topic has.

    server.py          NameServer: connections, dispatch of requests, shutdown
    access.py          accounts and networks that may send requests
    notices.py         request 905 to brokers that registered from their own host
    route_cache.py     answers to request 105, encoded once for all topics with equal routes
    kv_print.py        the KV configuration in the log, every ten minutes
    audit_log.py       a log line for each change by an administrator
"""
