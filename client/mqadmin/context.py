"""Services for subcommands: the client, the two output streams, and reports of failures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TextIO, TypeVar

from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.logs import printable

from ..blocking import Client
from ..directory import EachAnswer
from ..errors import describe
from ..operation import Operation

T = TypeVar("T")
#: Number of failures that a context keeps. It drops older failures, because some subcommands never end.
_KEPT: Final = 1000


@dataclass(slots=True, kw_only=True)
class Context:
    """Services and data for one call of a subcommand.

    A subcommand prints both its lines and its JSON document. The context prints only the requested form.

    Attributes:
        nameservers: Nameservers from ``-n`` or NAMESRV_ADDR.
        as_json: True if ``-o json`` was given.
        failures: One line for each failure. Only the newest lines are kept.
        failed: Number of all failures. If it is not 0, the exit code is not 0.
    """

    name: str
    nameservers: tuple[str, ...]
    client: Client
    out: TextIO
    err: TextIO
    as_json: bool = False
    failures: list[str] = field(default_factory=list)
    failed: int = 0

    def run(self, operation: Operation[T]) -> T:
        """Run an operation of the client."""
        return self.client.run(operation)

    def line(self, text: str = "") -> None:
        """Print a line of a subcommand's result. Escape control characters, which a terminal would obey."""
        self.page(printable(text))

    def page(self, text: str) -> None:
        """Print several lines without escaping. The text must not contain control characters."""
        if not self.as_json:
            print(text, file=self.out, flush=True)

    def json(self, document: Any, *, always: bool = False) -> None:
        """Print one JSON document.

        Args:
            always: True to print the document even without ``-o json``.
        """
        if self.as_json or always:
            print(_json_text(document), file=self.out, flush=True)

    def json_list(self, items: Iterable[Any]) -> None:
        """Print a JSON array item by item.

        If an item cannot be computed, do not print the closing bracket. The output is then no valid JSON, so
        that readers notice the failure.
        """
        before = "["
        for item in items:
            print(before, _json_text(item), sep="", end="", file=self.out)
            before = ", "
        print("[]" if before == "[" else "]", file=self.out, flush=True)

    def warn(self, text: str) -> None:
        """Print a warning as one line on stderr, and let the subcommand continue."""
        print(f"mqadmin {self.name}: WARNING: {printable(text)}", file=self.err, flush=True)

    def fail(self, reason: str | BaseException) -> None:
        """Print a failure as one line on stderr, store it in ``failures``, and count it."""
        text = reason if isinstance(reason, str) else describe(reason)
        self.failed += 1
        self.failures.append(text)
        del self.failures[:-_KEPT]
        print(f"mqadmin {self.name}: {printable(' '.join(text.split()))}", file=self.err, flush=True)

    def exit_with_1(self) -> None:
        """Make the exit code 1, but print nothing on stderr, because the printed result shows the fault."""
        self.failed += 1

    @contextmanager
    def reporting(self, place: str) -> Iterator[None]:
        """Report a RemotingError of the ``with`` block as the failure of a server or object, and go on."""
        try:
            yield
        except RemotingError as error:
            self.fail(f"{place}: {describe(error)}")

    def report(self, answers: Iterable[EachAnswer]) -> bool:
        """Print a line for each nameserver that failed. Return True if any nameserver failed."""
        answers = tuple(answers)
        failures = [answer for answer in answers if answer.error is not None]
        for answer in failures:
            assert answer.error is not None
            self.fail(f"name server[{answer.addr}] failed: {describe(answer.error)}")
        if failures and len(answers) > 1:
            self.fail(f"done at {len(answers) - len(failures)} of {len(answers)} name servers")
        return bool(failures)


def _json_text(document: Any) -> str:
    text = json.dumps(document, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(document)
