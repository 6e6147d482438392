"""All messages of the HTTP protocol between the playground and its page.

All instants are whole milliseconds since the session began (``at_ms``, ``..._ms``). All bodies are JSON.

``GET /``, ``/web/FILE``, ``/drawings/FILE``, ``/published/FILE``
    The page, drawings that the console also uses, and the published results (``docs/results/full``).

``GET /v1/state``
    The present state of all designs: a :class:`State`.

``GET /v1/events``
    Server-sent events:

    - The first event is ``event: state`` with a :class:`State`.
    - Then each :class:`Change` is an ``event: change`` with ``id: SESSION-ID``. Apply each change as
      :func:`routekeeper.bench.play.picture.apply` does. A change has whole values, which replace the values
      of the same name.
    - ``event: tick`` comes twice a second, has no id, and is in no log. Its :class:`Tick` shows the age of
      the readings.

    If a page connects again with ``Last-Event-ID``, it gets the changes that it has missed, without a state.
    It gets a state if the program no longer keeps these changes, or if another program now answers. At most
    16 pages can watch at a time. The next page gets 503. If a page does not read, the program closes its
    connection.

``GET /v1/log``
    A :class:`Log`: the latest 20,000 changes, and the state of all designs before the first of these changes
    (``base``). From both, a page can compute the state at any instant since then. ``base`` contains the
    effect of older changes.

``POST /v1/actions``
    The body is an :class:`Order` (a command, such as one to cause a fault). The answer is :class:`Done` with
    one outcome for each design that the command names. The answer comes as soon as the program has executed
    the command. At this instant the servers may still react to a fault. Other answers: 400 with
    :class:`Refusal` for an impossible command, 403 for a page of another origin, 429 if 8 commands are being
    executed.

``POST /v1/save``
    The request has no body. The answer is :class:`Saved`.

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
"""State of a process. ``starting``: the process runs, but has not reported yet that it serves."""
Verdict = Literal["right", "stale", "wrong", "refused", "none", "uncounted"]
"""Judgement of an answer. ``none``: the client got no answer. ``uncounted``: the query overlapped a change of
the cluster, so the answer counts neither as right nor as wrong."""
Passing = Literal["open", "cut", "unknown"]
"""State of one direction of a link. ``unknown``: the proxy does not answer."""


class TopicKnown(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers of a topic, as one server lists them."""

    topic: str
    queues: dict[str, int]
    """Maps each broker to the number of its queues for the topic."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A nameserver, or a server of ZooKeeper."""

    name: str
    addr: str
    life: Life
    """State of the server's process, read from the operating system."""
    pid: int | None = None
    answers: bool = False
    """True if the server answered the last query of the playground. Else ``serves`` is false, and the other
    fields below are from the server's last answer."""
    role: str = "unknown"
    """``leader``, ``follower``, ``candidate``, ``independent``..., or ``unknown`` before the first answer."""
    serves: bool = False
    """True if the server says that it answers reads and writes."""
    term: int | None = None
    brokers: list[str] = []
    topics: list[TopicKnown] = []
    read_ms: int | None = None
    """Instant at which the playground sent the last query that the server answered.

    The age of the answer is ``at_ms`` of the newest tick or change minus this instant.
    """


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """A broker. ``registered`` has the names of the servers that list this broker."""

    name: str
    addr: str
    life: Life
    pid: int | None = None
    registered: list[str] = []


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The last answer that a client got, and its judgement."""

    verdict: Verdict
    why: str = ""
    """Reason in words if the answer is not right: ``lists broker-1, which is down``."""
    topic: str
    server: str | None = None
    """The server that answered, or else the server that was asked last."""
    brokers: list[str] | None = None
    """Brokers that the answer lists, or null without an answer."""
    remark: str = ""
    """The server's or the client's own text about the answer."""
    sent_ms: int
    done_ms: int


class Cached(msgspec.Struct, frozen=True, kw_only=True):
    """The route that a client keeps and uses between two queries, as RocketMQ's clients do."""

    topic: str
    brokers: list[str] | None
    """Brokers of the stored route, or null while the client has no route."""
    since_ms: int
    by: Literal["poll", "watch"]
    """Method by which clients of this design learn of changes."""
    verdict: Verdict = "right"
    """Judgement of the stored route at present."""


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """A client. All clients of a design share one process."""

    name: str
    life: Life
    asks: str | None = None
    """The server that the client asked last."""
    last: Answer | None = None
    cached: list[Cached] = []


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A link through the proxy, in the state that the proxy reports."""

    dialler: str
    acceptor: str
    forward: Passing
    """State of the direction from the process that connects (dialler) to the process that accepts."""
    back: Passing
    forward_ms: int = 0
    """Delay in ms that the proxy adds in the direction from the dialler to the acceptor."""
    back_ms: int = 0
    waiting: bool = False
    """True if the proxy holds bytes that a process has sent and the other process has not received."""


class Counters(msgspec.Struct, kw_only=True):
    """Numbers of answers to all clients of a design since the last fault, or since the session's start."""

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
    """Processor cores in use, as the mean of the last second."""


