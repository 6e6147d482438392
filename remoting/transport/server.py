"""The names that servers import from this package.

All memory that a peer can make us hold is bounded: connections, bytes of unfinished frames over all
connections, unanswered requests and unread answers per connection, idle time.
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
