"""Settings for RocketMQ's Java client (``java/Sender.java``), and rows made from the client's output.

The Java program only writes down requests and answers, and does not judge outcomes. This module converts the
lines of the program into the rows that the Python load generator writes. So a report reads only one kind of
rows. This module does no I/O and reads no clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from routekeeper.bench.arms.interface import Side, broker_index, broker_indexes
from routekeeper.bench.arms.remoting import NO_QUORUM
from routekeeper.bench.arrivals import Arrivals
from routekeeper.bench.chance import stream
from routekeeper.bench.events import Op, Operation, Outcome, View
from routekeeper.bench.generator_config import is_versioned, observed_topics, paced, topic_name
from routekeeper.bench.plan import Load
from routekeeper.bench.recorder import short_remark
from routekeeper.remoting.codes import ResponseCode

#: Lowest user number of the Java client. The user numbers of the Python load generator begin with 0.
USERS_FROM: Final = 100_000
#: Pause in ns between two reads of a client's route table. A route change is noticed at most one pause late.
WATCH_NS: Final = 5_000_000
#: Errors after which the caller cannot know whether the broker has received its message. The client raises
#: RemotingSendRequestException also if a connection closes after the request was sent.
UNKNOWN: Final = frozenset(
    {"RemotingTimeoutException", "RemotingSendRequestException", "RemotingTooMuchRequestException"}
)


class LinesError(ValueError):
    """The Java client wrote a line that cannot be read."""


class Did(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="operation"):
    """One operation of the Java client.

    ``errors`` begins with the thrown error. Each further error is the cause of the error before it.
    """

    op: Op
    client: int
    """Number of the client among the clients of its kind.

    The number decides to which group of clients (such as ``side-a``) the client belongs.
    """
    user: int
    number: int
    due_ns: int
    begin_ns: int
    end_ns: int
    queued: bool
    topic: str
    server: str | None = None
    """Address of the nameserver that was asked last."""
    broker: str | None = None
    tries: int = 0
    status: str | None = None
    brokers: list[str] | None = None
    queues: int | None = None
    errors: list[str] = []
    code: int | None = None
    remark: str | None = None
    """The message of the last error in ``errors``."""


class Shown(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="view"):
    """A new route in a producer's route table, and the instant at which it was first seen there."""

    client: int
    topic: str
    brokers: list[str]
    queues: int | None = None
    unseen_ns: int | None = None
    seen_ns: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag_field="what", tag="end"):
    """The end of the observation of a route table."""

    client: int
    topic: str
    seen_ns: int


_DECODER: Final = msgspec.json.Decoder(Did | Shown | Ended)


def without_java(load: Load) -> Load:
    """Return the load for the Python load generator, without the operations of the Java client."""
    return msgspec.structs.replace(
        load, lookup_per_s=0.0, send_per_s=0.0, send_once_per_s=0.0, send_clients=0
    )


def settings(
    load: Load,
    sides: Sequence[Side],
    *,
    retries: int,
    refresh_ms: int,
    heartbeat_ms: int,
    linger_ns: int,
    output: Path,
    schedule: Path,
    end: Path,
) -> str:
    """Return the text of the properties file for the Java client.

    Args:
        retries: Number of retries of a producer, for operations with retries.
        output: File into which the client writes its lines.
        schedule: File with the due operations, see :func:`schedule`. The client waits until the file exists.
        end: File into which the harness writes the end of the load, in ns.
    """
    values: dict[str, object] = {
        "sides": len(sides),
        **{f"nameservers.{place}": ";".join(side.servers) for place, side in enumerate(sides)},
        "topics": ",".join(topic_name(number) for number in range(load.topics)),
        "observed": ",".join(observed_topics(load)),
        "poll_ms": refresh_ms,
        "heartbeat_ms": heartbeat_ms,
        "timeout_ms": round(load.timeout_s * 1000),
        "retries": retries,
        "body_bytes": load.message_bytes,
        "send_clients": load.send_clients,
        "lookup_clients": load.lookup_clients,
        **{f"users.{op}": load.users(op) for op in paced(load)},
        "linger_ns": linger_ns,
        "watch_ns": WATCH_NS,
        "output": output,
        "schedule": schedule,
        "end": end,
    }
    # JSON escapes backslashes and non-ASCII characters as Java's properties files do.
    return "".join(f"{name}={json.dumps(str(value))[1:-1]}\n" for name, value in values.items())


