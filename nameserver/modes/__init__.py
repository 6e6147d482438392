"""Interface of a mode, code that all modes share, and the mode that needs no group.

Here belongs code that both modes use above the route table; code of the raft mode alone is in ``replicated``.

    interface.py       Consistency: the interface of a mode, and its errors
    group.py           Operations: status of a raft group, and operations on it
    serving.py         the loop that all modes share
    repeats.py         registrations that come again unchanged, answered without decoding them
    line.py            long work on a table: one piece after the other, in slices
    local.py           what both modes answer by themselves; request 318, put in force and kept
    independent.py     RocketMQ's own: one process, one table
    changes.py         the last changes of a table, for requests that follow it
    waiters.py         requests that wait for a topic or a list to change
    history.py         why topics left
    timeline.py        the last events of a process, for people
    explain.py         that, put into words with likely causes
    notes.py           notes on a change, with the clock
    kept_file.py       a file that follows what is in force, no matter what its disk does
"""
