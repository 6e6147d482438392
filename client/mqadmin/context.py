"""Tools of a subcommand: the client, the two outputs, ways to report failures."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TextIO, TypeVar

from routekeeper.remoting.logs import printable

from ..blocking import Client
from ..directory import EachAnswer
from ..errors import describe
from ..operation import Operation

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Surroundings of one subcommand.

    Attributes:
        nameservers: Those that ``-n`` or NAMESRV_ADDR named.
    """

    name: str
    nameservers: tuple[str, ...]
    client: Client
    out: TextIO
    err: TextIO

    def run(self, operation: Operation[T]) -> T:
        """Run an operation of the client."""
        return self.client.run(operation)

    def line(self, text: str = "") -> None:
        """Print one line of the result; what strangers put into names neither ends nor steers it."""
        print(printable(text), file=self.out, flush=True)

    def page(self, text: str) -> None:
        """Print lines whose parts were made printable one by one."""
        print(text, file=self.out, flush=True)

    def json(self, document: Any) -> None:
        """Print one JSON document."""
        text = json.dumps(document, ensure_ascii=False)
        self.page(text if text.isprintable() else json.dumps(document))

    def json_list(self, items: Iterable[Any]) -> None:
        """Print a JSON array whose items are made one by one; it stays open if making one fails."""
        before = "["
        for item in items:
            text = json.dumps(item, ensure_ascii=False)
            print(before, text if text.isprintable() else json.dumps(item), sep="", end="", file=self.out)
            before = ", "
        self.page("[]" if before == "[" else "]")

    def warn(self, text: str) -> None:
        """Say on one line of stderr what a user should know although the subcommand goes on."""
        print(f"mqadmin {self.name}: WARNING: {printable(text)}", file=self.err, flush=True)

    def fail(self, reason: str | BaseException) -> int:
        """Say on one line of stderr what went wrong; return the exit code for it."""
        text = reason if isinstance(reason, str) else describe(reason)
        print(f"mqadmin {self.name}: {printable(' '.join(text.split()))}", file=self.err, flush=True)
        return 1

    def report(self, answers: Iterable[EachAnswer]) -> int:
        """Name each nameserver that did not do it; return the exit code."""
        answers = tuple(answers)
        failures = [answer for answer in answers if answer.error is not None]
        for answer in failures:
            assert answer.error is not None
            self.fail(f"name server[{answer.addr}] failed: {describe(answer.error)}")
        if failures and len(answers) > 1:
            self.fail(f"done at {len(answers) - len(failures)} of {len(answers)} name servers")
        return 1 if failures else 0