class Design(msgspec.Struct, kw_only=True):
    """One design (independent, raft or zookeeper).

    Lists are sorted by name. Links are sorted by dialler, then by acceptor.
    """

    name: DesignName
    phase: Phase = "starting"
    reason: str = ""
    """Reason in one line why the design failed."""
    servers: list[Server] = []
    brokers: list[Broker] = []
    clients: list[Client] = []
    links: list[Link] = []
    topics: list[str] = []
    """Topics that were created during the session, in order. Clients ask for the last topic. A topic that is
    created again moves to the end."""
    counters: Counters = msgspec.field(default_factory=Counters)
    usage: Usage | None = None


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The last fault. All counters count from this fault on."""

    action: int
    """Id of the change that contains the command to cause the fault."""
    at_ms: int
    text: str


class State(msgspec.Struct, kw_only=True):
    """The state of all designs at one instant, which the code also calls "picture"."""

    session: str
    """Name of the session. Ids of different sessions must not be compared."""
    id: int
    """Id of the last change whose effect this state contains."""
    at_ms: int
    started_at: str
    """Start of the session by the wall clock: ISO 8601, UTC."""
    divisor: float
    """Divisor of RocketMQ's timers, or 1 if they are unchanged."""
    divisors: list[float]
    """Divisors that the command ``timers`` accepts."""
    replayed: bool = False
    """True if the session is a saved one, which accepts no commands."""
    missing: list[str] = []
    """Designs that were requested but do not run, each with the reason in one line."""
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
"""Actions that a command can request.

- ``kill`` (SIGKILL), ``stop`` (SIGTERM), ``pause``, ``resume`` and ``start`` apply to one server or broker.
- ``restart-empty`` kills a server and starts it with an empty disk and without routes.
- ``cut`` cuts the links between ``target`` and ``to``. If ``to`` is empty, it cuts all links of the target.
  With ``oneway`` it cuts only the directions in which the target sends.
- ``slow`` adds ``delay_ms`` to the directions that ``cut`` would cut. 0 removes the delay.
- ``part`` cuts off a server, ``client-0`` and ``broker-0`` together from all other processes.
- ``heal`` ends all cuts and delays and continues paused processes. Ended processes stay down.
- ``reconnect``: a client drops the connection for its queries and asks the server ``to`` first, as a client
  that has just started may do.
- ``make-topic`` creates ``topic`` on every broker that runs.
- ``timers`` starts the designs again, with RocketMQ's timers divided by ``divisor``.
"""

Result = Literal["applied", "not applied", "unknown"]


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command from a page, such as one to cause a fault. If ``designs`` is empty, it is for all designs."""

    do: Do
    designs: list[DesignName] = []
    target: str = ""
    """Name of a process, or ``leader``. Without a leader, ``leader`` is the running server that most
    clients ask."""
    to: str = ""
    oneway: bool = False
    delay_ms: int = 0
    topic: str = ""
    divisor: float = 0.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a command in one design."""

    design: DesignName
    result: Result
    reason: str = ""
    """Reason why the command was not applied, or why its outcome is unknown. Empty if it was applied."""
    target: str = ""
    """Name of the target. For ``leader``, it is the server that led when the design executed the command."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a command."""

    id: int
    """Id of the change that contains this answer."""
    at_ms: int
    order: Order
    outcomes: list[Outcome]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The reason in one line why the program refused a request."""

    error: str


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of a saved session, and the shell commands that use this folder."""

    folder: str
    report: str
    """Command that makes the report page of the session."""
    replay: str
    """Command that replays the session."""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of the state of all designs.

    Exactly one of these fields is set: ``designs`` (all designs, replaced), ``phase``, ``topics``,
    ``server``, ``broker``, ``client``, ``links`` or ``done``. With ``client``, the field ``counters`` is set,
    too. There is one exception. A change with a ``mark`` is a fault, at which all counters begin again. It is
    followed by one change for each running design that has ``counters`` and none of these fields.
    """

    id: int
    at_ms: int
    design: DesignName | None = None
    """The design, or null for ``designs`` and ``done``."""
    designs: list[Design] | None = None
    divisor: float | None = None
    """Divisor of the timers, set together with ``designs``. The designs start again, so ``mark`` of the state
    becomes null."""
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
    """An executed command with its outcomes."""
    mark: Mark | None = None
    """The fault at which all counters begin again, set together with ``done``."""


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that passed a link since the last tick."""

    dialler: str
    acceptor: str
    forward: int
    back: int


class TickOf(msgspec.Struct, frozen=True, kw_only=True):
    """One design's part of a tick: the times of the last readings and answers, and the counters."""

    design: DesignName
    read_ms: dict[str, int]
    """Maps each server to the instant of the playground's last query that the server answered."""
    done_ms: dict[str, int]
    """Maps each client to the instant at which its last query ended."""
    counters: Counters
    usage: Usage | None = None
    traffic: list[Traffic] = []
    """Links over which bytes passed since the last tick."""


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """The message that pages get twice a second: the present time, and one :class:`TickOf` per design."""

    at_ms: int
    designs: list[TickOf]


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that the program stores, and the state of all designs before the first change."""

    base: State
    """The state of all designs before the first change in ``changes``."""
    changes: list[Change]
    whole: bool
    """True if ``base`` is the state at the start of the session, so that no change is missing."""
