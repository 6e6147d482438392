"""A nameserver: it tells which broker holds which queues of a topic, over RocketMQ's protocol and over HTTP.

This folder holds the program, and the values and pure decisions that all parts share. Each other part has a
folder of its own.

    __main__.py        the program: arguments, logging, signals; it builds all parts
    types.py           values that several parts use
    registration.py    request 103 (a broker's registration), decoded
    commands.py        the commands that change the route table, and their bytes in the log
    verdicts.py        the results of commands
    handlers.py        the decision on a request: an answer, a lease renewal or a command
    liveness.py        when this process last saw each broker, and which brokers are gone
    disk/              access to files
    settings/          the settings and their sources
    routes/            the route table
    modes/             the interface of a mode, and the independent mode
    replicated/        the raft mode
    raft/              the raft engine
    production/        queries to another environment's nameservers, for the setting clusterTest
    wire/, http/       the two servers
"""

# Refuse an import under a second name. Python would load each module again, so each class would exist twice,
# and isinstance() would fail for objects of the other copy.
if __name__ != "routekeeper.nameserver":
    raise ImportError(f"{__name__!r} is installed as routekeeper.nameserver: import it by this name")
