"""Shell scripts that complete subcommands and options of ``mqadmin``, made from the list of subcommands.

This module does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .options import Command, Option

SHELLS: Final = ("bash", "zsh")
#: Long names of the options whose values are names of files.
_FILES: Final = frozenset(
    {"file", "filename", "fileName", "token-file", "tls-ca", "tls-cert", "tls-key", "acl-file"}
)

_BASH: Final = """\
# Completion of mqadmin for bash: source this file.
_mqadmin() {
    local cur=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} options= files=
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ] || { [ "$COMP_CWORD" -eq 2 ] && [ "$previous" = help ]; }; then
        COMPREPLY=($(compgen -W "@COMMANDS@" -- "$cur"))
        return
    fi
    case ${COMP_WORDS[1]} in
@CASES@
    esac
    case " $files " in
    *" $previous "*) compopt -o default 2>/dev/null; return ;;
    esac
    case $cur in
    -*) COMPREPLY=($(compgen -W "$options" -- "$cur")) ;;
    esac
}
complete -F _mqadmin mqadmin
"""
_ZSH: Final = """\
#compdef mqadmin
# Completion of mqadmin for zsh: a file "_mqadmin" in a folder of $fpath, or source it after compinit.
_mqadmin() {
    local -a commands
    commands=(
@COMMANDS@
    )
    if (( CURRENT == 2 )) || [[ CURRENT -eq 3 && ${words[2]} == help ]]; then
        _describe -t commands command commands
        return
    fi
    local command=${words[2]}
    shift words
    (( CURRENT-- ))
    case $command in
@CASES@
    esac
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _mqadmin "$@"
else
    compdef _mqadmin mqadmin
fi
"""


def completion_script(commands: Iterable[Command], shell: str) -> str:
    """Return the completion script for a shell, which must be one of :data:`SHELLS`."""
    ordered = sorted(commands, key=lambda command: command.name)
    return _bash(ordered) if shell == "bash" else _zsh(ordered)


def _flags(option: Option) -> list[str]:
    short = [f"-{option.short}"] if option.short else []
    return [*short, f"--{option.long.strip()}"]


def _bash(commands: list[Command]) -> str:
    cases = []
    for command in commands:
        offered = [option for option in command.all_options if option.refused is None]
        options = " ".join(flag for option in offered for flag in _flags(option))
        files = " ".join(flag for option in offered if option.long in _FILES for flag in _flags(option))
        cases.append(f"    {command.name}) options='{options}' files='{files}' ;;")
    names = " ".join(["help", *(command.name for command in commands)])
    return _BASH.replace("@COMMANDS@", names).replace("@CASES@", "\n".join(cases))


def _zsh(commands: list[Command]) -> str:
    described = [
        "help:Print help of a subcommand",
        *(f"{each.name}:{_line(each.description)}" for each in commands),
    ]
    cases = []
    for command in commands:
        specs = [_quoted(_spec(option, flag)) for option in command.all_options for flag in _flags(option)]
        cases.append(f"    {command.name}) _arguments {' '.join(specs)} ;;")
    names = "\n".join(f"        {_quoted(line)}" for line in described)
    return _ZSH.replace("@COMMANDS@", names).replace("@CASES@", "\n".join(cases))


def _spec(option: Option, flag: str) -> str:
    text = _line(option.description)
    for character in "\\[]:":
        text = text.replace(character, "\\" + character)
    value = ":value:" + ("_files" if option.long in _FILES else " ") if option.value else ""
    return f"{flag}[{text}]{value}"


def _line(text: str) -> str:
    """Return the first sentence of a description on one line, cut after 100 characters."""
    return " ".join(text.split()).partition(". ")[0][:100]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
