"""RocketMQ's remoting protocol: a codec and the logic of one connection, both without I/O.

The subpackage ``transport`` sends and receives the bytes. It contains two clients, ``transport.aio``
(asyncio) and ``transport.blocking`` (blocking sockets), and a server, ``transport.server``.
"""

# Refuse every other name. If programs imported this package under two names, Python would make two different
# classes from each class, and ``isinstance`` would fail.
if __name__ != "routekeeper.remoting":
    raise ImportError(f"{__name__!r} is installed as routekeeper.remoting: import it by this name")
