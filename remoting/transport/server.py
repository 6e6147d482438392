"""Public names of this package for servers. The server is in ``listener``, a connection in ``connection``.

All memory that a peer can make a server use is limited. There are limits of connections, of unfinished frames
on all connections, of unanswered requests and unread answers on each connection, and of idle time.
"""

from __future__ import annotations

from routekeeper.remoting.transport.connection import Connection, DeferredReply, Handler
from routekeeper.remoting.transport.descriptors import fit_descriptors
from routekeeper.remoting.transport.inbox import FastPath
from routekeeper.remoting.transport.limits import ServerLimits, ServerStats
from routekeeper.remoting.transport.listener import RemotingServer

__all__ = [
    "Connection",
    "DeferredReply",
    "FastPath",
    "Handler",
    "RemotingServer",
    "ServerLimits",
    "ServerStats",
    "fit_descriptors",
]
