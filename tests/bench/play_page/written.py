"""Invented sessions that the playground replays. Their results do not depend on the machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from routekeeper.bench.play.model import (
    DESIGNS,
    Answer,
    Broker,
    Cached,
    Change,
    Client,
    Design,
    DesignName,
    Done,
    Link,
    Mark,
    Order,
    Outcome,
    Server,
    State,
    Verdict,
)
from routekeeper.bench.play.orders import BROKERS, CLIENTS, SERVERS

TOPIC: Final = "Orders"


def client(name: str, done_ms: int, verdict: Verdict = "right") -> Client:
    """Return a client with the time and the verdict of its last answer."""
    answer = Answer(
        verdict=verdict,
        topic=TOPIC,
        server=SERVERS[0],
        brokers=None if verdict in ("none", "refused") else list(BROKERS),
        sent_ms=max(0, done_ms - 5),
        done_ms=done_ms,
    )
    kept = Cached(topic=TOPIC, brokers=list(BROKERS), since_ms=0, by="poll")
    return Client(name=name, life="up", asks=SERVERS[0], last=answer, cached=[kept])


def server(name: str, role: str, **facts: object) -> Server:
    """Return a server that runs, answers and lists every broker. `facts` replaces some of these values."""
    whole = Server(
        name=name,
        addr=f"{name}:9876",
        life="up",
        pid=1,
        answers=True,
        role=role,
        serves=True,
        brokers=list(BROKERS),
        read_ms=0,
    )
    return msgspec.structs.replace(whole, **facts)


def design(name: DesignName) -> Design:
    """Return a design in which every process runs, every link is open, and every answer is right."""
    ends = [(one, other) for one in (*BROKERS, *CLIENTS) for other in SERVERS]
    if name != "independent":
        ends += [(one, other) for one in SERVERS for other in SERVERS if one < other]
    roles = ("independent",) * 3 if name == "independent" else ("leader", "follower", "follower")
    return Design(
        name=name,
        phase="running",
        servers=[server(each, role) for each, role in zip(SERVERS, roles, strict=True)],
        brokers=[
            Broker(name=each, addr=f"{each}:10911", life="up", registered=list(SERVERS)) for each in BROKERS
        ],
        clients=[client(each, 0) for each in CLIENTS],
        links=[Link(dialler=one, acceptor=other, forward="open", back="open") for one, other in sorted(ends)],
        topics=[TOPIC],
    )


def fault(at_ms: int, do: str, target: str) -> Change:
    """Return the change that reports a fault. Its id is 0 until :func:`write` sets the ids."""
    order = msgspec.convert({"do": do, "target": target}, type=Order)
    outcomes = [Outcome(design=name, result="applied", target=target) for name in DESIGNS]
    done = Done(id=0, at_ms=at_ms, order=order, outcomes=outcomes)
    return Change(id=0, at_ms=at_ms, done=done, mark=Mark(action=0, at_ms=at_ms, text=f"{do} {target}"))


def write(folder: Path, changes: Sequence[Change], *, session: str = "written") -> Path:
    """Write a session that begins with three designs without a fault, and return its folder."""
    begin = State(
        session=session,
        id=0,
        at_ms=0,
        started_at="2026-01-01T00:00:00+00:00",
        divisor=60.0,
        divisors=[1.0, 10.0, 30.0, 60.0],
        designs=[design(name) for name in DESIGNS],
    )
    lines = [msgspec.json.encode(begin)]
    for number, change in enumerate(changes, 1):
        facts: dict[str, object] = {"id": number}
        if change.done is not None:
            facts["done"] = msgspec.structs.replace(change.done, id=number)
        if change.mark is not None:
            facts["mark"] = msgspec.structs.replace(change.mark, action=number)
        lines.append(msgspec.json.encode(msgspec.structs.replace(change, **facts)))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "session.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return folder


def as_json(thing: msgspec.Struct) -> object:
    """Return a part of the shown state in the JSON form that the page gets."""
    found: object = msgspec.json.decode(msgspec.json.encode(thing))
    return found
