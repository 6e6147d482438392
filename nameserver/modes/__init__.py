"""What a mode is, what all modes share, and the one that needs no group.

Here belongs what both modes use above the route table; what only the raft mode needs is in ``replicated``.

    interface.py       Consistency: what the servers know of a mode, and its errors
    group.py           Operations: what operators read of a raft group and do to it
    serving.py         the loop that all modes share
    repeats.py         registrations that come again unchanged, answered without decoding them
    line.py            what changes or reads a table for long: one piece after the other, in slices
    local.py           what both modes answer by themselves; request 318, put in force and kept
    independent.py     RocketMQ's own: one process, one table
    changes.py         the last changes of a table, for those who follow it
    waiters.py         who waits for a topic or a list to change
    history.py         why topics left
    explain.py         that, put into words with likely causes
    notes.py           what is noted of a change, with the clock
    kept_file.py       a file that follows what is in force, whatever its disk does
"""
