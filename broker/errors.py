"""Exceptions of the broker."""

from __future__ import annotations


class BrokerError(Exception):
    """Root of everything this package raises on purpose."""


class SettingError(BrokerError):
    """A setting is unusable; its message is one line that names the setting and what is allowed."""


class StoreUnavailable(BrokerError):
    """The store cannot take the message (disk full, closed); nothing of it was stored."""


class StoreDamaged(BrokerError):
    """The log has a damaged record before valid ones; to start would lose acknowledged messages."""


class Refusal(BrokerError):
    """A request cannot be served; becomes its answer.

    Attributes:
        code: Response code.
        remark: Text for the caller.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"code={code} remark={remark}")
        self.code = code
        self.remark = remark
