"""Checker of linearizability for a history of calls on registers.

The search is that of Wing and Gong. A configuration is a set of calls that took effect, and the value after
these calls. The search remembers visited configurations, as Lowe proposes, and visits each of them only once.
It checks each register alone. A call with an unknown outcome may take effect at any time after it began, or
never. A failed call never takes effect.

In the worst case, the time of the search grows exponentially with the number of calls that overlap. Therefore
the number of configurations is limited. This module does no I/O and reads no clock.

Sources: Wing, Gong: Testing and verifying concurrent objects, 1993; Lowe: Testing for linearizability, 2017.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tests.history import Call, Operation, Outcome, Value, by_key

CONFIGURATIONS_MAX: Final = 1_000_000
"""Maximum number of configurations that the search visits for one register."""


class Undecided(Exception):
    """Raised if the search visited the maximum number of configurations without a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One register whose calls have no valid order.

    Attributes:
        explained: The longest sequence of calls found whose order agrees with their times and values.
        stuck: Calls that could follow ``explained`` by their times, but not by their values.
    """

    key: Hashable
    explained: tuple[Call, ...]
    stuck: tuple[Call, ...]

    def __str__(self) -> str:
        tail = "".join(f"\n    {call}" for call in self.explained[-5:])
        none = "".join(f"\n    {call}" for call in self.stuck)
        return (
            f"{self.key!r} is not linearizable\n  {len(self.explained)} calls explained, the last of them:"
            f"{tail}\n  none of these can come next:{none}"
        )


def check(
    history: Iterable[Call],
    *,
    initial: Mapping[Hashable, Value] | None = None,
    configurations_max: int = CONFIGURATIONS_MAX,
) -> tuple[Violation, ...]:
    """Return a violation for each register whose history is not linearizable.

    Args:
        initial: Values of registers before the first call. All other registers have the value None.

    Raises:
        Undecided: If a register needs more than ``configurations_max`` configurations.
    """
    found = []
    for key, calls in by_key(history).items():
        start = None if initial is None else initial.get(key)
        violation = _check_register(key, calls, start, configurations_max)
        if violation is not None:
            found.append(violation)
    return tuple(found)


@dataclass(slots=True)
class _Event:
    """The start or the end of a call, as an element of a linked list in order of time.

    The list has the events of all calls that the search has not yet put into an order.
    """

    call: int
    end: bool
    before: _Event | None = None
    after: _Event | None = None

    def lift(self) -> None:
        """Take this event out of the list."""
        if self.before is not None:
            self.before.after = self.after
        if self.after is not None:
            self.after.before = self.before

    def put_back(self) -> None:
        """Put this event back into the list, in the reverse order of the calls of :meth:`lift`."""
        if self.before is not None:
            self.before.after = self
        if self.after is not None:
            self.after.before = self


def _relevant(calls: list[Call]) -> list[Call]:
    """Return the calls that the search must put into an order.

    The other calls have no visible effect: failed calls, reads without an answer, and writes with an unknown
    outcome whose value no read returned.
    """
    seen = {c.value for c in calls if c.operation is Operation.READ and c.outcome is Outcome.OK}
    return [
        call
        for call in calls
        if call.outcome is Outcome.OK
        or (call.outcome is Outcome.UNKNOWN and call.operation is Operation.WRITE and call.value in seen)
    ]


def _events(calls: list[Call]) -> tuple[_Event, list[_Event], list[_Event | None]]:
    """Return the head of the event list, and the start event and the end event of each call.

    If one call begins at exactly the time at which another call ends, the two calls count as overlapping.
    """
    order = [(call.begun, 0, number) for number, call in enumerate(calls)]
    order += [(c.ended, 1, number) for number, c in enumerate(calls) if c.outcome is Outcome.OK]
    head = last = _Event(-1, True)
    begins = [head] * len(calls)
    ends: list[_Event | None] = [None] * len(calls)
    for _, kind, number in sorted(order):
        event = _Event(number, bool(kind), before=last)
        last.after = last = event
        if kind:
            ends[number] = event
        else:
            begins[number] = event
    return head, begins, ends


def _check_register(
    key: Hashable, calls: list[Call], initial: Value, configurations_max: int
) -> Violation | None:
    calls = _relevant(calls)
    head, begins, ends = _events(calls)
    to_explain = sum(end is not None for end in ends)
    value, taken = initial, 0  # the configuration; ``taken`` has a bit for each call in effect
    visited: set[tuple[int, Value]] = {(taken, value)}
    path: list[tuple[int, Value]] = []  # calls in effect, in order, each with the value before it
    best: tuple[int, ...] = ()
    event = head.after
    while to_explain:
        if event is not None and not event.end:
            number, call = event.call, calls[event.call]
            write = call.operation is Operation.WRITE
            after = call.value if write else value
            next_taken = taken | 1 << number
            if (write or call.value == value) and (next_taken, after) not in visited:
                visited.add((next_taken, after))
                if len(visited) > configurations_max:
                    raise Undecided(f"{key!r}: more than {configurations_max} configurations")
                path.append((number, value))
                value, taken = after, next_taken
                begins[number].lift()
                end = ends[number]
                if end is not None:
                    end.lift()
                    to_explain -= 1
                event = head.after
            else:
                event = event.after
            continue
        # The next event is the end of a call that has not taken effect yet. So no call that begins later can
        # come next. Undo the last step of the search, and try another call instead.
        if len(path) >= len(best):
            best = tuple(number for number, _ in path)
        if not path:
            return _violation(key, calls, best)
        number, value = path.pop()
        taken &= ~(1 << number)
        end = ends[number]
        if end is not None:
            end.put_back()
            to_explain += 1
        begins[number].put_back()
        event = begins[number].after
    return None


def _violation(key: Hashable, calls: list[Call], best: tuple[int, ...]) -> Violation:
    left = [call for number, call in enumerate(calls) if number not in set(best)]
    first_end = min(call.ended for call in left if call.outcome is Outcome.OK)
    return Violation(
        key=key,
        explained=tuple(calls[number] for number in best),
        stuck=tuple(call for call in left if call.begun <= first_end),
    )
