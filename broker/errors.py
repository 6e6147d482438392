"""Exceptions of the broker."""

from __future__ import annotations

import errno
from enum import StrEnum
from typing import Final

from routekeeper.remoting.codes import ResponseCode

#: Error numbers that mean a lack of space: disk full, the user's quota used up, or the file too large.
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Refused(StrEnum):
    """Reasons for which the broker refuses a send. ``/metrics`` counts refusals by reason."""

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
    """The broker could not write one of its state files."""
    HUNG = "hung"
    """The disk does not answer: a sync of the log has lasted longer than ``syncFlushTimeout``."""


class BrokerError(Exception):
    """Root of all exceptions that this package defines."""


class SettingError(BrokerError):
    """A setting is unusable. The message is one line that names the setting and the allowed values."""


class StoreUnavailable(BrokerError):
    """The store cannot accept the message. No part of the message was stored.

    Attributes:
        reason: DISK_FULL if the disk is full. DISK_FAILED in all other cases, such as a closed store.
    """

    def __init__(self, message: str, *, reason: Refused = Refused.DISK_FAILED) -> None:
        super().__init__(message)
        self.reason = reason


class StoreUnusable(BrokerError):
    """The broker cannot start with this store: its content cannot be read, or the disk fails at the start."""


class StoreDamaged(StoreUnusable):
    """The commit log has valid records after a damaged record. A start would lose acknowledged messages."""


class Refusal(BrokerError):
    """A request is refused. The broker answers with this error's code and remark.

    Attributes:
        code: Response code.
        remark: Text for the caller.
        reason: If the request is a send, the reason under which ``/metrics`` counts the refusal.
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
    """Return the reason under which ``/metrics`` counts a send that failed because of the disk."""
    if isinstance(error, StoreUnavailable):
        return error.reason
    return Refused.DISK_FULL if error.errno in FULL else Refused.DISK_FAILED
