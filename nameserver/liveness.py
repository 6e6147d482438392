"""Evidence about brokers: when this process last saw each broker, and which brokers' connections closed.

Independent mode and raft mode use this module. It does not decide about evictions. In independent mode, the
nameserver decides by this process's evidence alone. In raft mode, each member reports its evidence to the
leader, and the leader decides by the evidence of all members.

Rules:
    - Each connection has a list of the brokers that registered over it. The owner of a broker is the youngest
      connection over which the broker registered, that is, the connection with the greatest id. A
      registration over an older connection never changes the owner. For example, a copy of a registration may
      arrive late over a connection of the broker's former process. This connection then neither keeps the
      broker listed nor removes the broker.
    - If the peer closes the owner connection, or an error or idleness ends it, this is evidence that the
      broker is gone. If this process closes the connection at shutdown or to shed load, this is no evidence.
    - After a broker's newer process is gone, a late registration from the broker's former process may list
      the broker again. Then the end of the former process's connection is evidence that this broker is gone.
    - An unregistration over the owner is evidence that the broker is gone.
    - A registration is a late copy if its data version is older than the data version in the broker's
      record (:meth:`DataVersion.contained_in`). But a broker's data version goes back if its store was
      restored from a backup. The broker then repeats the older version: see :meth:`Liveness.is_late`.

This module has its own clock, in seconds. Only :meth:`Liveness.advance` moves the clock, by at most
:data:`CLOCK_STEP_MAX_S` at each call. So when a paused process continues, the leases do not all expire at
once.
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
"""Seconds between two calls of :meth:`Liveness.advance` by the nameserver's mode (independent or raft)."""

CLOCK_STEP_MAX_S: Final = 1.0
"""Largest step of the clock in seconds, no matter how long the process was paused."""

LEASE_DEFAULT_S: Final = LEASE_MS / 1000
"""Lease in seconds of a broker whose registration names no lease."""

CLOSED_MAX: Final = 10_000
"""Largest number of remembered brokers without a connection.

Above this number, the broker whose contact has not changed for the longest time is forgotten.
"""

SPARE_MAX: Final = 10_000
"""Largest number of remembered pairs of an open connection and a broker that registered over it.

A pair is not counted if the broker has a record and the connection owns the broker. Any client could register
any number of names, so the number of pairs is bounded. Above the bound, the oldest pair is forgotten.
"""

REPEATED_AFTER_S: Final = 5.0
"""Seconds from the first arrival of an older data version until a repeat of this version is accepted.

A repeat that arrives earlier counts as a late copy. Late copies come from one socket buffer, so they arrive
within moments. A broker registers at most once in 10 s, so a later repeat is a new registration.
"""

NEVER: Final = float("-inf")
"""Instant that stands for "never seen", because it lies before every other instant."""


class Ownership(Enum):
    """The relation of a connection to a broker.

    - owner: the youngest connection over which the broker registered;
    - older: another connection over which the broker registered;
    - stranger: a connection over which the broker never registered.
    """

    OWNER = "owner"
    OLDER = "older"
    """The broker registered over the connection, and later over a younger connection."""
    STRANGER = "stranger"
    """The broker never registered over the connection, which belongs to an admin tool or to a new broker."""


class Closing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Evidence that a broker is gone: its connection closed, or the broker unregistered over it."""

    at: float
    """Instant of the evidence on the liveness clock, in seconds."""
    origin: ConnectionId
    revision: int | None
    """Revision of the broker's record when the connection closed or the broker unregistered; None if the
    broker had no record then.

    A registration that arrived over this connection may succeed later. This field then becomes the revision
    of the record after that registration.
    """
    unregistered: bool = False
    """True if the broker unregistered; False if its connection closed."""


class _Contained(msgspec.Struct, frozen=True, gc=False):
    """A data version of a broker that is older than ``listed``, the version in the broker's record.

    Attributes:
        at: Time at which the older version first arrived, on the liveness clock in seconds.
    """

    version: DataVersion
    listed: DataVersion
    at: float


class Contact(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Facts about one broker from this process's own connections."""

    heard_at: float
    """Instant of the last contact on the liveness clock, in seconds."""
    lease_s: float
    owner: ConnectionId | None = None
    """The youngest connection over which the broker registered. It is remembered even after its close."""
    connected: bool = False
    """True if the owner is open and the broker has not unregistered over it."""
    confirmed: bool = False
    """True if a registration over the owner has succeeded."""
    closing: Closing | None = None
    version: int = 0
    """Number of the contact's last change; changes of all contacts are numbered in one sequence."""


