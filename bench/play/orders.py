"""Functions that check a command of the playground's user, find its target, and list its links.

This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from routekeeper.bench.links import Direction, between_groups, both_ways
from routekeeper.bench.play.model import DESIGNS, Design, Order, Server

SERVERS: Final = tuple(f"nameserver-{index}" for index in range(3))
BROKERS: Final = tuple(f"broker-{index}" for index in range(3))
CLIENTS: Final = tuple(f"client-{index}" for index in range(4))
NAMES: Final = (*SERVERS, *BROKERS, *CLIENTS)
LEADER: Final = "leader"

DIVISORS: Final = (1.0, 10.0, 30.0, 60.0)
DELAY_MAX_MS: Final = 5_000
TOPICS_MAX: Final = 8
_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")

#: Maps each command that causes a fault to the fault's kind in the comparison. After each such command, the
#: page counts the clients' answers from 0 again.
FAULTS: Final[Mapping[str, str]] = {
    "kill": "kill",
    "pause": "freeze",
    "stop": "stop",
    "restart-empty": "empty",
    "cut": "cable",
    "slow": "slow",
    "part": "partition",
    "make-topic": "update-topic",
}
#: Commands that undo a fault.
HEALING: Final = ("heal", "start", "resume")
_OF_PROCESSES: Final = ("kill", "pause", "resume", "start", "stop")
_OF_SERVERS: Final = ("restart-empty", "part")
_OF_CLIENTS: Final = ("reconnect",)
_OF_LINKS: Final = ("cut", "slow")


def problem_of(order: Order) -> str | None:
    """Return in one line why a command is invalid in every design, or None if it is valid."""
    known = f"allowed are {', '.join(NAMES)} and {LEADER}"
    if twice := [name for name in DESIGNS if order.designs.count(name) > 1]:
        return f"designs has {twice[0]} twice"
    if order.do in (*_OF_PROCESSES, *_OF_SERVERS, *_OF_CLIENTS, *_OF_LINKS):
        if order.target not in (*NAMES, LEADER):
            return f"target={order.target[:40]!r} is no name; {known}"
        if order.do in _OF_PROCESSES and order.target in CLIENTS:
            return f"target={order.target!r} is a client; {order.do} is for servers and brokers"
        if order.do in _OF_SERVERS and order.target not in (*SERVERS, LEADER):
            return f"target={order.target!r} is no server; {order.do} is for servers"
        if order.do in _OF_CLIENTS and order.target not in CLIENTS:
            return f"target={order.target!r} is no client; {order.do} is for clients"
        if order.do in _OF_CLIENTS and order.to not in (*SERVERS, LEADER):
            return f"to={order.to[:40]!r} is no server; allowed are {', '.join(SERVERS)} and {LEADER}"
    elif order.target:
        return f"target={order.target[:40]!r} is not used by {order.do}; leave it out"
    if order.do in _OF_LINKS:
        if order.to and order.to not in (*NAMES, LEADER):
            return f"to={order.to[:40]!r} is no name; {known}"
        if order.to == order.target:
            return f"to={order.to!r} is the target itself"
    elif (order.to and order.do not in _OF_CLIENTS) or order.oneway:
        return f"to and oneway are not used by {order.do}; leave them out"
    if not 0 <= order.delay_ms <= DELAY_MAX_MS:
        return f"delay_ms={order.delay_ms} is out of range, allowed are 0 to {DELAY_MAX_MS}"
    if order.do != "slow" and order.delay_ms:
        return f"delay_ms is not used by {order.do}; leave it out"
    if order.do == "make-topic" and _TOPIC.fullmatch(order.topic) is None:
        return f"topic={order.topic[:40]!r}: allowed are 1 to 32 letters, digits, '_' and '-'"
    if order.do != "make-topic" and order.topic:
        return f"topic is not used by {order.do}; leave it out"
    if order.do == "timers" and order.divisor not in DIVISORS:
        return f"divisor={order.divisor:g}: allowed are {', '.join(f'{each:g}' for each in DIVISORS)}"
    if order.do == "timers" and order.designs:
        return "designs is not used by timers: all designs have the same; leave it out"
    if order.do != "timers" and order.divisor:
        return f"divisor is not used by {order.do}; leave it out"
    return None


def named(target: str, design: Design) -> str | None:
    """Return the name of the process that ``target`` means in a design.

    ``target`` is a process's name, which is returned unchanged, or the word "leader". Return None
    if ``target`` is "leader" and no server runs.
    """
    if target != LEADER:
        return target
    running = [server for server in design.servers if server.life == "up"]
    leading = [server for server in running if server.role == "leader" and server.answers]
    # If two servers claim to lead, take the server with the higher term. The server with the lower term has
    # not noticed yet that it was replaced.
    found: Server | None = max(leading, key=lambda each: each.term or 0) if leading else None
    if found is None and running:  # without a leader, take the server that most clients ask
        asked = [client.asks for client in design.clients]
        found = max(running, key=lambda each: asked.count(each.name))
    return None if found is None else found.name


def directions(order: Order, target: str, to: str) -> list[Direction]:
    """Return the directions (pairs of process names) that a command cuts or slows.

    The list also has pairs of processes that no link connects. The proxy ignores these pairs.
    """
    if order.do == "part":
        alone = [target, BROKERS[0], CLIENTS[0]]
        return between_groups([alone, [name for name in NAMES if name not in alone]])
    others = [to] if to else [name for name in NAMES if name != target]
    if order.oneway:
        return [(target, other) for other in others]
    return both_ways([target], others)


def in_words(order: Order, target: str = "") -> str:
    """Describe a command in a few words."""
    name = target or order.target
    match order.do:
        case "cut" | "slow":
            to = f" to {order.to}" if order.to else ""
            how = "one way " if order.oneway else ""
            delay = f" by {order.delay_ms} ms" if order.do == "slow" else ""
            return f"{order.do} {how}{name}{to}{delay}"
        case "make-topic":
            return f"make topic {order.topic}"
        case "timers":
            return f"timers divided by {order.divisor:g}"
        case "reconnect":
            return f"reconnect {name} to {order.to}"
        case "heal":
            return "heal"
        case _:
            return f"{order.do} {name}"
