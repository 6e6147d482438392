"""Command lines as Apache's tool reads and describes them (commons-cli, PosixParser and HelpFormatter).
Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .context import Context

_WIDTH: Final = 110
_USAGE: Final = "usage: "


class UsageError(Exception):
    """The command line is wrong; the text says how, in commons-cli's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        short: Empty for one that has only a long name.
        group: Options of the same group exclude each other, and one of them is required.
        own: RouteKeeper's, not RocketMQ's; described below Apache's text.
        refused: Why this tool cannot do what the option asks for; None if it can.
    """

    short: str
    long: str
    description: str
    value: bool = True
    required: bool = False
    group: str | None = None
    own: bool = False
    refused: str | None = None

    @property
    def name(self) -> str:
        """The name under which its value is found."""
        return self.short or self.long

    @property
    def flag(self) -> str:
        return f"-{self.short}" if self.short else f"--{self.long}"

    @property
    def shape(self) -> str:
        short = f"-{self.short}," if self.short else "   "
        return f"{short}--{self.long}" + (" <arg>" if self.value else "")

    @property
    def key(self) -> str:
        return self.flag + (" <arg>" if self.value else "")


HELP: Final = Option(short="h", long="help", description="Print help", value=False)
NAMESRV: Final = Option(
    short="n",
    long="namesrvAddr",
    description="Name server address list, eg: '192.168.0.1:9876;192.168.0.2:9876'",
)
OUTPUT: Final = Option(
    short="o", long="output", description="json: print one JSON document instead of a table", own=True
)
#: For subcommands of which Apache's have another ``-o``.
OUTPUT_LONG: Final = Option(
    short="O", long="output", description="json: print one JSON document instead of a table", own=True
)


#: For every subcommand: how the tool proves itself and what it demands of servers.
SECURITY: Final = (
    Option(
        short="",
        long="tls-ca",
        description="encrypt all connections; servers must show a certificate of these authorities (PEM)",
        own=True,
    ),
    Option(
        short="",
        long="tls-check",
        description="encrypt all connections; what certificates must show: host (default: an authority made"
        " it for the server's host), authority (for any host), nothing",
        own=True,
    ),
    Option(
        short="",
        long="tls-cert",
        description="encrypt all connections; certificate for servers that ask for one (PEM)",
        own=True,
    ),
    Option(short="", long="tls-key", description="its key (default: in the same file)", own=True),
    Option(short="", long="tls-key-password-file", description="file with the password of the key", own=True),
    Option(
        short="",
        long="acl-file",
        description="sign requests with accessKey and secretKey of this file (default:"
        " ROCKETMQ_HOME/conf/tools.yml if there is one)",
        own=True,
    ),
)


class Arguments:
    """Values of one command line, by short name; values are trimmed.

    Attributes:
        words: Those that belong to no option.
    """

    def __init__(self, values: Mapping[str, str], words: Sequence[str] = ()) -> None:
        self.words = tuple(words)
        self._values = {short: value.strip() for short, value in values.items()}

    def __contains__(self, short: str) -> bool:
        return short in self._values

    def text(self, short: str) -> str:
        """Return a value that is there because it is required."""
        return self._values[short]

    def get(self, short: str) -> str | None:
        return self._values.get(short)

    def number(self, short: str, name: str, default: int, *, low: int, high: int) -> int:
        """Return a whole number.

        Raises:
            UsageError: If it is none, or out of range; the text names value and range.
        """
        text = self._values.get(short)
        if text is None:
            return default
        try:
            number = int(text)
        except ValueError:
            raise UsageError(f"{name}={text!r} is not a whole number, allowed {low}..{high}") from None
        if not low <= number <= high:
            raise UsageError(f"{name}={number}, allowed {low}..{high}")
        return number

    def flag(self, short: str, name: str) -> bool:
        """Return a true|false value; absent is false.

        Raises:
            UsageError: If it is neither.
        """
        text = self._values.get(short, "false").lower()
        if text not in ("true", "false"):
            raise UsageError(f"{name}={text!r}, allowed true|false")
        return text == "true"

    def json(self, short: str = "o") -> bool:
        """Say whether ``-o json`` was given.

        Args:
            short: Of the option: ``O`` where Apache's tool has another ``-o``.

        Raises:
            UsageError: If another form was asked for.
        """
        form = self._values.get(short)
        if form not in (None, "json"):
            raise UsageError(f"output={form!r}, allowed json")
        return form == "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One subcommand.

    Attributes:
        options: In the order in which missing ones are named; ``-h`` and ``-n`` come on top unless given,
            those of :data:`SECURITY` at the end.
        run: Does it and returns the exit code.
        needs_nameserver: Whether ``-n`` or NAMESRV_ADDR must name one.
        only_reads: It changes nothing, so a word that belongs to no option does no harm.
        alias: Another name by which RocketMQ's tool finds it; empty if there is none.
    """

    name: str
    description: str
    options: tuple[Option, ...] = ()
    run: Callable[[Context, Arguments], int]
    needs_nameserver: bool = True
    only_reads: bool = False
    alias: str = ""
    all_options: tuple[Option, ...] = field(init=False)

    def __post_init__(self) -> None:
        own = {option.short for option in self.options}
        above = tuple(option for option in (HELP, NAMESRV) if option.short not in own)
        object.__setattr__(self, "all_options", above + self.options + SECURITY)


