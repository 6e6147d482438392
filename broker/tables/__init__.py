"""Tables of one broker, and the files of these tables. Messages are in the package ``store``.

This package contains the tables and their bounds. Only ``state_files.py`` accesses files.

    state.py           BrokerState: all tables of one broker, and the effects of handlers
    state_files.py     the tables on disk, and callers that wait for writes
    topics.py          topics, rules on their names, their attributes
    group_configs.py   configurations of consumer groups
    groups.py          clients, by group and connection
    offsets.py         committed offsets of groups
    locks.py           queues that consumers have locked
    long_polling.py    pulls that wait for a message
    stats.py           counters and their rates
"""
