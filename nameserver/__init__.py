"""A nameserver: which broker holds which queues of a topic, over RocketMQ's protocol and over HTTP.

Here belongs the program, and the values and decisions without IO that all parts share. Everything
else has a folder.

    __main__.py        the program: arguments, logging, signals; it builds all parts
    types.py           values that several parts use
    registration.py    request 103, decoded
    commands.py        the commands that change the route table, and their bytes in the log
    verdicts.py        the results of commands
    handlers.py        turn a request and the table into an answer, a renewal or a command
    liveness.py        when this process last saw each broker, and which brokers are gone
    disk/, settings/, routes/   files; what may be set; the table
    modes/, replicated/, raft/  what a mode is, with the independent one; the replicated one; its engine
    production/        another environment's nameservers, for clusterTest
    wire/, http/       the two servers
"""

if __name__ != "routekeeper.nameserver":  # a second copy of a module has classes of its own
    raise ImportError(f"{__name__!r} is installed as routekeeper.nameserver: import it by this name")
