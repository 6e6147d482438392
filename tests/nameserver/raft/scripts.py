"""A player for scripts of events of a raft group. The scripts are the files ``testdata/*.txt``.

A script consists of several parts. Each part is a list of events, the line ``----``, and the expected output
of the events. At the start of a script, member ``a`` leads the group in term 1. A number in an event may be
relative to a figure of the member, as in ``last-1`` or ``term+1``.

If the environment variable ``ROUTEKEEPER_REWRITE`` is set, ``play`` writes the actual output into the script.
Review the difference before you commit it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final

from routekeeper.nameserver.raft.consensus import messages
from routekeeper.nameserver.raft.consensus.log import REGULAR
from routekeeper.nameserver.raft.types import ChangeRefused, NotLeader, Role

FOLDER: Final = Path(__file__).with_name("testdata")
STATES: Final = {getattr(messages, name): name.lower() for name in ("ALIVE", "MATCH", "RESET")}
_ANSWER: Final = {"seq": "1000000", "learner": "", "clock": "", "echo": "now"}
KINDS: Final[dict[str, tuple[type, dict[str, str]]]] = {
    "append": (
        messages.Append,
        {
            "seq": "1000000",
            "commit": "",
            "prev_index": "last",
            "prev_term": "at",
            "entries": "",
            "last": "end",
        }
        | {"beat": "1", "clock": "", "echo": "none", "age": "none"},
    ),
    "reply": (messages.AppendReply, {"state": "match", "index": "last", **_ANSWER}),
    "stale": (messages.Stale, {}),
    "pre-vote": (messages.PreVote, {"last_index": "1000000", "last_term": "term"}),
    "request-vote": (
        messages.RequestVote,
        {"last_index": "1000000", "last_term": "term", "transfer": ""},
    ),
    "vote": (messages.VoteReply, {}),
    "snapshot": (
        messages.SnapshotPart,
        {"seq": "1", "index": "last", "index_term": "term", "size": "1000", "offset": "", "data": "x"}
        | {"last": "last+60", "clock": "", "echo": "none"},
    ),
}
"""Messages that a script can make, with values for omitted fields. An omitted term is the receiver's term."""


def play(make: Callable[..., Any], name: str) -> None:
    """Run the script ``name``; fail if the output of its events differs from the expected output.

    Raises:
        AssertionError: If the outputs differ. The message shows the difference, line by line.
    """
    file = FOLDER / f"{name}.txt"
    written, group, played = file.read_text(), Group(make), []
    for block in written.strip().split("\n\n"):
        events = [] if block.startswith("#") else block.partition("----")[0].splitlines()
        output = [line for event in events for line in group.play(event)]
        played.append("\n".join([*events, "----", *output]) if output else "\n".join(events) or block)
    now = "\n\n".join(played) + "\n"
    if os.environ.get("ROUTEKEEPER_REWRITE"):
        file.write_text(now)
    difference = unified_diff(written.splitlines(), now.splitlines(), "as written", "as played", lineterm="")
    assert now == written, "\n".join(difference)


