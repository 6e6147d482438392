"""Services for subcommands: the client, the two output streams, and reports of failures."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TextIO, TypeVar

from routekeeper.remoting.logs import printable

from ..blocking import Client
from ..directory import EachAnswer
from ..errors import describe
from ..operation import Operation

T = TypeVar("T")
#: Number of failures that a context keeps. It drops older failures, because some subcommands never end.
_KEPT: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Services and data for one call of a subcommand.

    Attributes:
        nameservers: Nameservers from ``-n`` or NAMESRV_ADDR.
        failures: One line for each failure. Only the newest lines are kept. If there is any line, the exit
            code is not 0.
    """

    name: str
    nameservers: tuple[str, ...]
    client: Client
    out: TextIO
    err: TextIO
    failures: list[str] = field(default_factory=list)

    def run(self, operation: Operation[T]) -> T:
        """Run an operation of the client."""
        return self.client.run(operation)

    def line(self, text: str = "") -> None:
        """Print a line of a subcommand's result. Escape control characters, which a terminal would obey."""
        print(printable(text), file=self.out, flush=True)

    def page(self, text: str) -> None:
        """Print several lines without escaping. The text must not contain control characters."""
        print(text, file=self.out, flush=True)

    def json(self, document: Any) -> None:
        """Print one JSON document."""
        text = json.dumps(document, ensure_ascii=False)
        self.page(text if text.isprintable() else json.dumps(document))

    def json_list(self, items: Iterable[Any]) -> None:
        """Print a JSON array item by item.

        If an item cannot be computed, do not print the closing bracket. The output is then no valid JSON, so
        that readers notice the failure.
        """
        before = "["
        for item in items:
            text = json.dumps(item, ensure_ascii=False)
            print(before, text if text.isprintable() else json.dumps(item), sep="", end="", file=self.out)
            before = ", "
        self.page("[]" if before == "[" else "]")

    def warn(self, text: str) -> None:
        """Print a warning as one line on stderr, and let the subcommand continue."""
        print(f"mqadmin {self.name}: WARNING: {printable(text)}", file=self.err, flush=True)

    def fail(self, reason: str | BaseException) -> int:
        """Print a failure as one line on stderr, store it in ``failures``, and return exit code 1."""
        text = reason if isinstance(reason, str) else describe(reason)
        self.failures.append(text)
        del self.failures[:-_KEPT]
        print(f"mqadmin {self.name}: {printable(' '.join(text.split()))}", file=self.err, flush=True)
        return 1

    def report(self, answers: Iterable[EachAnswer]) -> int:
        """Print a line for each nameserver that failed. Return 1 if any nameserver failed, else 0."""
        answers = tuple(answers)
        failures = [answer for answer in answers if answer.error is not None]
        for answer in failures:
            assert answer.error is not None
            self.fail(f"name server[{answer.addr}] failed: {describe(answer.error)}")
        if failures and len(answers) > 1:
            self.fail(f"done at {len(answers) - len(failures)} of {len(answers)} name servers")
        return 1 if failures else 0