def parse(command: Command, argv: Sequence[str]) -> Arguments:
    """Read a command line: ``-t x``, ``-tx``, ``--topic x``, ``--topic=x``, and long names behind one dash.

    Raises:
        UsageError: If an option is unknown, repeated in a group, without its value, or missing; or if a word
            belongs to no option and the subcommand changes something: half a command must change nothing.
    """
    by_name: dict[str, Option] = {}
    for option in command.all_options:
        by_name[option.flag] = option
        by_name["--" + option.long.strip()] = option
        by_name.setdefault("-" + option.long.strip(), option)
    values: dict[str, str] = {}
    words: list[str] = []
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        name, mark, inline = token.partition("=")
        if name[2:] == "":  # a short name: the rest is its value
            name, mark, inline = token, "", ""
        found = by_name.get(name)
        if found is None and len(token) > 2 and not token.startswith("--"):
            found, mark, inline = by_name.get(token[:2]), "=", token[2:].removeprefix("=")
            if found is not None and not found.value:
                found = None
        if found is None:
            if token.startswith("-") and token != "-":
                raise UsageError(f"Unrecognized option: {token}")
            if not command.only_reads:
                raise UsageError(f"Unrecognized argument: {token}")
            words.append(token)
            continue
        if not found.value:
            values[found.name] = ""
            continue
        if not mark:
            if not rest or rest[0] in by_name or rest[0].partition("=")[0] in by_name:
                raise UsageError(f"Missing argument for option: {found.name}")
            inline = rest.pop(0)
        values[found.name] = inline
    if "h" in values:
        return Arguments(values)
    for option in command.all_options:
        if option.refused and option.name in values:
            raise UsageError(f"{option.flag} is not offered: {option.refused}")
    _check_groups(command, values)
    return Arguments(values, words)


def attributes_of(text: str) -> dict[str, str]:
    """Return ``+a=b,-c`` as ``{"+a": "b", "-c": ""}``.

    Which names and values there are is for the broker to say.

    Raises:
        UsageError: If one is neither of these, or names what another one does.
    """
    attributes: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = item.partition("=")
        if not name[1:] or not (value if name[0] == "+" else name[0] == "-" and not equals):
            raise UsageError(f"attribute {item!r} is neither +NAME=VALUE (set) nor -NAME (remove)")
        if any(name[1:] == other[1:] for other in attributes):
            raise UsageError(f"attribute {name[1:]} is given twice")
        attributes[name] = value
    return attributes


def _check_groups(command: Command, values: Mapping[str, str]) -> None:
    missing: list[str] = []
    for group in dict.fromkeys(option.group for option in command.options if option.group):
        members = [option for option in command.options if option.group == group]
        given = [option.short for option in members if option.short in values]
        if len(given) > 1:
            raise UsageError(
                f"The option '{given[1]}' was specified but an option from this group has already been"
                f" selected: '{given[0]}'"
            )
        if not given:
            missing.append(
                "[" + ", ".join(f"-{option.short} {option.description}" for option in members) + "]"
            )
    missing += [option.short for option in command.options if option.required and option.short not in values]
    if missing:
        raise UsageError(f"Missing required option{'s' if len(missing) > 1 else ''}: {', '.join(missing)}")


def help_text(command: Command) -> str:
    """Return Apache's description of a subcommand, and after it that of our own options."""
    theirs = sorted((o for o in command.all_options if not o.own), key=lambda option: option.name.lower())
    ours = [option for option in command.all_options if option.own]
    lines = _wrap(_USAGE + f"mqadmin {command.name} " + _syntax(theirs), len(_USAGE))
    lines += _table(theirs)
    if ours:
        lines += ["", "Of RouteKeeper:", *_table(ours)]
    return "\n".join(lines) + "\n"


def _syntax(options: Sequence[Option]) -> str:
    parts = []
    groups: set[str] = set()
    for option in options:
        if option.group is None:
            parts.append(option.key if option.required else f"[{option.key}]")
        elif option.group in groups:
            parts.append("")  # commons-cli leaves a blank where the group's other members would stand
        else:
            groups.add(option.group)
            parts.append(" | ".join(member.key for member in options if member.group == option.group))
    return " ".join(parts)


def _table(options: Sequence[Option]) -> list[str]:
    width = max(len(option.shape) for option in options) + 4
    lines = []
    for option in options:
        lines += _wrap(f" {option.shape}".ljust(width) + option.description, width)
    return lines


def _wrap(text: str, indent: int) -> list[str]:
    """Break at the last blank within the width, or else at the width; continuation lines are indented."""
    lines = []
    while len(text) > _WIDTH:
        position = text.rfind(" ", indent + 1, _WIDTH + 1)
        if position < 0:
            position = _WIDTH
        lines.append(text[:position].rstrip())
        text = " " * indent + text[position:].strip()
    return [*lines, text.rstrip()]
