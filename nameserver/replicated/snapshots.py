"""Snapshots of a replicated nameserver's state: the table, and the term of the last leader.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from routekeeper.nameserver.raft.types import StopMember
from routekeeper.nameserver.routes.image import ImageError, encode_image
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.remoting.lenient import UNREADABLE

SNAPSHOT_FORMAT: Final = 1


class _Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """The state that replaces log entries.

    Attributes:
        led_term: Term of the last leader before the snapshot.
        epoch: The table's epoch. It grows with each restore of a snapshot by an operator.
    """

    format: int
    led_term: int
    table: bytes
    epoch: int = 0


def snapshot_of(table: RouteTable, led_term: int) -> Callable[[], bytes]:
    """Return a function that encodes the state of this moment; it may run later and in another thread."""
    copy, epoch = table.copy_for_snapshot(), table.view.epoch

    return lambda: msgspec.msgpack.encode(
        _Snapshot(format=SNAPSHOT_FORMAT, led_term=led_term, table=encode_image(copy), epoch=epoch)
    )


def snapshot_of_epoch(data: bytes | bytearray, *, after: int) -> bytes:
    """Return a snapshot that an operator restores, marked with an epoch that was never used.

    Args:
        after: Epoch of the table that the restored state replaces.

    Raises:
        StopMember: The snapshot is damaged, or this program does not know its format.
    """
    found = _read(data)
    return msgspec.msgpack.encode(msgspec.structs.replace(found, epoch=max(found.epoch, after) + 1))


def read_snapshot(data: bytes | bytearray) -> tuple[RouteTable, int]:
    """Return the table, and the term of the last leader, from a snapshot.

    Raises:
        StopMember: The snapshot is damaged, or this program does not know its format.
    """
    found = _read(data)
    try:
        return RouteTable.restore(found.table, epoch=found.epoch), found.led_term
    except ImageError as error:
        raise StopMember(str(error)) from error


def _read(data: bytes | bytearray) -> _Snapshot:
    try:
        found = msgspec.msgpack.decode(data, type=_Snapshot)
    except UNREADABLE as error:
        raise StopMember(f"state image of {len(data)} bytes cannot be read: {error}") from error
    if found.format != SNAPSHOT_FORMAT:
        raise StopMember(f"state image has format {found.format}, this program knows {SNAPSHOT_FORMAT}")
    return found
