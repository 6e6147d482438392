"""The production environment of ``clusterTest``: this nameserver asks it for routes of unknown topics.

Here belongs all code that asks other nameservers as a client does. Only the wire uses it.

    kept.py        kept answers, and bounds on questions; pure
    asking.py      Production: the connections, the address server, deadlines
"""
