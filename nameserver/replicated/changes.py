"""What an applied change asks for outside the table."""

from __future__ import annotations

from collections.abc import Callable

from nameserver.commands import Command, Evict, RegisterBroker, Update
from nameserver.modes.interface import Effects
from nameserver.modes.notes import note_change
from nameserver.modes.waiters import TopicWaiters
from nameserver.verdicts import Applied

from .registrations import Registrations
from .reports import Reports
from .surroundings import Part, Surroundings


class Changes(Part):
    """Follows each applied change with what is of this process alone.

    Args:
        kv_changed: Called when the KV configuration may differ.
    """

    def __init__(
        self,
        given: Surroundings,
        reports: Reports,
        registrations: Registrations,
        effects: Effects,
        waiters: TopicWaiters,
        *,
        kv_changed: Callable[[], None],
    ) -> None:
        super().__init__(given)
        self._reports = reports
        self._registrations = registrations
        self._effects = effects
        self._waiters = waiters
        self._kv_changed = kv_changed

    def follow(self, command: Command, applied: Applied, *, live: bool) -> None:
        """Do what an applied change asks for outside the table; effects only for entries applied live."""
        if not self._waiters and (
            type(command) is Update or (isinstance(command, RegisterBroker) and applied.of_topics_alone)
        ):
            return  # nearly always: topics alone, which nobody waits for
        if applied.kv_changed:
            self._kv_changed()
        for gone in applied.left:
            self._reports.removed(gone.broker)
        if applied.joined is not None:
            self._reports.listed(applied.joined)
        self._waiters.follow(applied)
        if not live:
            return
        note_change(self._history, command, applied)
        if isinstance(command, Evict):
            for origin in self._liveness.connections_of(command.broker, up_to_revision=command.revision):
                if not self._registrations.is_answering(command.broker, origin):
                    self._effects.close_connection(origin)
        if self._member.leads and self._settings.current.notify_min_broker_id_changed:
            for change in applied.min_changes:
                self._effects.notify_min_broker(change)

    def replaced(self) -> None:
        """Another table has taken the place of the one here: anything may have changed."""
        self._registrations.forget_repeats()
        self._kv_changed()
        self._waiters.wake_all()
