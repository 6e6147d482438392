"""A nameserver: which broker holds which queues of a topic, over RocketMQ's protocol and over HTTP.

Here belongs what every part of it speaks of, values and decisions without IO, and the program itself; all
else has a folder.

    __main__.py        the program: arguments, logging, signals, the parts put together
    types.py           values that the parts hand to each other
    registration.py    request 103, decoded
    commands.py        what may be done to the route table, and its bytes in the log
    verdicts.py        what that came to
    handlers.py        a request and a table become an answer, a renewal or a command
    liveness.py        which brokers this process has heard, and who is gone
    disk/, settings/, routes/   files; what may be set; the table
    modes/, replicated/, raft/  what a mode is, with the independent one; the replicated one; its engine
    production/        another environment's nameservers, for clusterTest
    wire/, http/       the two servers
"""

if __name__ != "routekeeper.nameserver":  # a second copy of a module has classes of its own
    raise ImportError(f"{__name__!r} is installed as routekeeper.nameserver: import it by this name")
