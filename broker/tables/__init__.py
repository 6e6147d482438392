"""Tables of one broker beside messages, and the files that keep them.

Here belongs a table with its bounds; all of it is pure but for the files.

    state.py           BrokerState: all tables of one broker, and what handlers want done
    state_files.py     the tables on disk, and who waits for that
    topics.py          topics, rules on their names, their attributes
    group_configs.py   consumer groups as they are configured
    groups.py          clients, by group and connection
    offsets.py         where groups are in their queues
    locks.py           queues that consumers have locked
    long_polling.py    pulls that wait
    stats.py           counters and their rates
"""
