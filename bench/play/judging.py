"""Judgement of an answer against the true state, by the definitions of the comparison.

This module does no I/O and reads no clock. Its rules are the rules of
:func:`routekeeper.bench.report.requests.judged`, with additions for a session that has no end. An answer
lists brokers of a topic. It is judged for each broker that has the topic:

- A broker is *gone* for a client if one of these states lasted from the query to the answer: the broker was
  down or paused, or a link between client and broker was cut in a direction. An answer that lists such a
  broker is ``wrong``. An answer that omits the broker is right.
- A broker is *there* if it ran, and both directions were open, from the query to the answer. An answer that
  lists such a broker is right. An answer that omits the broker is ``stale`` or ``wrong``. It is ``stale`` if
  the server has not listed the broker since the broker returned or made the topic. Such a server does not
  know of the broker yet. The answer is ``wrong`` if the server has listed the broker since then, and then
  dropped the broker.
- In all other cases the broker's state changed between query and answer, and the answer is not judged for
  this broker. If the answer is neither ``wrong`` nor ``stale`` for another broker, it is ``uncounted``.

An answer without a route is ``refused`` if the server reported that it cannot answer now, else ``none``.

The instant of a change is not known exactly. It lies between two readings: the last reading without the
change, and the first reading with the change. If the time from a query to its answer overlaps the interval
between these two readings, the state counts as changed during the query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from routekeeper.bench.events import Outcome
from routekeeper.bench.links import Direction
from routekeeper.bench.play.model import Verdict

#: Number of gaps to store for each broker and each direction of a link. A gap is a time in which the broker
#: was down, or the direction was cut. Few gaps are enough, because answers are judged soon.
KEPT_MAX: Final = 64

Reach = Literal["there", "gone", "changing"]


@dataclass(slots=True)
class Gap:
    """A time in which a broker was down, or a direction of a link was cut.

    Attributes:
        unseen_ns: Instant of the last reading before the gap.
        from_ns: Instant of the first reading that showed the gap.
        ending_ns: Earliest instant at which the gap may have ended, or None while the gap lasts. It is the
            instant of the last reading that still showed the gap, or an earlier start of the broker's
            process.
        to_ns: Instant of the first reading that showed the end of the gap, or None while the gap lasts.
    """

    unseen_ns: int
    from_ns: int
    ending_ns: int | None = None
    to_ns: int | None = None

    def covers(self, sent_ns: int, done_ns: int) -> bool:
        return self.from_ns <= sent_ns and (self.ending_ns is None or self.ending_ns > done_ns)

    def overlaps(self, sent_ns: int, done_ns: int) -> bool:
        return self.unseen_ns <= done_ns and (self.to_ns is None or self.to_ns > sent_ns)


@dataclass(slots=True)
class _Gaps:
    kept: list[Gap] = field(default_factory=list)

    def look(self, *, gone: bool, before_ns: int, now_ns: int) -> bool:
        """Note a reading of the state of a broker or of a direction. Return True if the state has changed.

        Args:
            gone: True if the broker is down, or the direction is cut.
            before_ns: Instant of the previous reading.
            now_ns: Instant of this reading.
        """
        last = self.kept[-1] if self.kept and self.kept[-1].to_ns is None else None
        if gone and last is None:
            self.kept.append(Gap(unseen_ns=before_ns, from_ns=now_ns))
            del self.kept[:-KEPT_MAX]
            return True
        if not gone and last is not None:
            last.ending_ns = before_ns if last.ending_ns is None else min(before_ns, last.ending_ns)
            last.to_ns = now_ns
            return True
        return False

    def begins_to_end(self, now_ns: int) -> None:
        """Note that a broker's process has started, so that the gap may end at any time from now on."""
        if self.kept and self.kept[-1].to_ns is None and self.kept[-1].ending_ns is None:
            self.kept[-1].ending_ns = now_ns

    def state(self, sent_ns: int, done_ns: int) -> Reach:
        if any(gap.covers(sent_ns, done_ns) for gap in self.kept):
            return "gone"
        if any(gap.overlaps(sent_ns, done_ns) for gap in self.kept):
            return "changing"
        return "there"

    def back_ns(self, sent_ns: int) -> int | None:
        """Return the end of the last gap that ended at ``sent_ns`` or earlier, or None without such a gap."""
        return max(
            (gap.to_ns for gap in self.kept if gap.to_ns is not None and gap.to_ns <= sent_ns), default=None
        )


@dataclass(frozen=True, slots=True)
class _Made:
    begun_ns: int
    acked_ns: int


