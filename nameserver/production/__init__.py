"""Requests to the production nameservers, for routes of topics that are unknown here.

With the setting ``clusterTest``, this nameserver belongs to a test environment. The production nameservers
are the nameservers of another, existing environment of RocketMQ.

All code that sends these requests belongs here. Only the server's wire code sends requests through this
package.

    kept.py        the cache of answers, and limits on questions; no I/O
    asking.py      Production: the questions, their deadlines, the connections and the address server
"""
