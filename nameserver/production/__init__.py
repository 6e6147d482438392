"""Requests to the production environment of ``clusterTest``, for routes of topics that are unknown here.

All code that sends requests to other nameservers, as a client does, belongs here. Only the server's wire code
uses this package.

    kept.py        kept answers, and bounds on questions, without I/O
    asking.py      Production: the connections, the address server, deadlines
"""
