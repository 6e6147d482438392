"""Interface of a mode, code that all modes share, and the mode that needs no group.

Here belongs the code above the route table that both modes use. Code of the raft mode alone is in
``replicated``.

    interface.py       Consistency: the interface of a mode, and its errors
    group.py           Operations: status of a raft group, and operations on it
    serving.py         the loop that all modes share
    repeats.py         unchanged registrations, answered without decoding them again
    line.py            long work on a table: one task after the other, in slices
    local.py           answers from this process's own table; request 318
    independent.py     RocketMQ's own mode: one process, one table
    changes.py         the last changes of a table, for requests that follow it
    waiters.py         requests that wait for a topic or a list to change
    history.py         why topics left
    timeline.py        the last events of a process, for people
    explain.py         the history in words, with likely causes
    notes.py           notes on a change, with the clock
    kept_file.py       a file that follows the state in force, even if its disk hangs
"""
