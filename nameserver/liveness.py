"""Times at which brokers were last seen, by connection, and connections that closed.

One small state machine for both modes. It decides nothing about routes: independent mode judges this
process's evidence alone. In raft mode each member reports its evidence to the leader, which judges the
evidence of all members.

Rules:
    - A connection counts for every broker that registered over it. A broker belongs to the youngest accepted
      connection over which it registered (ids grow); an older connection never takes the broker over. So a
      late copy from a former process neither keeps a broker alive by its connection nor removes it.
    - A close by the peer, an error or idleness is evidence that the broker is gone, if the connection owned
      the broker. A close that this process starts (shutdown, shedding) is none.
    - A message of a former process may arrive after its successor is gone, and list the broker anew. The end
      of that older connection is evidence against the record that the message made.
    - An unregistration over the owning connection is evidence as a close is.
    - A registration is a late copy if its data version is contained in the listed one and differs from it. A
      broker whose data version really went back (its store was restored from a backup) repeats it: see
      :meth:`Liveness.is_late`.

This module has its own clock, in seconds. It moves only in :meth:`Liveness.advance`, by at most
:data:`CLOCK_STEP_MAX_S` a step. So a process that was paused does not expire all leases when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from itertools import takewhile
from typing import Final

import msgspec
from msgspec.structs import replace

from routekeeper.nameserver.types import BrokerKey, ConnectionId
from routekeeper.remoting.bounds import LEASE_MS
from routekeeper.remoting.route import DataVersion

CLOCK_PERIOD_S: Final = 0.25
"""How often the driver calls :meth:`Liveness.advance`."""

CLOCK_STEP_MAX_S: Final = 1.0
"""Largest step of the clock in seconds, however long the process was paused."""

LEASE_DEFAULT_S: Final = LEASE_MS / 1000
"""Lease of a broker that asks for none."""

CLOSED_MAX: Final = 10_000
"""Bound of the remembered brokers without a connection; beyond it, the longest unchanged are forgotten."""

SPARE_MAX: Final = 10_000
"""Pairs of an open connection and a broker that registered over it, except the youngest connection of each
broker with a record. Above it the oldest pair is forgotten: a stranger could register any number of names.
"""

REPEATED_AFTER_S: Final = 5.0
"""A contained version that comes again after this time is the broker's own.

Copies from one socket buffer arrive within moments, while brokers register every 10 s at most.
"""

NEVER: Final = float("-inf")
"""Instant that stands for "never seen"."""


class Ownership(Enum):
    """The relation of a connection to a broker."""

    OWNER = "owner"
    OLDER = "older"
    """The broker registered over it, and later over a younger connection."""
    STRANGER = "stranger"
    """The broker never registered over it: an admin tool, or a broker that has not registered yet."""


class Closing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Evidence that a broker is gone: its connection closed, or it unregistered over the connection."""

    at: float
    """Instant on the liveness clock."""
    origin: ConnectionId
    revision: int | None
    """Revision of the record at that moment; or the revision that a registration over this connection made
    afterwards. None while there is no record.
    """
    unregistered: bool = False
    """The broker unregistered; its connection did not close."""


class _Contained(msgspec.Struct, frozen=True, gc=False):
    """A data version that a broker sent, older than the listed one, and the instant of the first time."""

    version: DataVersion
    listed: DataVersion
    at: float


