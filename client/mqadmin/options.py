"""Parsing of command lines, and help texts, in the form of RocketMQ's tool.

RocketMQ's tool uses PosixParser and HelpFormatter of commons-cli. This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

from routekeeper.remoting.lenient import INT64_MAX, is_integer

if TYPE_CHECKING:
    from .context import Context

_WIDTH: Final = 110
_USAGE: Final = "usage: "


class UsageError(Exception):
    """The command line is wrong. The text says why, in the words of commons-cli if it has such an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a subcommand.

    Attributes:
        short: Short name; empty for an option that has only a long name.
        group: Name of a group of options, or None. Exactly one option of a group must be given.
        own: True for an option of RouteKeeper that RocketMQ lacks. The help lists it after RocketMQ's
            options.
        refused: Reason why this tool cannot do what the option requests; None if it can.
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
        """Return the name under which :class:`Arguments` stores the option's value."""
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
#: Option for JSON output in subcommands whose ``-o`` has another meaning in RocketMQ's tool.
OUTPUT_LONG: Final = Option(
    short="O", long="output", description="json: print one JSON document instead of a table", own=True
)


#: Options of every subcommand. They select the keys and the certificate that the tool uses, and how the tool
#: checks servers' certificates.
SECURITY: Final = (
    Option(
        short="",
        long="tls-ca",
        description="encrypt all connections; file with the certificates of trusted authorities (PEM)",
        own=True,
    ),
    Option(
        short="",
        long="tls-check",
        description="encrypt all connections; check of a server's certificate: host (default: an authority"
        " issued it for this host), authority (an authority issued it for any host), nothing (no check)",
        own=True,
    ),
    Option(
        short="",
        long="tls-cert",
        description="encrypt all connections; file with the certificate for servers that ask for one (PEM)",
        own=True,
    ),
    Option(
        short="",
        long="tls-key",
        description="file with the key of --tls-cert (default: the same file)",
        own=True,
    ),
    Option(
        short="",
        long="tls-key-password-file",
        description="file with the password of --tls-key",
        own=True,
    ),
    Option(
        short="",
        long="acl-file",
        description="sign requests with accessKey and secretKey of this file (default:"
        " ROCKETMQ_HOME/conf/tools.yml if there is one)",
        own=True,
    ),
)


