"""Message traces, decoded from the form in which RocketMQ's clients write them into a trace topic.

This module does no I/O and reads no clock.

A message body contains several records. The character 2 ends each record, and the character 1 separates the
fields of a record. The first field is the kind of the record.

Source: TraceConstants, TraceDataEncoder and TraceView, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_FIELD_END: Final = chr(1)
_RECORD_END: Final = chr(2)
PUB: Final = "Pub"
SUB_AFTER: Final = "SubAfter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A client's record of one send or one consumption of a message.

    Attributes:
        kind: :data:`PUB` for a send, or :data:`SUB_AFTER` for a consumption, which may have failed.
        group: The producer's or consumer's group; None if the record has none.
        time_ms: Unix ms at which a send began, or a consumption ended; 0 if the record has no time.
        cost_ms: Duration of the send or consumption in ms.
    """

    kind: str
    message_id: str
    group: str | None
    time_ms: int
    cost_ms: int
    success: bool


class Unreadable(ValueError):
    """A record is not in RocketMQ's form. The text gives the reason."""


def decode_traces(body: bytes, message_id: str) -> Iterator[Trace | Unreadable]:
    """Yield the sends and consumptions of one message, and skip the records of other messages."""
    for record in body.decode("utf-8", "replace").split(_RECORD_END):
        fields = record.split(_FIELD_END)
        while fields and not fields[-1]:  # Java's split also drops empty fields at the end
            fields.pop()
        if not fields or fields[0] not in (PUB, SUB_AFTER):
            continue
        try:
            trace = _sent(fields) if fields[0] == PUB else _consumed(fields)
        except (IndexError, ValueError) as error:
            yield Unreadable(f"{fields[0]} of {len(fields)} fields: {error}")
            continue
        if trace.message_id == message_id:
            yield trace


def _sent(fields: Sequence[str]) -> Trace:
    flag = {13: 12, 14: 13}.get(len(fields), 13)  # index of the success flag: 12 before RocketMQ 4.3, then 13
    return Trace(
        kind=PUB,
        message_id=fields[5],
        group=fields[3],
        time_ms=int(fields[1]),
        cost_ms=int(fields[10]),
        success=len(fields) < 13 or fields[flag].lower() == "true",
    )


def _consumed(fields: Sequence[str]) -> Trace:
    known = len(fields) >= 9
    return Trace(
        kind=SUB_AFTER,
        message_id=fields[2],
        group=fields[8] if known else None,
        time_ms=int(fields[7]) if known else 0,
        cost_ms=int(fields[3]),
        success=fields[4].lower() == "true",
    )