def schedule(load: Load, seed: int, start_ns: int, horizon_ns: int) -> Iterator[str]:
    """Yield lines for the Java client, with the operations that the Python load generator would make.

    Args:
        start_ns: Instant at which the load begins.
        horizon_ns: Time after ``start_ns`` up to which operations are yielded.
    """
    for op, (rate_per_s, topics) in paced(load).items():
        arrivals = Arrivals(
            start_ns=start_ns,
            rate_per_s=rate_per_s,
            choices=topics,
            chance=stream(seed, f"arrivals of {op}"),
        )
        arrivals.end(start_ns + horizon_ns)
        while (taken := arrivals.take()) is not None:
            number, due_ns, topic = taken
            yield f"{op} {number} {due_ns} {topic}\n"


def rows(lines: Iterable[bytes], sides: Sequence[Side]) -> Iterator[Operation | View]:
    """Yield a row for each line of the Java client.

    Raises:
        LinesError: If a line does not come from the Java client. The message has the number of the line.
    """
    for place, line in enumerate(lines, 1):
        try:
            said = _DECODER.decode(line)
        except msgspec.MsgspecError as error:
            raise LinesError(f"line {place} of the Java client cannot be read: {error}") from None
        match said:
            case Did():
                yield operation(said, sides)
            case Shown():
                yield View(
                    observer="client",
                    index=said.client,
                    topic=said.topic,
                    state="routed",
                    brokers=broker_indexes(said.brokers),
                    version=said.queues if is_versioned(said.topic) else None,
                    unseen_ns=said.unseen_ns,
                    seen_ns=said.seen_ns,
                )
            case Ended():
                yield View(
                    observer="client", index=said.client, topic=said.topic, state="end", seen_ns=said.seen_ns
                )


def operation(did: Did, sides: Sequence[Side]) -> Operation:
    """Convert an operation of the Java client to an event of the comparison."""
    side = sides[did.client % len(sides)]
    is_lookup = did.op == "lookup"
    if is_lookup:
        target = side.servers.index(did.server) if did.server in side.servers else None
    else:
        target = broker_index(did.broker) if did.broker else None
    failed = bool(did.errors)
    return Operation(
        op=did.op,
        user=USERS_FROM + did.user,
        target=target,
        due_ns=did.due_ns,
        sent_ns=did.begin_ns,
        done_ns=did.end_ns,
        outcome=outcome(did),
        queued=did.queued,
        code=did.code,
        remark=short_remark(f"{did.errors[-1]}: {did.remark or ''}") if failed else _status(did),
        topic=did.topic,
        brokers=broker_indexes(did.brokers) if did.brokers is not None else None,
        version=did.queues if is_versioned(did.topic) else None,
        attempts=max(1, did.tries),
        message=None if is_lookup else 2 * did.number + (did.op == "send_once"),
        client_side=side.name,
    )


def _status(did: Did) -> str | None:
    """Return the status of a stored message, such as ``FLUSH_DISK_TIMEOUT``; None if it is ``SEND_OK``."""
    return None if did.status in (None, "SEND_OK") else did.status


def outcome(did: Did) -> Outcome:
    """Return the outcome of an operation, as its caller sees it.

    A message that the broker has stored, but not yet synced or copied, counts as sent. The Python load
    generator counts such a message as sent, too.
    """
    if not did.errors:
        return "ok"
    if did.op == "lookup":
        if did.code == ResponseCode.TOPIC_NOT_EXIST:
            return "absent"
        return "refused" if NO_QUORUM in (did.remark or "") else "error"
    return "unknown" if UNKNOWN.intersection(did.errors) else "error"