class Arguments:
    """Values of the options of one command line, by :attr:`Option.name`, without blanks around values.

    Attributes:
        words: Words of the command line that belong to no option.
    """

    def __init__(self, values: Mapping[str, str], words: Sequence[str] = ()) -> None:
        self.words = tuple(words)
        self._values = {short: value.strip() for short, value in values.items()}

    def __contains__(self, short: str) -> bool:
        return short in self._values

    def text(self, short: str) -> str:
        """Return the value of a required option."""
        return self._values[short]

    def get(self, short: str) -> str | None:
        return self._values.get(short)

    def number(self, short: str, name: str, default: int, *, low: int, high: int) -> int:
        """Return an option's value as a whole number, or ``default`` if the option is absent.

        Raises:
            UsageError: If the text is no whole number, or out of range. The error names value and range.
        """
        text = self._values.get(short)
        if text is None:
            return default
        if not is_integer(text):
            raise UsageError(f"{name}={text!r} is not a whole number, allowed {low}..{high}")
        number = int(text)
        if not low <= number <= high:
            raise UsageError(f"{name}={number}, allowed {low}..{high}")
        return number

    def flag(self, short: str, name: str) -> bool:
        """Return the value of a true/false option; False if the option is absent.

        Raises:
            UsageError: If the text is neither true nor false.
        """
        text = self._values.get(short, "false").lower()
        if text not in ("true", "false"):
            raise UsageError(f"{name}={text!r}, allowed true|false")
        return text == "true"

    def json(self, options: Iterable[Option]) -> bool:
        """Return True if JSON output was requested by :data:`OUTPUT` or :data:`OUTPUT_LONG`.

        Args:
            options: The subcommand's options.

        Raises:
            UsageError: If a form other than json was requested.
        """
        form = next((self.get(one.short) for one in options if one in (OUTPUT, OUTPUT_LONG)), None)
        if form not in (None, "json"):
            raise UsageError(f"output={form!r}, allowed json")
        return form == "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One subcommand.

    Attributes:
        options: Options in the order in which the tool reports missing options. ``-h`` and ``-n`` are added
            before these options, unless this list contains them. The options of :data:`SECURITY` are added
            after these options.
        run: Function that runs the subcommand. The exit code is 1 if it raises an error or reports a failure.
        needs_nameserver: True if ``-n`` or NAMESRV_ADDR must name a nameserver.
        only_reads: True if the subcommand changes nothing. Words that belong to no option are then allowed.
        alias: A second name in RocketMQ's tool; empty if there is none.
    """

    name: str
    description: str
    options: tuple[Option, ...] = ()
    run: Callable[[Context, Arguments], None]
    needs_nameserver: bool = True
    only_reads: bool = False
    alias: str = ""
    all_options: tuple[Option, ...] = field(init=False)

    def __post_init__(self) -> None:
        own = {option.short for option in self.options}
        above = tuple(option for option in (HELP, NAMESRV) if option.short not in own)
        object.__setattr__(self, "all_options", above + self.options + SECURITY)


def parse(command: Command, argv: Sequence[str]) -> Arguments:
    """Parse a command line: ``-t x``, ``-tx``, ``--topic x``, ``--topic=x``, and long names after one dash.

    Raises:
        UsageError: If an option is unknown or lacks its value, if a required option is missing, or if two
            options of one group are given. If the subcommand can change something, also if a word belongs to
            no option, or if one option has two values: this may be a mistake, and a mistake must change
            nothing.
    """
    by_name: dict[str, Option] = {}
    for option in command.all_options:
        by_name[option.flag] = option
        by_name["--" + option.long.strip()] = option
        by_name.setdefault("-" + option.long.strip(), option)
    values: dict[str, str] = {}
    words: list[str] = []
    twice: list[str] = []
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        name, mark, inline = token.partition("=")
        if name[2:] == "":  # for a token of up to two characters, such as -t, the next token is the value
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
        former = values.setdefault(found.name, inline)  # the first value counts, as in RocketMQ's tool
        if former != inline and not command.only_reads:
            twice.append(f"Option {found.flag} is given twice: {former!r} and {inline!r}")
    if "h" in values:
        return Arguments(values)
    if twice:
        raise UsageError(twice[0])
    for option in command.all_options:
        if option.refused and option.name in values:
            raise UsageError(f"{option.flag} is not offered: {option.refused}")
    _check_groups(command, values)
    return Arguments(values, words)


def instant(args: Arguments, short: str, *, also: str = "") -> int:
    """Return the time that an option names, in Unix ms; 0 if the option is absent.

    Args:
        also: Values that the caller has checked itself, for the error text, each with a ``|`` behind it.

    Raises:
        UsageError: If the text is neither a number of ms nor a local time from 1970 (UTC) on.
    """
    text = args.get(short)
    if text is None:
        return 0
    try:
        if text.isdecimal():
            wall_ms = int(text)
        else:
            moment, _, ms = text.rpartition(":")
            wall_ms = int(datetime.strptime(moment, "%Y-%m-%d#%H:%M:%S").timestamp()) * 1000 + int(ms)
        if wall_ms > INT64_MAX:
            raise ValueError
    except ValueError:  # Python also raises ValueError for a number of more than 4,300 digits
        raise UsageError(
            f"-{short} {text!r}, allowed {also}currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS"
        ) from None
    if wall_ms < 0:
        # Brokers treat a negative time as the end of the queue.
        raise UsageError(f"-{short} {text!r} is before 1970-01-01 00:00 UTC; 0 is the beginning")
    return wall_ms


def attributes_of(text: str) -> dict[str, str]:
    """Return ``+a=b,-c`` as ``{"+a": "b", "-c": ""}``.

    The broker decides which names and values are allowed.

    Raises:
        UsageError: If a part is neither ``+NAME=VALUE`` nor ``-NAME``, or a name appears twice.
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
    """Return the help text of a subcommand: RocketMQ's text, then the options that only RouteKeeper has."""
    theirs = sorted((o for o in command.all_options if not o.own), key=lambda option: option.name.lower())
    ours = [option for option in command.all_options if option.own]
    lines = _wrap(_USAGE + f"mqadmin {command.name} " + _syntax(theirs), len(_USAGE))
    lines += _table(theirs)
    if ours:
        lines += ["", "Options of RouteKeeper:", *_table(ours)]
    return "\n".join(lines) + "\n"


def _syntax(options: Sequence[Option]) -> str:
    parts = []
    groups: set[str] = set()
    for option in options:
        if option.group is None:
            parts.append(option.key if option.required else f"[{option.key}]")
        elif option.group in groups:
            parts.append("")  # commons-cli prints a blank in place of each further option of the group
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
    """Break a text at blanks into lines within the width, and indent all lines but the first."""
    lines = []
    while len(text) > _WIDTH:
        position = text.rfind(" ", indent + 1, _WIDTH + 1)
        if position < 0:
            position = _WIDTH
        lines.append(text[:position].rstrip())
        text = " " * indent + text[position:].strip()
    return [*lines, text.rstrip()]
