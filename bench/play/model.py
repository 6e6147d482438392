"""Everything that crosses HTTP between the playground and its page (pure).

All instants are whole milliseconds since the session began (``at_ms``, ``..._ms``). All bodies are JSON.

``GET /``, ``/web/FILE``, ``/drawings/FILE``, ``/published/FILE``
    The page, the drawings that the console has, too, and the published answers (``docs/results``).

``GET /v1/state``
    The present picture: a :class:`State`.

``GET /v1/events``
    Server-sent events. The first one is ``event: state`` with a :class:`State`. Then one ``event: change``
    for each :class:`Change`, with ``id: SESSION-ID``; apply it as
    :func:`routekeeper.bench.play.picture.apply` does: a change carries whole values, so replace the value of
    the same name. A page that comes back with ``Last-Event-ID`` gets the changes it has missed in place of
    the state if they are still kept and the program is the same; else a state. ``event: tick`` comes twice a
    second, has no id, and is in no log: a :class:`Tick` says how old the readings are. At most 16 pages watch
    at a time (503 for the next). A page that does not read is closed.

``GET /v1/log``
    A :class:`Log`: the picture at the begin of what is kept, and every change since: scrub in it. 20,000
    changes are kept; older ones are folded into ``base``.

``POST /v1/actions``
    An :class:`Order`; answered by :class:`Done` with one outcome for each design that was asked. The answer
    comes when the fault has hit, not when its consequences are over. 400 with :class:`Refusal` for an order
    that makes no sense, 403 for a page of another origin, 429 if 8 orders are under way.

``POST /v1/save``
    Without a body; answered by :class:`Saved`.

Names are the same in every design: ``nameserver-0`` to ``nameserver-2`` (in the design zookeeper these are
ZooKeeper's servers), ``broker-0`` to ``broker-2``, ``client-0`` to ``client-3``. POST needs the header
``Content-Type: application/json`` and, from a browser, an ``Origin`` that is the page's own.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

DESIGNS: Final = ("independent", "raft", "zookeeper")
DesignName = Literal["independent", "raft", "zookeeper"]

Phase = Literal["starting", "running", "failed", "ended"]
Life = Literal["up", "starting", "paused", "down"]
"""State of a process. ``starting``: the process runs, and has not reported yet that it serves."""
Verdict = Literal["right", "stale", "wrong", "refused", "none", "uncounted"]
"""``none``: there was no answer. ``uncounted``: the answer overlapped a change, so it counts neither as right
nor as wrong."""
Passing = Literal["open", "cut", "unknown"]
"""``unknown``: the proxy does not answer."""


class TopicKnown(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as one server lists it."""

    topic: str
    queues: dict[str, int]
    """Broker to the number of its queues."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A nameserver, or a server of ZooKeeper."""

    name: str
    addr: str
    life: Life
    """Read from its process."""
    pid: int | None = None
    answers: bool = False
    """True if the server answered the last reading; otherwise the fields below are from its last answer."""
    role: str = "unknown"
    """``leader``, ``follower``, ``candidate``, ``independent``...; ``unknown`` without any answer."""
    serves: bool = False
    """True if it says that it answers reads and writes."""
    term: int | None = None
    brokers: list[str] = []
    topics: list[TopicKnown] = []
    read_ms: int | None = None
    """Instant of its last answer. The answer's age is ``at_ms`` of the newest tick or change minus this."""


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """A broker; ``registered`` names the servers that list it."""

    name: str
    addr: str
    life: Life
    pid: int | None = None
    registered: list[str] = []


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The last answer that a client got, and its judgement."""

    verdict: Verdict
    why: str = ""
    """Why it is not right, in words: ``lists broker-1, which is down``."""
    topic: str
    server: str | None = None
    """The server that answered, or was asked last."""
    brokers: list[str] | None = None
    """Brokers that the answer lists; null without an answer."""
    remark: str = ""
    """The server's or the client's own words."""
    sent_ms: int
    done_ms: int


class Cached(msgspec.Struct, frozen=True, kw_only=True):
    """The route that a client keeps and uses between two questions, as RocketMQ's clients do."""

    topic: str
    brokers: list[str] | None
    """Brokers of the kept route; null while the client has no route."""
    since_ms: int
    by: Literal["poll", "watch"]
    """The way in which clients of its design learn of changes."""
    verdict: Verdict = "right"
    """The judgement of this route as it is now."""


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """A client; all clients of a design share one process."""

    name: str
    life: Life
    asks: str | None = None
    """The server that it asks now."""
    last: Answer | None = None
    cached: list[Cached] = []


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A link through the proxy, in the state that the proxy reports."""

    dialler: str
    acceptor: str
    forward: Passing
    """From the dialler to the acceptor."""
    back: Passing
    forward_ms: int = 0
    """Delay that the proxy adds in the forward direction."""
    back_ms: int = 0
    waiting: bool = False
    """True if the proxy holds back bytes that were sent."""


class Counters(msgspec.Struct, kw_only=True):
    """Answers to all clients of a design since the last fault, or since the begin."""

    since_ms: int = 0
    right: int = 0
    stale: int = 0
    wrong: int = 0
    refused: int = 0
    none: int = 0
    uncounted: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Memory and processor time that the processes of a design use."""

    processes: int
    memory_bytes: int
    cpu: float
    """Processor cores, over the last second."""