class Liveness:
    """The contacts of this process with brokers, and the clock for the times of these contacts.

    Invariants:
        - a connected broker has an owner, and the owner is an open connection;
        - for a connected broker there is no evidence that it is gone (``closing`` is None);
        - contacts are stored in the order of their last change.
    """

    def __init__(self) -> None:
        self.clock = 0.0
        """Seconds for which this process has run, without its pauses."""
        self.version = 0
        """Number of the last change of any contact; see :meth:`changes_since`."""
        self._read_at: float | None = None
        self._contacts: dict[BrokerKey, Contact] = {}
        self._unconnected: dict[BrokerKey, None] = {}  # unconnected brokers in the order of their last change
        # For each open connection: the brokers that registered over the connection. Each broker has the
        # revision of its record after its last successful registration; None before the first success.
        self._registered_over: dict[ConnectionId, dict[BrokerKey, int | None]] = {}
        # Pairs of a connection and a broker in _registered_over that may be forgotten, the oldest pair first.
        # Their number is limited by SPARE_MAX. In each pair, no registration has succeeded yet, or the
        # broker's record is gone, or a younger connection owns the broker.
        self._spare: dict[tuple[ConnectionId, BrokerKey], None] = {}
        # For :meth:`is_late`: the last older data version that each broker sent. At most one version is
        # stored for each record, and it is removed together with the record.
        self._contained: dict[BrokerKey, _Contained] = {}

    def advance(self, now: float) -> None:
        """Move the clock towards the monotonic time ``now``, by at most :data:`CLOCK_STEP_MAX_S` seconds."""
        read_at = self._read_at
        if read_at is None:
            self._read_at = now
        elif now > read_at:  # Ignore a time before the last time: no second may count twice.
            self.clock += min(now - read_at, CLOCK_STEP_MAX_S)
            self._read_at = now

    # -- events -------------------------------------------------------------------------------------------

    def registering(
        self, broker: BrokerKey, origin: ConnectionId, *, lease_s: float = LEASE_DEFAULT_S
    ) -> None:
        """Record that a registration arrived over ``origin``, before the registration is decided.

        From now on this connection is the broker's owner, unless a younger connection is the owner.
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
        """Record that a registration over ``origin`` succeeded and left the record at ``revision``.

        If the proposal took long, the connection may have closed before this call. This close is evidence
        that the broker is gone. It then also applies to the record that this registration has changed.
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
                # Do not count this as a change, because reports to the leader do not contain ``confirmed``.
                # The contact keeps its position in the order of changes.
                self._contacts[broker] = replace(contact, confirmed=True)
        elif closing is not None and closing.origin == origin and closing.revision != revision:
            self._put(broker, replace(contact, closing=replace(closing, revision=revision)))

    def is_late(
        self, broker: BrokerKey, origin: ConnectionId, *, version: DataVersion, listed: DataVersion
    ) -> bool:
        """Record a registration's data version; return True if the registration is a late copy.

        A version is older than the listed version if the listed version contains it and the two differ. A
        registration with an older version is a late copy, and must not be applied. But a broker whose store
        was restored from a backup also sends an older version, again and again. So an older version is
        accepted if

        - the broker's youngest connection repeats it after :data:`REPEATED_AFTER_S` seconds, and
        - the listed version did not arrive in between.

        Args:
            origin: The registration's connection, after a call of :meth:`registering` with it.
            listed: Data version of the broker's record in this process's table.
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
        """Record that a broker sent a data version that is not older than the version in its record.

        So the broker's store was not restored from a backup. The older version that :meth:`is_late` remembers
        came from a late copy of a registration, and is forgotten.
        """
        self._contained.pop(broker, None)

    def heard(self, broker: BrokerKey, origin: ConnectionId, *, lease_s: float | None = None) -> None:
        """Renew a broker's lease without a registration: at a heartbeat, or a query for the data version."""
        before = self._contacts.get(broker) or Contact(heard_at=NEVER, lease_s=LEASE_DEFAULT_S)
        # ``closing`` is the evidence that the broker is gone. A heartbeat or a query cancels it only if the
        # message came over a younger connection than the owner. An older connection may deliver messages of
        # the broker's former process. So if the broker unregistered over the owner and the owner is still
        # open, messages over the owner do not cancel the evidence. Only a new registration cancels it.
        lives = before.closing is None or (before.owner is not None and origin > before.owner)
        lease_s, closing = before.lease_s if lease_s is None else lease_s, None if lives else before.closing
        self._put(broker, replace(before, heard_at=self.clock, lease_s=lease_s, closing=closing))

    def closed(
        self, origin: ConnectionId, *, by_us: bool, revision_of: Callable[[BrokerKey], int | None]
    ) -> tuple[BrokerKey, ...]:
        """Record the end of a connection.

        Args:
            by_us: True if this process closed the connection at shutdown or to shed load. False if the peer
                closed the connection, or if it ended after an error or because it was idle.
            revision_of: Function that returns the revision of a broker's record in this process's table, or
                None if there is no record.

        Returns:
            The brokers that are gone because of this close, in the order in which they registered.
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
        """Record an unregistration over ``origin``.

        The unregistration is evidence that the broker is gone only if this connection owns the broker.

        Args:
            revision: Revision of the broker's record in this process's table; None if there is no record.
        """
        contact = self._contacts.get(broker)
        if contact is not None and contact.owner == origin:
            closing = Closing(at=self.clock, origin=origin, revision=revision, unregistered=True)
            self._put(broker, replace(contact, connected=False, confirmed=False, closing=closing))

    def forget(self, broker: BrokerKey) -> None:
        """Drop all facts about a broker that has no record. Only independent mode calls this."""
        self._contacts.pop(broker, None)
        self._unconnected.pop(broker, None)
        self._contained.pop(broker, None)
        for origin, brokers in self._registered_over.items():
            if broker in brokers:
                del brokers[broker]
                self._spare.pop((origin, broker), None)

    def removed(self, broker: BrokerKey) -> None:
        """Note that a broker's record was removed. Earlier messages must not count for the next record.

        Connections and evidence of closed connections are kept. This evidence names a revision of the removed
        record, so the evidence does not count against the next record.
        """
        self._contained.pop(broker, None)
        contact = self._contacts.get(broker)
        if contact is not None:
            self._put(broker, replace(contact, heard_at=NEVER))
        for origin in [origin for origin, brokers in self._registered_over.items() if broker in brokers]:
            self._add_spare(origin, broker)

    def table_replaced(self) -> None:
        """Forget older data versions, because a table with other records may have replaced this table."""
        self._contained.clear()

    def prune(self) -> None:
        """Forget unconnected brokers that were last seen more than one lease ago.

        If a broker's connection closed, or the broker unregistered, after its last message, this later time
        counts instead.
        """
        for broker, contact in list(self._contacts.items()):
            last = contact.heard_at if contact.closing is None else max(contact.heard_at, contact.closing.at)
            if not contact.connected and self.clock - last > contact.lease_s:
                del self._contacts[broker]
                del self._unconnected[broker]

    # -- queries ------------------------------------------------------------------------------------------

    def contact(self, broker: BrokerKey) -> Contact | None:
        """Return this process's facts about a broker, or None."""
        return self._contacts.get(broker)

    def changes_since(self, version: int) -> tuple[tuple[BrokerKey, Contact], ...]:
        """Return the contacts that changed after change number ``version``, the latest change first.

        Forgotten contacts are missing. Only unconnected contacts are forgotten, after their lease. A process
        with a copy of a contact need not be informed: it can compute when the contact is forgotten.
        """
        latest_first = reversed(self._contacts.items())
        return tuple(takewhile(lambda change: change[1].version > version, latest_first))

    def ownership(self, broker: BrokerKey, origin: ConnectionId) -> Ownership:
        """Return an open connection's relation to a broker: owner, older or stranger."""
        contact = self._contacts.get(broker)
        if contact is not None and contact.owner == origin:
            return Ownership.OWNER
        if broker in self._registered_over.get(origin, ()):
            return Ownership.OLDER
        return Ownership.STRANGER

    def carries_broker(self, origin: ConnectionId) -> bool:
        """Return True if any broker registered over this open connection."""
        return bool(self._registered_over.get(origin))

    def connections_of(self, broker: BrokerKey, *, up_to_revision: int) -> tuple[ConnectionId, ...]:
        """Return the open connections over which a broker registered.

        Leave out connections whose last registration gave the record a revision above ``up_to_revision``.
        When the broker is evicted, the caller closes the returned connections. So a broker that still lives
        notices the eviction.
        """
        return tuple(
            origin
            for origin, brokers in self._registered_over.items()
            if (revision := brokers.get(broker)) is not None and revision <= up_to_revision
        )

    def silent(self) -> tuple[BrokerKey, ...]:
        """Return the brokers whose lease has run out by :attr:`clock`, the longest silent broker first."""
        contacts, clock = self._contacts, self.clock
        late = (broker for broker, known in contacts.items() if clock - known.heard_at > known.lease_s)
        return tuple(sorted(late, key=lambda broker: contacts[broker].heard_at))

    def _left_behind(self, broker: BrokerKey, contact: Contact, revision: int | None) -> bool:
        """Record the end of a connection that is not the broker's youngest connection (the owner).

        Args:
            revision: Revision of the broker's record after the last registration over the older connection.

        Returns:
            True if this end is evidence that the broker is gone. This holds if the owner closed first, and
            ``revision`` is above the revision that the record had then. So a registration over the older
            connection was applied after that close.
        """
        closing = contact.closing
        if closing is None or revision is None or revision <= (closing.revision or 0):
            return False
        self._put(broker, replace(contact, closing=replace(closing, at=self.clock, revision=revision)))
        return True

    def _add_spare(self, origin: ConnectionId, broker: BrokerKey) -> None:
        """Allow this process to forget that a broker has registered over a connection.

        ``_spare`` has all pairs of a connection and a broker that may be forgotten. If there are more than
        SPARE_MAX pairs, forget the oldest pair. Other members then assume that this process closed the
        pair's connection. Such a close is no evidence that the broker is gone.
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
        """Store a contact that already has its change number."""
        self.version = contact.version
        self._contacts.pop(broker, None)  # insert again, as the last entry of the dict
        self._contacts[broker] = contact
        self._unconnected.pop(broker, None)
        if not contact.connected:
            self._unconnected[broker] = None
            if len(self._unconnected) > CLOSED_MAX:
                # Without a contact, this process has no evidence about the broker. The process that decides
                # on evictions then waits until the broker's lease has run out by the clock of that process.
                oldest = next(iter(self._unconnected))
                del self._unconnected[oldest], self._contacts[oldest]
