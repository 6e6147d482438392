"""Exceptions of the broker."""

from __future__ import annotations

import errno
from enum import StrEnum
from typing import Final

from routekeeper.remoting.codes import ResponseCode

#: Errors of a disk without room: the disk is full, the user's quota is used up, or the file is too large.
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Refused(StrEnum):
    """Reasons for which a send is refused, as counted in ``/metrics``."""

    DISK_FULL = "disk_full"
    DISK_FAILED = "disk_failed"
    OVERLOAD = "overload"
    NO_TOPIC = "no_topic"
    FORBIDDEN = "forbidden"
    ILLEGAL = "illegal"


class DiskState(StrEnum):
    """States of the disk, as shown in ``/metrics``."""

    OK = "ok"
    REFUSING = "refusing"
    """The broker accepts no messages, because the disk is full or has failed."""
    UNWRITTEN = "unwritten"
    """The broker could not write a table."""
    HUNG = "hung"
    """The disk has not answered for longer than ``syncFlushTimeout``."""


class BrokerError(Exception):
    """Root of everything this package raises on purpose."""


class SettingError(BrokerError):
    """A setting is unusable; its message is one line that names the setting and what is allowed."""


class StoreUnavailable(BrokerError):
    """The store cannot accept the message (disk full, closed); no part of it was stored.

    Attributes:
        reason: The disk is full, or broken in another way.
    """

    def __init__(self, message: str, *, reason: Refused = Refused.DISK_FAILED) -> None:
        super().__init__(message)
        self.reason = reason


class StoreUnusable(BrokerError):
    """The content of the store's directory cannot be read, or the disk fails at the start."""


class StoreDamaged(StoreUnusable):
    """The log has a damaged record before valid ones, so a start would lose acknowledged messages."""


class Refusal(BrokerError):
    """A request is refused; this error becomes its answer.

    Attributes:
        code: Response code.
        remark: Text for the caller.
        reason: The reason under which a refused send is counted.
    """

    def __init__(self, code: int, remark: str, *, reason: Refused | None = None) -> None:
        super().__init__(f"code={code} remark={remark}")
        self.code = code
        self.remark = remark
        self.reason = reason or _REASONS.get(code, Refused.ILLEGAL)


_REASONS: Final[dict[int, Refused]] = {
    ResponseCode.TOPIC_NOT_EXIST: Refused.NO_TOPIC,
    ResponseCode.NO_PERMISSION: Refused.FORBIDDEN,
    ResponseCode.SYSTEM_BUSY: Refused.OVERLOAD,
}


def refused_for(error: OSError | StoreUnavailable) -> Refused:
    """Return the reason to count for a send that failed because of the disk."""
    if isinstance(error, StoreUnavailable):
        return error.reason
    return Refused.DISK_FULL if error.errno in _FULL else Refused.DISK_FAILED
