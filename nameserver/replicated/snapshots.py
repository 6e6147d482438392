"""The state image that the log keeps: the table, and who led last. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from routekeeper.nameserver.raft.types import StopMember
from routekeeper.nameserver.routes.image import encode_image
from routekeeper.nameserver.routes.table import RouteTable

IMAGE_FORMAT: Final = 1


class _Image(msgspec.Struct, array_like=True, frozen=True):
    """State image as the log keeps it.

    Attributes:
        led_term: Term of the last leader that began to lead before it.
        epoch: Of the table, see :attr:`RouteView.epoch`.
    """

    format: int
    led_term: int
    table: bytes
    epoch: int = 0


def image_of(table: RouteTable, led_term: int) -> Callable[[], bytes]:
    """Return what encodes the state as it is now; that may run in another thread, and later."""
    image, epoch = table.copy_for_snapshot(), table.view.epoch

    return lambda: msgspec.msgpack.encode(
        _Image(format=IMAGE_FORMAT, led_term=led_term, table=encode_image(image), epoch=epoch)
    )


def image_of_epoch(image: bytes | bytearray, *, after: int) -> bytes:
    """Return an image that an operator restores over a table of epoch ``after``: of a newer one than both.

    Raises:
        StopMember: If it is of a format that this program does not know.
    """
    found = _read(image)
    return msgspec.msgpack.encode(msgspec.structs.replace(found, epoch=max(found.epoch, after) + 1))


def read_image(image: bytes | bytearray) -> tuple[RouteTable, int]:
    """Return the table and the term of an image.

    Raises:
        StopMember: If it is of a format that this program does not know.
    """
    found = _read(image)
    return RouteTable.restore(found.table, epoch=found.epoch), found.led_term


def _read(image: bytes | bytearray) -> _Image:
    found = msgspec.msgpack.decode(image, type=_Image)
    if found.format != IMAGE_FORMAT:
        raise StopMember(f"state image has format {found.format}, this program knows {IMAGE_FORMAT}")
    return found