class Design(msgspec.Struct, kw_only=True):
    """One design; lists are in the order of names, links in that of dialler and acceptor."""

    name: DesignName
    phase: Phase = "starting"
    reason: str = ""
    """Why it failed, in one line."""
    servers: list[Server] = []
    brokers: list[Broker] = []
    clients: list[Client] = []
    links: list[Link] = []
    topics: list[str] = []
    """Topics that somebody has made, in order; clients ask for the last one."""
    counters: Counters = msgspec.field(default_factory=Counters)
    usage: Usage | None = None


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The last fault: counters count from here."""

    action: int
    """The id of the change that contains the order."""
    at_ms: int
    text: str


class State(msgspec.Struct, kw_only=True):
    """The picture at one instant."""

    session: str
    """Name of the session; ids of different sessions must not be compared."""
    id: int
    """The id of the last change that is in this picture."""
    at_ms: int
    started_at: str
    """Wall clock, ISO 8601, UTC."""
    divisor: float
    """Divisor of RocketMQ's timers; 1 if they are unchanged."""
    divisors: list[float]
    """Divisors that the order ``timers`` may name."""
    replayed: bool = False
    """True if this is a saved session, which accepts no orders."""
    missing: list[str] = []
    """Requested designs that do not run, each with the reason in one line."""
    designs: list[Design] = []
    mark: Mark | None = None


Do = Literal[
    "kill",
    "pause",
    "resume",
    "start",
    "restart-empty",
    "stop",
    "cut",
    "slow",
    "part",
    "heal",
    "reconnect",
    "make-topic",
    "timers",
]
"""Things that can be done.

- ``kill`` (SIGKILL), ``pause``, ``resume``, ``stop`` (kindly, SIGTERM), ``start``: a server or a broker;
- ``restart-empty``: a server is killed and starts with an empty disk and no routes;
- ``cut``, ``slow``: links between ``target`` and ``to`` (all links of the target if ``to`` is empty), only
  what the target sends if ``oneway``; ``slow`` adds ``delay_ms`` to each direction (0 ends it);
- ``part``: a server is left alone with ``client-0`` and ``broker-0``, apart from all others;
- ``heal``: all cuts and delays end, and paused processes continue; ended processes stay down;
- ``reconnect``: a client drops its connection for questions and asks the server ``to`` first, as a client
  that starts may;
- ``make-topic``: ``topic`` is made on every broker that runs;
- ``timers``: the designs start again with RocketMQ's timers divided by ``divisor``.
"""

Result = Literal["applied", "not applied", "unknown"]


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An order for all designs, or for the named ones."""

    do: Do
    designs: list[DesignName] = []
    target: str = ""
    """A name, or ``leader``: the server that leads; where none leads, the first one that runs."""
    to: str = ""
    oneway: bool = False
    delay_ms: int = 0
    topic: str = ""
    divisor: float = 0.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an order in one design."""

    design: DesignName
    result: Result
    reason: str = ""
    """Empty if it was applied."""
    target: str = ""
    """The server that ``leader`` meant when the order was carried out."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an order."""

    id: int
    """The id of the change that contains this answer."""
    at_ms: int
    order: Order
    outcomes: list[Outcome]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused, in one line."""

    error: str


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of a saved session, and the commands that use it."""

    folder: str
    report: str
    """The command that makes the report page of the session."""
    replay: str
    """The command that plays the session again."""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event: a change of the picture.

    Exactly one of ``designs`` (all of them anew), ``phase``, ``topics``, ``server``, ``broker``, ``client``,
    ``links`` and ``done`` is there. ``counters`` comes beside ``client``, and alone after a ``mark``.
    """

    id: int
    at_ms: int
    design: DesignName | None = None
    """The design; null for ``designs`` and ``done``."""
    designs: list[Design] | None = None
    divisor: float | None = None
    """Beside ``designs``: the divisor of the timers."""
    phase: Phase | None = None
    reason: str = ""
    server: Server | None = None
    broker: Broker | None = None
    client: Client | None = None
    counters: Counters | None = None
    links: list[Link] | None = None
    """Links that have changed."""
    topics: list[str] | None = None
    done: Done | None = None
    """An order and its outcomes."""
    mark: Mark | None = None
    """Beside ``done`` of a fault: all counters begin again."""


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that passed a link since the last tick."""

    dialler: str
    acceptor: str
    forward: int
    back: int


class TickOf(msgspec.Struct, frozen=True, kw_only=True):
    """Ages and counters of one design."""

    design: DesignName
    read_ms: dict[str, int]
    """Server to the instant of its last answer to the playground."""
    done_ms: dict[str, int]
    """Client to the instant of its last answer."""
    counters: Counters
    usage: Usage | None = None
    traffic: list[Traffic] = []
    """Links over which bytes passed."""


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """The clock of the picture."""

    at_ms: int
    designs: list[TickOf]


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """The kept part of the session so far."""

    base: State
    """The picture before the first of the changes."""
    changes: list[Change]
    whole: bool
    """True if ``base`` is the session's begin."""