class Contact(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Facts about one broker from this process's own connections."""

    heard_at: float
    """Instant on the liveness clock."""
    lease_s: float
    owner: ConnectionId | None = None
    """The youngest connection over which the broker registered, remembered after its close."""
    connected: bool = False
    """The owner is open, and the broker has not unregistered over it."""
    confirmed: bool = False
    """A registration over the owner has succeeded."""
    closing: Closing | None = None
    version: int = 0
    """Number of the last change of any contact; orders them for reports."""


class Liveness:
    """Contacts of one process, and the clock that dates them.

    Invariants:
        - a connected broker has an owner, and that connection is open;
        - a broker is not both connected and closing;
        - contacts lie in the order of their last change.
    """

    def __init__(self) -> None:
        self.clock = 0.0
        """Seconds this process has been running, pauses not counted."""
        self.version = 0
        """Number of the last change; see :meth:`changes_since`."""
        self._read_at: float | None = None
        self._contacts: dict[BrokerKey, Contact] = {}
        self._unconnected: dict[BrokerKey, None] = {}  # contacts, in the order of their last change
        # Open connections only; the value is the revision of the last registration that succeeded over it.
        self._registered_over: dict[ConnectionId, dict[BrokerKey, int | None]] = {}
        # All of those pairs except owners of brokers with a record, the oldest first. Either no registration
        # has succeeded yet, or the record is gone, or a younger connection owns the broker.
        self._spare: dict[tuple[ConnectionId, BrokerKey], None] = {}
        # At most one for each record; it is removed with the record.
        self._contained: dict[BrokerKey, _Contained] = {}

    def advance(self, now: float) -> None:
        """Move the clock towards the monotonic time ``now`` (seconds), by at most one step."""
        read_at = self._read_at
        if read_at is None:
            self._read_at = now
        elif now > read_at:  # a reading that goes back is ignored: the same time must not count twice
            self.clock += min(now - read_at, CLOCK_STEP_MAX_S)
            self._read_at = now

    # -- what happens -------------------------------------------------------------------------------------

    def registering(
        self, broker: BrokerKey, origin: ConnectionId, *, lease_s: float = LEASE_DEFAULT_S
    ) -> None:
        """Note that a registration arrived over ``origin``, before it is decided.

        The broker belongs to this connection from here on, unless a younger one has it.
        """
        is_spare = self._registered_over.setdefault(origin, {}).setdefault(broker, None) is None
        before = self._contacts.get(broker)
        if before is not None and before.owner is not None and origin < before.owner:
            self._put(broker, replace(before, heard_at=self.clock))
            is_spare = True
        else:
            contact = Contact(
                heard_at=self.clock,
                lease_s=lease_s,
                owner=origin,
                connected=True,
                confirmed=before is not None and before.owner == origin and before.confirmed,
                version=self.version + 1,
            )
            self._place(broker, contact)
            if before is not None and before.owner is not None and before.owner != origin:
                self._add_spare(before.owner, broker)
        if is_spare:
            self._add_spare(origin, broker)

    def registered(self, broker: BrokerKey, origin: ConnectionId, *, revision: int) -> None:
        """Note that a registration over ``origin`` succeeded and left the record at ``revision``.

        The call may come after the close of that connection, if the proposal took long. The evidence of the
        close then refers to this revision.
        """
        contact = self._contacts.get(broker)
        if origin in self._registered_over:
            self._registered_over[origin][broker] = revision
            if contact is not None and contact.owner == origin:
                self._spare.pop((origin, broker), None)
            else:
                self._add_spare(origin, broker)
        if contact is None or contact.owner is None:
            return
        if origin != contact.owner:
            if origin < contact.owner and origin not in self._registered_over:
                self._left_behind(broker, contact, revision)
            return
        closing = contact.closing
        if contact.connected:
            if not contact.confirmed:
                # Reports do not contain this field, so the contact keeps its place in the order.
                self._contacts[broker] = replace(contact, confirmed=True)
        elif closing is not None and closing.origin == origin and closing.revision != revision:
            self._put(broker, replace(contact, closing=replace(closing, revision=revision)))

    def is_late(
        self, broker: BrokerKey, origin: ConnectionId, *, version: DataVersion, listed: DataVersion
    ) -> bool:
        """Note the data version of a registration; return whether it is a late copy, which is not applied.

        A registration is a late copy if the listed version contains its version, and the two differ. But a
        broker whose store was restored also sends such an older version, again and again. So the older
        version is accepted when the broker's youngest connection repeats it long enough after the first
        time, unless the listed version came in between.

        Args:
            origin: Its connection; :meth:`registering` was called with it.
            listed: Version of the broker's record as applied here.
        """
        if version.counter > listed.counter or not version.contained_in(listed) or version == listed:
            if self._contained:
                self.note_current(broker)
            return False
        contact, first = self._contacts.get(broker), self._contained.get(broker)
        if contact is None or contact.owner != origin:
            return True
        if first is None or first.version != version or first.listed != listed:
            first = self._contained[broker] = _Contained(version, listed, self.clock)
        return self.clock - first.at < REPEATED_AFTER_S

    def note_current(self, broker: BrokerKey) -> None:
        """Note that a broker sent the listed data version or a newer one, so an older one was a late copy."""
        self._contained.pop(broker, None)

    def heard(self, broker: BrokerKey, origin: ConnectionId, *, lease_s: float | None = None) -> None:
        """Renew the lease without a registration: at a heartbeat, or at a query for the data version."""
        before = self._contacts.get(broker) or Contact(heard_at=NEVER, lease_s=LEASE_DEFAULT_S)
        # After a close, only a younger connection shows that the broker lives: an older one may deliver
        # messages of a former process. After an unregistration, the owner counts again only when it
        # registers.
        lives = before.closing is None or (before.owner is not None and origin > before.owner)
        lease_s, closing = before.lease_s if lease_s is None else lease_s, None if lives else before.closing
        self._put(broker, replace(before, heard_at=self.clock, lease_s=lease_s, closing=closing))

    def closed(
        self, origin: ConnectionId, *, by_us: bool, revision_of: Callable[[BrokerKey], int | None]
    ) -> tuple[BrokerKey, ...]:
        """Note the end of a connection.

        Args:
            by_us: This process closed it by its own decision. A close for idleness does not count as one.
            revision_of: The revision of a broker's record as applied here, None if there is none.

        Returns:
            The brokers for which this is evidence that they are gone, in the order they registered.
        """
        gone = []
        for broker, revision in self._registered_over.pop(origin, {}).items():
            self._spare.pop((origin, broker), None)
            contact = self._contacts.get(broker)
            if contact is None:
                continue
            if not contact.connected:
                if not by_us and self._left_behind(broker, contact, revision):
                    gone.append(broker)
            elif contact.owner == origin:
                closing = None
                if not by_us:
                    closing = Closing(at=self.clock, origin=origin, revision=revision_of(broker))
                    gone.append(broker)
                self._put(broker, replace(contact, connected=False, confirmed=False, closing=closing))
        return tuple(gone)

    def withdrawn(self, broker: BrokerKey, origin: ConnectionId, *, revision: int | None) -> None:
        """Note an unregistration over ``origin``; it is evidence only if that connection owns the broker.

        Args:
            revision: The revision of the broker's record as applied here, None if there is none.
        """
        contact = self._contacts.get(broker)
        if contact is not None and contact.owner == origin:
            closing = Closing(at=self.clock, origin=origin, revision=revision, unregistered=True)
            self._put(broker, replace(contact, connected=False, confirmed=False, closing=closing))

    def forget(self, broker: BrokerKey) -> None:
        """Drop all that is known of a broker whose record is gone for good (independent mode)."""
        self._contacts.pop(broker, None)
        self._unconnected.pop(broker, None)
        self._contained.pop(broker, None)
        for origin, brokers in self._registered_over.items():
            if broker in brokers:
                del brokers[broker]
                self._spare.pop((origin, broker), None)

    def removed(self, broker: BrokerKey) -> None:
        """Note that the record is gone, by any change: earlier messages say nothing about the next record.

        Connections and evidence of closed connections stay, because they name revisions.
        """
        self._contained.pop(broker, None)
        contact = self._contacts.get(broker)
        if contact is not None:
            self._put(broker, replace(contact, heard_at=NEVER))
        for origin in [origin for origin, brokers in self._registered_over.items() if broker in brokers]:
            self._add_spare(origin, broker)

    def table_replaced(self) -> None:
        """Forget all revisions of records, because another table may be in force now."""
        self._contained.clear()

    def prune(self) -> None:
        """Forget brokers without a connection whose lease has passed since they were last seen or closed."""
        for broker, contact in list(self._contacts.items()):
            last = contact.heard_at if contact.closing is None else max(contact.heard_at, contact.closing.at)
            if not contact.connected and self.clock - last > contact.lease_s:
                del self._contacts[broker]
                del self._unconnected[broker]

    # -- what is known ------------------------------------------------------------------------------------

    def contact(self, broker: BrokerKey) -> Contact | None:
        """Return what is known of a broker here."""
        return self._contacts.get(broker)

    def changes_since(self, version: int) -> tuple[tuple[BrokerKey, Contact], ...]:
        """Return the contacts that changed after ``version``, the latest change first.

        Forgotten contacts are not among them. Only unconnected contacts are forgotten, after their lease; a
        process with a copy can compute that time itself.
        """
        latest_first = reversed(self._contacts.items())
        return tuple(takewhile(lambda change: change[1].version > version, latest_first))

    def ownership(self, broker: BrokerKey, origin: ConnectionId) -> Ownership:
        """Return the relation of an open connection to a broker."""
        contact = self._contacts.get(broker)
        if contact is not None and contact.owner == origin:
            return Ownership.OWNER
        if broker in self._registered_over.get(origin, ()):
            return Ownership.OLDER
        return Ownership.STRANGER

    def carries_broker(self, origin: ConnectionId) -> bool:
        """Return whether any broker registered over this open connection."""
        return bool(self._registered_over.get(origin))

    def connections_of(self, broker: BrokerKey, *, up_to_revision: int) -> tuple[ConnectionId, ...]:
        """Return the open connections over which this or an older revision of the record was registered.

        These are closed when that revision is evicted, so that a broker that still lives notices it.
        """
        return tuple(
            origin
            for origin, brokers in self._registered_over.items()
            if (revision := brokers.get(broker)) is not None and revision <= up_to_revision
        )

    def silent(self) -> tuple[BrokerKey, ...]:
        """Return the brokers whose lease has run out by this clock, the longest silent first."""
        contacts, clock = self._contacts, self.clock
        late = (broker for broker, known in contacts.items() if clock - known.heard_at > known.lease_s)
        return tuple(sorted(late, key=lambda broker: contacts[broker].heard_at))

    def _left_behind(self, broker: BrokerKey, contact: Contact, revision: int | None) -> bool:
        """Note that an older connection has ended whose last registration left the record at ``revision``.

        Returns:
            Whether that is evidence: the owner is gone, and the record was made after its end.
        """
        closing = contact.closing
        if closing is None or revision is None or revision <= (closing.revision or 0):
            return False
        self._put(broker, replace(contact, closing=replace(closing, at=self.clock, revision=revision)))
        return True

    def _add_spare(self, origin: ConnectionId, broker: BrokerKey) -> None:
        """Count a pair as spare if its connection is open; above the bound forget the oldest pair.

        For other members, the connection of a forgotten broker counts as closed by us, which is no evidence.
        """
        if broker not in self._registered_over.get(origin, ()):
            return
        self._spare.pop((origin, broker), None)
        self._spare[origin, broker] = None
        if len(self._spare) <= SPARE_MAX:
            return
        oldest = next(iter(self._spare))
        del self._spare[oldest]
        origin, broker = oldest
        brokers = self._registered_over[origin]
        del brokers[broker]
        if not brokers:
            del self._registered_over[origin]
        contact = self._contacts.get(broker)
        if contact is not None and contact.connected and contact.owner == origin:
            self._put(broker, replace(contact, connected=False, confirmed=False))

    def _put(self, broker: BrokerKey, contact: Contact) -> None:
        self._place(broker, replace(contact, version=self.version + 1))

    def _place(self, broker: BrokerKey, contact: Contact) -> None:
        """Store a contact that has its change number already."""
        self.version = contact.version
        self._contacts.pop(broker, None)  # a dict keeps insertion order: the latest change lies last
        self._contacts[broker] = contact
        self._unconnected.pop(broker, None)
        if not contact.connected:
            self._unconnected[broker] = None
            if len(self._unconnected) > CLOSED_MAX:
                # Without its contact nothing is known of the broker. Its lease then decides, by the clock of
                # the process that judges.
                oldest = next(iter(self._unconnected))
                del self._unconnected[oldest], self._contacts[oldest]