class Group:
    """The members of one script, with one method for each kind of event."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._w: Any = None

    def play(self, event: str) -> Iterator[str]:
        """Cause one event, and yield the lines of its output."""
        name, *words = event.split()
        named = dict(word.split("=") for word in words if "=" in word)
        output = getattr(self, name)(*(word for word in words if "=" not in word), **named)
        yield from output or ()

    def group(self, *, of: str = "3", compact: str = str(1 << 30), durability: str = "journal") -> None:
        """Start members with the names a, b, c and so on.

        Args:
            of: Number of members.
            compact: Number of bytes in the journal at which a member makes a snapshot.
        """
        settings = {"members": int(of), "compact_bytes": int(compact), "volatile": durability == "memory"}
        made = (self._make(seed, **settings) for seed in range(1, 100))
        self._w = next(w for w in made if (w.leader.name, w.leader.engine.term) == ("a:1", 1))

    # -- events of the group and its members

    def submit(self, times: str = "1", *, at: str = "", size: str = "8") -> Iterator[str]:
        for _ in range(int(times)):
            if self._w.submit(at or None, size=int(size)) is None:
                yield "not appended"

    def propose(self, name: str, term: str) -> Iterator[str]:
        """Append a proposal that was made in the term ``term``."""
        engine = self._w.engine(name)
        if engine.append(b"proposal", term=self._number(engine, term)) is None:
            yield "not appended"

    def run(self, seconds: str) -> None:
        self._w.run(float(seconds))

    def settle(self) -> None:
        """Wait until all members have applied all entries."""
        self._w.settle()

    def isolate(self, name: str) -> None:
        self._w.isolate(name)

    def block(self, *, of: str, to: str) -> None:
        self._w.block((of, to))

    def heal(self) -> None:
        self._w.heal()

    def pause(self, name: str, seconds: str) -> None:
        self._w[name].paused_until = self._w.now + float(seconds)

    def crash(self, name: str, *wipe: str) -> None:
        self._w.crash(self._w[name], wipe=bool(wipe))

    def start(self, name: str) -> None:
        self._w.start(name)

    def disk(self, name: str, state: str) -> None:
        """Make the disk of a member hang if ``state`` is "hangs"; otherwise make it work again."""
        if state == "hangs":
            self._w[name].write_delay = float("inf")
        else:
            self._w[name].resume_disk()

    def link(self, name: str, peer: str) -> None:
        """End the link to `peer` and begin a new link, but let only member `name` notice this."""
        engine = self._w.engine(name)
        engine.link_down(f"{peer}:1")
        engine.link_up(f"{peer}:1")

    def greet(self, name: str, peer: str, *, cluster: str = "") -> Iterator[str]:
        """Deliver a greeting to `name`, as if `peer` had sent it."""
        greeting = messages.Greeting("other", True, False, 300, {}, 0, cluster)
        yield from self._receive(self._w.engine(name), peer, greeting)

    def change(self, name: str, how: str, member: str) -> Iterator[str]:
        """Make leader ``name`` add ``member`` if ``how`` is "add"; otherwise make it remove ``member``."""
        membership = self._w.engine(name).membership
        try:
            (membership.add_member if how == "add" else membership.remove_member)(f"{member}:1")
        except (ChangeRefused, NotLeader) as error:
            yield f"refused: {error}"

    def handover(self, name: str) -> None:
        self._w.engine(name).membership.hand_over()

    # -- messages

    def receive(self, name: str, sender: str, kind: str, **changes: str) -> Iterator[str]:
        """Deliver one message to `name`, as if ``sender`` had sent it."""
        engine, (made, values) = self._w.engine(name), KINDS[kind]
        found: dict[str, Any] = {}
        for field, text in ({"term": "term"} | values | changes).items():
            found[field] = self._value(engine, field, text, found)
        if "entries" in found and "last" not in changes:
            found["last"] = found["prev_index"] + len(found["entries"])
        yield from self._receive(engine, sender, made(**found))

    def _receive(self, engine: Any, sender: str, message: Any) -> Iterator[str]:
        try:
            engine.receive(f"{sender}:1", messages.encode(message))
        except messages.MessageError as error:
            yield f"refused: {error}"

    def _value(self, engine: Any, field: str, text: str, found: dict[str, Any]) -> Any:
        log = engine.shared.log
        match field, text:
            case "entries", _:
                pairs = (one.split(":") for one in text.split(",") if one)
                return [(self._number(engine, term), REGULAR + payload.encode()) for term, payload in pairs]
            case "data", _:
                return text.encode()
            case "state", _:
                return next(state for state, name in STATES.items() if name == text)
            case (("learner" | "transfer" | "beat"), _):
                return bool(text)
            case _, "none":
                return None
            case _, "now":
                return self._w[engine.shared.me].clock()
            case "clock", _:
                return 0.0
            case _, "at":
                return log.term_at(found["prev_index"]) or 0
            case _, "end":
                return 0
        return self._number(engine, text)

    def _number(self, engine: Any, text: str) -> int:
        name, sign, number = re.fullmatch(r"([a-z]*)([+-]?)(\d*)", text).groups()  # type: ignore[union-attr]
        log = engine.shared.log
        known = {"": 0, "term": engine.term, "last": log.last_index, "commit": engine.commit_index}
        return int(known[name]) + int(f"{sign}{number or 0}")

    def watch(self) -> None:
        """Start to record messages; discard the messages that were recorded before."""
        self._w.logging = True
        self._w.log.clear()

    def sent(self, name: str, *kinds: str, to: str = "") -> list[str]:
        """List the messages of these kinds that a member has sent since ``watch``.

        List equal messages only once.
        """
        lines = []
        for sender, receiver, m in self._w.log:
            kind = type(m).__name__
            if sender == f"{name}:1" and kind in kinds and receiver.startswith(to):
                said = f"{receiver[0]} {kind} term={m.term}"
                if isinstance(m, messages.AppendReply):
                    said += f" {STATES[m.state]} index={m.index}"
                if isinstance(m, messages.Append):
                    said += f" entries={len(m.entries)}"
                lines.append(said)
        return list(dict.fromkeys(lines)) or ["nothing"]

    # -- events that print the members' state

    def show(self, *names: str) -> Iterator[str]:
        """Print the roles and figures of members.

        The figure ``last`` is the index and the term of the last entry.
        """
        for name in names:
            member = self._w[name]
            if member.engine is None:
                yield f"{name} {'removed' if member.was_removed else 'down'}"
                continue
            engine, log = member.engine, member.engine.shared.log
            line = f"{name} {engine.role} term={engine.term} last={log.last_index}:{log.last_term}"
            line += f" commit={engine.commit_index} applied={engine.applied_index}"
            if engine.role is Role.LEADER:
                peers = sorted(engine.leading.progress.items())
                line += " match=" + ",".join(f"{peer[0]}:{progress.match}" for peer, progress in peers)
                line += " next=" + ",".join(f"{peer[0]}:{progress.next}" for peer, progress in peers)
            if engine.status()["storage_stalled"]:
                line += " disk hangs"
            if member.stopped:
                line += f" stopped: {member.stopped}"
            yield line

    def leader(self) -> list[str]:
        """Print the name of the leader that can commit entries, if there is one."""
        return [f"{leader.name[0]} leads" if (leader := self._w.leader) else "nobody leads"]

    def members(self, name: str) -> list[str]:
        """Print the members of the group, as member `name` knows them."""
        return [" ".join(member[0] for member in self._w.engine(name).members)]

    def contact(self, name: str) -> list[str]:
        """Print whether a majority has answered member `name` within an election timeout."""
        return ["in contact" if self._w.engine(name).in_contact() else "not in contact"]

    def equal(self, *names: str) -> list[str]:
        """Print whether these members have applied the same entries."""
        applied = [self._w[name].machine.applied for name in names]
        return ["equal" if all(one == applied[0] for one in applied) else "different"]
