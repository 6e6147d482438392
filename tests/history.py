"""Recorded calls on a map of registers: what a checker of histories gets to see.

A history is a set of :class:`Call`; their order is that of their instants alone. Instants are of one clock
that all callers share, in any unit. Anyone who records a call decides its outcome with this rule: ``failed``
only if the call certainly had no effect and never will; a sent request without an answer is ``unknown``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

Value: TypeAlias = Hashable
"""What a register holds; None stands for absent, so deleting is writing None."""


class Operation(Enum):
    """The effect of a call on its register."""

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
        value: What was written, or what a successful read returned.
        begun, ended: Instants of sending and of the answer; ``ended`` counts only if the outcome is ok.
        caller: Who called, for people.
        lag: Of a read: it was promised to miss nothing acknowledged longer than this before it began.
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
    """Split a history by register, keys in order of first appearance.

    A history of independent registers is linearizable exactly if the history of each register is (Herlihy and
    Wing: linearizability is local).
    """
    split: dict[Hashable, list[Call]] = {}
    for call in history:
        split.setdefault(call.key, []).append(call)
    return split


def as_promised(history: Iterable[Call]) -> list[Call]:
    """Return the history with each read begun earlier by its ``lag``.

    It is linearizable exactly if no read misses a write acknowledged more than its lag before it began, and
    each read is otherwise explained by one order of all writes.
    """
    return [
        replace(call, begun=call.begun - call.lag) if call.operation is Operation.READ and call.lag else call
        for call in history
    ]
