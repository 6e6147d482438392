"""Command lines of programs that use argparse: the form of their help, and completion scripts for shells."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, Final

SHELLS: Final = ("bash", "zsh")
#: Matches the metavar of a flag whose value must be one of several words, such as ``bash|zsh``.
_WORDS: Final = re.compile(r"[A-Za-z_]+(\|[A-Za-z_]+)+")


class Help(argparse.RawDescriptionHelpFormatter):
    """Help formatter that shows a flag's value once, behind all its names: ``-c, --configFile FILE``."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class PrintCompletion(argparse.Action):
    """Action that prints the completion script for a shell and ends the program."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if values not in SHELLS:
            parser.error(f"{option_string} {values}: allowed are {', '.join(SHELLS)}")
        print(_script(parser, str(values)), end="")
        parser.exit()


def add_print_completion(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the flag ``--print-completion``."""
    parser.add_argument(
        "--print-completion",
        action=PrintCompletion,
        metavar="|".join(SHELLS),
        help="print the script by which this shell completes command lines, and exit",
    )


def _script(parser: argparse.ArgumentParser, shell: str) -> str:
    import shtab  # imported only here, because few command lines need it

    for action in _actions(parser):
        if action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.option_strings and isinstance(action.metavar, str) and _WORDS.fullmatch(action.metavar):
            action.choices = action.metavar.split("|")
    return shtab.complete(parser, shell=shell)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the actions of a parser and of its subcommands."""
    found = []
    for action in parser._actions:
        found.append(action)
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                found += _actions(child)
    return found
