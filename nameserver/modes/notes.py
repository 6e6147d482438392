"""Functions that record changes of routes for people, in the history and in the program's log."""

from __future__ import annotations

import logging

from routekeeper.nameserver.commands import AddWritePerm, Command, WipeWritePerm
from routekeeper.nameserver.types import BrokerKey, ConnectionId, LeaveReason
from routekeeper.nameserver.verdicts import Applied
from routekeeper.remoting import wall_clock

from .history import Event, History, Note, in_words
from .timeline import EventKind

logger = logging.getLogger(__name__)


def note_change(history: History, command: Command, applied: Applied) -> None:
    """Record a change that was just applied, in the history and in the program's log."""
    at_ms = wall_clock.now_ms()
    for lost in applied.lost:
        detail = "" if lost.broker_name is None else f"broker name {lost.broker_name}"
        event = Event(at_ms=at_ms, reason=lost.reason, broker=lost.broker, detail=detail)
        history.topics_changed(lost.topics, event)
    if isinstance(command, WipeWritePerm | AddWritePerm):
        note = Note.PERMISSION_WIPED if isinstance(command, WipeWritePerm) else Note.PERMISSION_ADDED
        event = Event(at_ms=at_ms, reason=note, detail=f"broker name {command.broker_name}")
        history.topics_changed(applied.topics, event)
    if applied.joined is not None:
        history.timeline.note(EventKind.JOINED, at_ms=at_ms, subject=str(applied.joined))
        logger.info("broker registered broker=%s revision=%d", applied.joined, applied.revision)
    for gone in applied.left:
        history.departures[gone.reason] += 1
        history.timeline.note(
            EventKind.LEFT, at_ms=at_ms, subject=str(gone.broker), detail=in_words(gone.reason)
        )
        if gone.reason is LeaveReason.DISPLACED and applied.joined is not None:
            # Log a warning, because an operator may have given two brokers the same name by mistake. It is
            # also possible that one broker has moved to another address.
            logger.warning(
                "broker displaced broker=%s name=%s by=%s revision=%d",
                gone.broker,
                gone.broker_name,
                applied.joined,
                applied.revision,
            )
            continue
        logger.info(
            "broker left broker=%s name=%s reason=%s revision=%d",
            gone.broker,
            gone.broker_name,
            gone.reason,
            applied.revision,
        )


def note_late_unregister(broker: BrokerKey, origin: ConnectionId) -> None:
    """Log that an unregistration from a broker's former process changes nothing."""
    logger.info("late unregistration ignored broker=%s connection=%s", broker, origin)
