"""A fast path for unchanged registrations, because most brokers send such a registration every 30 s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from routekeeper.nameserver.handlers import Renewal, renewal_of
from routekeeper.nameserver.registration import Registration
from routekeeper.nameserver.routes.entries import NameEntry
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import ConnectionId, Request

#: Largest body in bytes that is stored whole. For a larger body, only a hash is stored. To hash 1.7 MB takes
#: 0.5 ms (SHA-256: 1.0 ms, keyed BLAKE2b: 2.0 ms). To decode and decide such a registration takes 9 ms.
#:
#: Python's hash is SipHash with 64 bits. If PYTHONHASHSEED is set, the key of the hash is known. Therefore
#: random secret bytes are hashed before the body. Otherwise an attacker who creates topics at a broker could
#: choose the topics' names. With such names, the broker's next registration could have the hash of its last
#: registration, and the nameserver would acknowledge it without applying it.
BODY_BYTES_MAX: Final = 2 * 1024
#: Size of the secret in bytes. It equals the size of SipHash's state, so the secret changes the whole state.
SECRET_SIZE: Final = 32
#: Largest size in bytes of the stored registrations of all connections together.
REPEATS_BYTES_MAX: Final = 32 * 1024 * 1024
_COST: Final = 500  # bytes of memory for one stored registration, without its body and fields


@dataclass(slots=True)
class Repeat:
    """A registration that changed nothing, and the decision on it.

    Attributes:
        mark: The registration's body, or the hash of a large body.
        alone: True if the decision depends only on the request, the record, the broker name and the settings.
            If False, the decision is valid only as long as the whole table is unchanged.
        renewal: The decision, made at one revision of the table.
    """

    settings: NamesrvSettings
    version: int
    ext_fields: Mapping[str, str]
    body_size: int
    mark: bytes | int
    lease_ms: int
    alone: bool
    name: NameEntry
    renewal: Renewal
    revision: int
    cost: int


class Repeats:
    """The last registration of each connection, to answer an equal registration without decoding.

    A registration is stored only if it changed nothing and had the data version of the broker's record.
    Every change of a broker makes a new record object or a new broker name object. As long as the table has
    the same two objects, an equal registration needs no decoding, check or comparison.

    A late copy (a registration older than the broker's record) is not stored, because each one must be
    checked anew. A repeated older version may show that the broker's store was restored from a backup.

    Args:
        secret: Random bytes of this process. Their number is :data:`SECRET_SIZE`.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._kept: dict[ConnectionId, Repeat] = {}
        #: Size of all stored registrations, in bytes.
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(
        self, request: Request, origin: ConnectionId, table: RouteTable, settings: NamesrvSettings
    ) -> Repeat | None:
        """Return the connection's last decision if it is valid for this registration, else None."""
        kept = self._kept.get(origin)
        if kept is None:
            return None
        record, brokers = kept.renewal.record, table.brokers
        if (
            settings is not kept.settings
            or brokers.records.get(record.broker) is not record
            or brokers.names.get(record.broker_name) is not kept.name
            or (kept.revision != table.revision and not kept.alone)
            or request.version != kept.version
            or len(request.body) != kept.body_size
            or request.ext_fields != kept.ext_fields
            or self.mark_of(request.body) != kept.mark
        ):
            return None
        if kept.revision != table.revision:
            # Build the answer again, because it contains a slave's master and the order configuration of
            # topics, which may have changed.
            kept.renewal = renewal_of(table.view, record, settings, is_current=True)
            kept.revision = table.revision
        return kept

    def remember(
        self,
        request: Request,
        decoded: Registration,
        renewal: Renewal,
        origin: ConnectionId,
        table: RouteTable,
        settings: NamesrvSettings,
    ) -> None:
        """Store the decision on a registration, if it may be valid for the connection's next registration."""
        self.forget(origin)
        name = table.brokers.names.get(renewal.record.broker_name)
        if not renewal.is_current or name is None:
            return
        mark, fields = self.mark_of(request.body), request.ext_fields
        cost = (
            _COST
            + min(len(request.body), BODY_BYTES_MAX)
            + sum(map(len, fields))
            + sum(map(len, fields.values()))
        )
        if self.held_bytes + cost > REPEATS_BYTES_MAX:
            return
        self.held_bytes += cost
        self._kept[origin] = Repeat(
            settings=settings,
            version=request.version,
            ext_fields=fields,
            body_size=len(request.body),
            mark=mark,
            lease_ms=decoded.lease_ms,
            # A full registration with the record's data version is accepted without comparing its topics, so
            # the decision on it does not depend on topics in the table.
            alone=renewal.record.complete and len(decoded.table) != 1,
            name=name,
            renewal=renewal,
            revision=table.revision,
            cost=cost,
        )

    def forget(self, origin: ConnectionId) -> None:
        """Remove the stored registration of a connection."""
        kept = self._kept.pop(origin, None)
        if kept is not None:
            self.held_bytes -= kept.cost

    def clear(self) -> None:
        """Remove all stored registrations.

        Call this when another table replaces the table, because the two tables may have the same revision.
        """
        self._kept.clear()
        self.held_bytes = 0

    def mark_of(self, body: bytes) -> bytes | int:
        """Return the value by which the same body is recognized: the body, or its hash if it is large."""
        return body if len(body) <= BODY_BYTES_MAX else hash(self._secret + body)
