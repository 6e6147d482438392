"""Unchanged registrations, for every mode: most brokers send one every 30 s."""

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

#: Bodies up to this size in bytes are kept whole; of larger ones a hash is kept. To hash 1.7 MB takes 0.5 ms
#: (SHA-256: 1.0 ms, keyed BLAKE2b: 2.0 ms), while to decode and decide the registration takes 9 ms. Python's
#: hash is SipHash of 64 bits, whose key everybody knows if PYTHONHASHSEED is set. So a secret goes before the
#: body. Else a client that has its broker create topics could choose their names so that the broker's next
#: registration counts as its last one, and is acknowledged without being applied.
BODY_BYTES_MAX: Final = 2 * 1024
#: Bytes of that secret: as many as the state of SipHash has.
SECRET_SIZE: Final = 32
#: Bound of the remembered registrations of all connections, in bytes.
REPEATS_BYTES_MAX: Final = 32 * 1024 * 1024
_COST: Final = 500  # bytes of an entry without its body


@dataclass(slots=True)
class Repeat:
    """A registration that changed nothing, and how it was decided.

    Attributes:
        mark: The body, or its hash.
        alone: The decision depends only on request, record, broker name and settings. If False, it is valid
            only while the table is unchanged.
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
    """The last registration of each connection, if it changed nothing and had the record's data version.

    While the record and its broker name are the very same objects, the same bytes need no decoding, check or
    comparison: every change makes a new object. Late copies are not kept: a repeated one may show that the
    broker's data version went back.

    Args:
        secret: Random bytes of this process, :data:`SECRET_SIZE` of them.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._kept: dict[ConnectionId, Repeat] = {}
        #: Number of bytes that are remembered.
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(
        self, request: Request, origin: ConnectionId, table: RouteTable, settings: NamesrvSettings
    ) -> Repeat | None:
        """Return the last decision on a registration, if it is still valid."""
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
            # The answer names a slave's master, and for a broker the order of topics.
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
        """Keep the decision on a registration, if it may be valid for the next one over its connection."""
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
            # The topics of a full registration are not compared if its version is the listed one.
            alone=renewal.record.complete and len(decoded.table) != 1,
            name=name,
            renewal=renewal,
            revision=table.revision,
            cost=cost,
        )

    def forget(self, origin: ConnectionId) -> None:
        """Forget the registration of a connection."""
        kept = self._kept.pop(origin, None)
        if kept is not None:
            self.held_bytes -= kept.cost

    def clear(self) -> None:
        """Forget all registrations: another table may have the same revision."""
        self._kept.clear()
        self.held_bytes = 0

    def mark_of(self, body: bytes) -> bytes | int:
        """Return a body, or its hash if it is large."""
        return body if len(body) <= BODY_BYTES_MAX else hash(self._secret + body)
