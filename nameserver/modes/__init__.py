"""The nameserver's modes: their interface, the code that all modes share, and the independent mode.

In independent mode, one process with its own table answers. In raft mode, a group of processes answers. This
package has the code that both modes use, except the route table. Code for the raft mode alone is in
``replicated``.

    interface.py       Consistency: the interface of a mode, and its errors
    group.py           Operations: status of a raft group, and operations on the group
    serving.py         the loop that all modes share: decide a request, propose a command, decide again
    repeats.py         unchanged registrations, which are answered without decoding
    line.py            Line: a queue of tasks on a table, run one after another in short slices
    local.py           answers from this process's own table, and changes of its settings (request 318)
    independent.py     RocketMQ's own mode: one process, one table
    changes.py         the last changes of a table, for requests that follow the table
    waiters.py         requests that wait for a topic or a list to change
    history.py         the reasons why topics and brokers left the table
    timeline.py        the last events of a process, for people to read
    explain.py         the reasons why a topic has no route, in words
    notes.py           entries about changes of routes, in the history and in the log
    kept_file.py       a file that is written again after each change of the state
"""