class Truth:
    """The true state of one design.

    It contains the times in which each broker ran and each link was open, and the brokers of each topic.
    """

    def __init__(self) -> None:
        self._brokers: dict[str, _Gaps] = {}
        self._directions: dict[Direction, _Gaps] = {}
        self._held: dict[tuple[str, str], _Made] = {}
        self._listed_ns: dict[tuple[str | None, str, str], int] = {}

    # -- readings -----------------------------------------------------------------------------------------

    def broker(self, name: str, *, gone: bool, before_ns: int, now_ns: int) -> bool:
        """Note a reading of a broker's state. Return True if the state has changed."""
        return self._brokers.setdefault(name, _Gaps()).look(gone=gone, before_ns=before_ns, now_ns=now_ns)

    def broker_starts(self, name: str, now_ns: int) -> None:
        """Note the start of a broker's process, which begins to serve at an unknown later instant."""
        self._brokers.setdefault(name, _Gaps()).begins_to_end(now_ns)

    def direction(self, direction: Direction, *, cut: bool, before_ns: int, now_ns: int) -> bool:
        """Note a reading of the state of one direction of a link. Return True if the state has changed."""
        return self._directions.setdefault(direction, _Gaps()).look(
            gone=cut, before_ns=before_ns, now_ns=now_ns
        )

    def made(self, topic: str, broker: str, *, begun_ns: int, acked_ns: int) -> None:
        """Note that a broker has confirmed the creation of a topic."""
        self._held.setdefault((topic, broker), _Made(begun_ns, acked_ns))

    def lists(self, server: str | None, topic: str, brokers: Sequence[str], at_ns: int) -> None:
        """Note that a server listed these brokers for a topic at an instant, in an answer or in its state."""
        for broker in brokers:
            key = server, topic, broker
            self._listed_ns[key] = max(at_ns, self._listed_ns.get(key, 0))

    # -- judging ------------------------------------------------------------------------------------------

    def reach(self, client: str, broker: str, sent_ns: int, done_ns: int) -> tuple[Reach, str]:
        """Return a broker's state for a client from query to answer, and the reason if the state is ``gone``.

        The state is ``there``, ``gone`` or ``changing``. The module's docstring defines the first two. A
        state that changed during the query is ``changing``.
        """
        found: tuple[Reach, str] = "there", ""
        for gaps, why in (
            (self._brokers.get(broker), "does not run"),
            (self._directions.get((client, broker)), "is cut off from it"),
            (self._directions.get((broker, client)), "is cut off from it"),
        ):
            state = "there" if gaps is None else gaps.state(sent_ns, done_ns)
            if state == "gone":
                return "gone", why
            if state == "changing":
                found = "changing", ""
        return found

    def _is_news(self, client: str, server: str | None, topic: str, broker: str, sent_ns: int) -> bool:
        """Return True if a server has not yet listed a broker since the broker made the topic or returned."""
        instants = [self._held[topic, broker].acked_ns]
        for gaps in (
            self._brokers.get(broker),
            self._directions.get((client, broker)),
            self._directions.get((broker, client)),
        ):
            back_ns = None if gaps is None else gaps.back_ns(sent_ns)
            if back_ns is not None:
                instants.append(back_ns)
        return self._listed_ns.get((server, topic, broker), -1) < max(instants)

    def judge(
        self,
        client: str,
        server: str | None,
        topic: str,
        outcome: Outcome,
        brokers: Sequence[str] | None,
        *,
        sent_ns: int,
        done_ns: int,
    ) -> tuple[Verdict, str]:
        """Return the verdict on an answer, and the reason in words. A ``right`` answer has no reason."""
        if outcome == "refused":
            return "refused", "the server says that it does not answer now"
        if outcome not in ("ok", "absent"):
            return "none", "no answer"
        listed = list(brokers or [])
        wrong: list[str] = []
        stale: list[str] = []
        changing: list[str] = []
        holders = {
            broker: made
            for (held, broker), made in self._held.items()
            if held == topic and made.begun_ns <= done_ns
        }
        for broker in sorted({*holders, *listed}):
            reach, why = self.reach(client, broker, sent_ns, done_ns)
            made = holders.get(broker)
            if reach == "changing" or (made is not None and made.acked_ns > sent_ns):
                changing.append(f"{broker} changed meanwhile")
            elif reach == "gone":
                if broker in listed:
                    wrong.append(f"lists {broker}, which {why}")
            elif broker not in listed:
                if self._is_news(client, server, topic, broker, sent_ns):
                    stale.append(f"does not list {broker} yet")
                else:
                    wrong.append(f"leaves out {broker}, which is there")
        self.lists(server, topic, listed, done_ns)
        for verdict, reasons in (("wrong", wrong), ("stale", stale), ("uncounted", changing)):
            if reasons:
                return verdict, "; ".join(reasons)  # type: ignore[return-value]
        return "right", ""

    def judge_cached(self, client: str, topic: str, brokers: Sequence[str] | None, now_ns: int) -> Verdict:
        """Return the verdict on the route in a client's cache.

        The verdict is ``right`` if the route would be a right answer to a query now, else ``stale``.
        """
        holders = [
            broker for (held, broker), made in self._held.items() if held == topic and made.acked_ns <= now_ns
        ]
        for broker in {*holders, *(brokers or [])}:
            reach, _ = self.reach(client, broker, now_ns, now_ns)
            listed = broker in (brokers or [])
            if (reach == "gone" and listed) or (reach == "there" and not listed):
                return "stale"
        return "right"
