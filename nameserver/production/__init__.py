"""Requests to the production environment of ``clusterTest``, for routes of topics that are unknown here.

All code by which this nameserver sends requests as a client to other nameservers belongs here. Only the
server's wire code uses this package.

    kept.py        the cache of answers, and limits on questions; no I/O
    asking.py      Production: the questions, their deadlines, the connections and the address server
"""
