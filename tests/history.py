"""Histories of calls on registers, as input for the checkers of linearizability and staleness.

A history is a collection of :class:`Call`, in any order. All callers must take the times of calls from one
clock, in any unit. A call has the outcome ``failed`` only if it had no effect and can have none later. A
request that was sent but not answered has the outcome ``unknown``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

Value: TypeAlias = Hashable
"""Value of a register. None means that the register does not exist, so a deletion is a write of None."""


class Operation(Enum):
    """The effect of a call on the register (a variable that can be read and written) of the history."""

    READ = "read"
    WRITE = "write"


class Outcome(Enum):
    """The outcome of a call, as its caller knows it."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call on one register.

    Attributes:
        key: The register.
        value: The written value, or the value that a successful read returned.
        begun, ended: Times of the request and of the answer. ``ended`` has a meaning only if the outcome is
            ``ok``.
        caller: Name of the caller, for error messages.
        lag: Permitted staleness of a read. The read must reflect every write that was acknowledged more than
            this time before the read began.
    """

    key: Hashable
    operation: Operation
    value: Value
    begun: float
    ended: float
    outcome: Outcome = Outcome.OK
    caller: str = ""
    lag: float = 0.0

    def __post_init__(self) -> None:
        if self.outcome is Outcome.OK and self.ended < self.begun:
            raise ValueError(f"call on {self.key!r} ended at {self.ended}, before it began at {self.begun}")

    def __str__(self) -> str:
        sign = "->" if self.operation is Operation.READ else ":="
        end = f"{self.ended:.6f}" if self.outcome is Outcome.OK else self.outcome.value
        return f"{self.caller} {self.key} {sign} {self.value!r} [{self.begun:.6f}, {end}]".strip()


def by_key(history: Iterable[Call]) -> Mapping[Hashable, list[Call]]:
    """Return the calls of each register, with the registers in the order of their first calls.

    Checkers can check each register alone. A history is linearizable if and only if the history of each
    register is linearizable (Herlihy and Wing, 1990).
    """
    split: dict[Hashable, list[Call]] = {}
    for call in history:
        split.setdefault(call.key, []).append(call)
    return split


def as_promised(history: Iterable[Call]) -> list[Call]:
    """Return the history in which each read begins earlier, by the read's ``lag``.

    The returned history is linearizable if and only if two conditions hold:

    - Each read reflects every write that was acknowledged more than the read's lag before the read began.
    - One order of all writes explains the values of all reads.
    """
    return [
        replace(call, begun=call.begun - call.lag) if call.operation is Operation.READ and call.lag else call
        for call in history
    ]
