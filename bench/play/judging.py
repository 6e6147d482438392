"""Judgement of an answer against the truth, by the definitions of the comparison (pure).

The rules are those of :func:`routekeeper.bench.report.requests.judged`, with additions for a session that has
no end. An answer lists brokers of a topic. For each broker that holds the topic:

- A broker is *gone* for a client if it was down or paused, or a link between the two was cut in any
  direction, all the time from question to answer. An answer that lists it is ``wrong``; one that leaves it
  out is right.
- A broker is *there* if it ran, and both directions were open, all that time. An answer that lists it is
  right. One that leaves it out is ``stale`` if the broker has come back, or the topic was made, and this
  server has not listed it since: the news has not arrived. If it has, the answer is ``wrong``: the server
  knew it and gave it up.
- Otherwise something changed meanwhile: it is judged by neither rule. An answer without another fault counts
  for neither side (``uncounted``).

An answer that is no route is ``refused`` if the server said that it does not answer, else ``none``.

The time of every change lies between two looks: the last one without it and the first one with it. The exact
instant is unknown, so an answer that overlaps this time counts as one that overlaps the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from routekeeper.bench.events import Outcome
from routekeeper.bench.links import Direction
from routekeeper.bench.play.model import Verdict

#: Bound of the stored intervals of each broker and each direction, because answers are judged soon.
KEPT_MAX: Final = 64

Reach = Literal["there", "gone", "changing"]


@dataclass(slots=True)
class Gap:
    """A time in which a broker was down, or a direction was cut.

    Attributes:
        unseen_ns: The last look before the gap.
        from_ns: The first look that showed the gap.
        ending_ns: The last look that still showed the gap; it may have ended at any time after this look.
            None as long as the gap lasts.
        to_ns: The first look that showed the end of the gap; None as long as the gap lasts.
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
        """Note a look at the state; return whether it shows a change.

        Args:
            before_ns: Instant of the previous look.
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
        """Note the start of a process, which may serve from now on."""
        if self.kept and self.kept[-1].to_ns is None and self.kept[-1].ending_ns is None:
            self.kept[-1].ending_ns = now_ns

    def state(self, sent_ns: int, done_ns: int) -> Reach:
        if any(gap.covers(sent_ns, done_ns) for gap in self.kept):
            return "gone"
        if any(gap.overlaps(sent_ns, done_ns) for gap in self.kept):
            return "changing"
        return "there"

    def back_ns(self, sent_ns: int) -> int | None:
        """Return the end of the last gap that ended before an instant; None if no gap did."""
        return max(
            (gap.to_ns for gap in self.kept if gap.to_ns is not None and gap.to_ns <= sent_ns), default=None
        )


@dataclass(frozen=True, slots=True)
class _Made:
    begun_ns: int
    acked_ns: int


class Truth:
    """The truth of one design: brokers that ran, links that were open, topics and their brokers."""

    def __init__(self) -> None:
        self._brokers: dict[str, _Gaps] = {}
        self._directions: dict[Direction, _Gaps] = {}
        self._held: dict[tuple[str, str], _Made] = {}
        self._listed_ns: dict[tuple[str | None, str, str], int] = {}

    # -- looks --------------------------------------------------------------------------------------------

    def broker(self, name: str, *, gone: bool, before_ns: int, now_ns: int) -> bool:
        """Note a look at a broker's process; return whether it shows a change."""
        return self._brokers.setdefault(name, _Gaps()).look(gone=gone, before_ns=before_ns, now_ns=now_ns)

    def broker_starts(self, name: str, now_ns: int) -> None:
        """Note the start of a broker's process: the broker may or may not serve now."""
        self._brokers.setdefault(name, _Gaps()).begins_to_end(now_ns)

    def direction(self, direction: Direction, *, cut: bool, before_ns: int, now_ns: int) -> bool:
        """Note a look at one direction of a link; return whether it shows a change."""
        return self._directions.setdefault(direction, _Gaps()).look(
            gone=cut, before_ns=before_ns, now_ns=now_ns
        )

    def made(self, topic: str, broker: str, *, begun_ns: int, acked_ns: int) -> None:
        """Note a broker's report that it made a topic."""
        self._held.setdefault((topic, broker), _Made(begun_ns, acked_ns))

    def lists(self, server: str | None, topic: str, brokers: Sequence[str], at_ns: int) -> None:
        """Note that a server lists brokers for a topic, by its answer or its own state."""
        for broker in brokers:
            key = server, topic, broker
            self._listed_ns[key] = max(at_ns, self._listed_ns.get(key, 0))

    # -- judging ------------------------------------------------------------------------------------------

    def reach(self, client: str, broker: str, sent_ns: int, done_ns: int) -> tuple[Reach, str]:
        """Return whether a client could reach a broker from query to answer, and why not."""
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
        """Return whether a server has not listed a broker yet since its topic was made or it came back."""
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
        """Return the verdict on an answer, and the reason if it was not right."""
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
        """Return the judgement of a client's kept route: ``stale`` if a right answer would differ."""
        holders = [
            broker for (held, broker), made in self._held.items() if held == topic and made.acked_ns <= now_ns
        ]
        for broker in {*holders, *(brokers or [])}:
            reach, _ = self.reach(client, broker, now_ns, now_ns)
            listed = broker in (brokers or [])
            if (reach == "gone" and listed) or (reach == "there" and not listed):
                return "stale"
        return "right"
