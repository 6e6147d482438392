"""The command line of ``mqnamesrv``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from routekeeper.remoting.flags import Help, add_print_completion

from .declared import (
    BY_KEY,
    GROUPS,
    INERT,
    ConfigError,
    flag_of,
    group_of,
    metavar_of,
    read_address,
    spell_value,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """The parsed command line.

    Attributes:
        flags: Settings by key.
        config_file: Value of ``-c``; None without ``-c``.
        print_config: True if ``-p`` was given: print all settings and exit with code 0.
        words: Words that belong to no flag; RocketMQ ignores them.
    """

    flags: Mapping[str, str]
    config_file: str | None
    print_config: bool
    words: tuple[str, ...] = ()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parse_command_line(argv: Sequence[str], *, version: str) -> CommandLine:
    """Parse the flags of ``mqnamesrv``; ``--help`` and ``--version`` print and exit.

    Raises:
        ConfigError: A flag is unknown or lacks its value.
    """
    parser = _Parser(
        prog="mqnamesrv",
        description="RocketMQ nameserver",
        usage="mqnamesrv [-c FILE] [--FLAG VALUE ...]",
        formatter_class=Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("-c", "--configFile", dest="config_file", metavar="FILE", help="properties file")
    parser.add_argument(
        "-p",
        "--printConfigItem",
        dest="print_config",
        action="store_true",
        help="print all settings and exit",
    )
    add_print_completion(parser)
    parser.add_argument("-n", "--namesrvAddr", dest="ignored", metavar="ADDRESSES", help=argparse.SUPPRESS)
    groups = {name: parser.add_argument_group(name) for name in GROUPS}
    groups["network"].add_argument("--listen", metavar="HOST:PORT", help="address for RocketMQ's protocol")
    for key, declared in BY_KEY.items():
        meta, group = declared.metadata, groups[group_of(declared)]
        default = spell_value(declared.default)
        unit = f" {meta['unit']}" if meta["unit"] else ""
        help_ = meta["help"] + (f" (default {default}{unit})" if default else "")
        names = [f"--{name}" for name in dict.fromkeys((flag_of(declared) or key, key))]
        if declared.name == "force_new_cluster":
            # A value is allowed, because a file of all settings as flags says false here.
            meant = metavar_of(key, declared)
            group.add_argument(*names, dest=key, nargs="?", const="true", metavar=meant, help=meta["help"])
        elif declared.name == "rpc_hook":
            group.add_argument(*names, dest=key, action="append", metavar="MODULE:CLASS", help=help_)
        else:
            group.add_argument(*names, dest=key, metavar=metavar_of(key, declared), help=help_)
    for key in INERT:
        parser.add_argument(f"--{key}", metavar="VALUE", help=argparse.SUPPRESS)
    arguments, words = parser.parse_known_args(argv)
    if any(word.startswith("-") for word in words):
        parser.error(f"unrecognized arguments: {' '.join(words)}")
    given = vars(arguments)
    if given["rpcHook"] is not None:
        given["rpcHook"] = ",".join(given["rpcHook"])
    flags = {key: text for key, text in given.items() if (key in BY_KEY or key in INERT) and text is not None}
    if given["listen"] is not None:
        host, port = read_address("--listen", given["listen"])
        flags |= {"bindAddress": host, "listenPort": str(port)}
    return CommandLine(
        flags=flags,
        config_file=given["config_file"],
        print_config=given["print_config"],
        words=tuple(words),
    )
