"""Entry point of ``mqadmin``: the only module that reads the command line and the environment."""

from __future__ import annotations

from routekeeper.remoting.interrupt import end_quietly_when_interrupted
from routekeeper.remoting.terminal import print_any_text, unreadable_argument
from routekeeper.remoting.wall_clock import bear_far_clocks

end_quietly_when_interrupted()  # call this first: the user may interrupt the program during the imports
bear_far_clocks()
print_any_text()
# ruff: noqa: E402

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TextIO

from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.output import set_up_logging

from ..blocking import Client
from ..config import ClientConfig, parse_nameservers
from . import (
    acl_admin,
    broker,
    broker_admin,
    cluster,
    export,
    group,
    group_admin,
    ha,
    lists,
    measure,
    message,
    message_query,
    message_trace,
    monitoring,
    namesrv,
    queues,
    raft,
    topic,
)
from .absent import absent_line
from .completion import SHELLS, completion_script
from .context import Context
from .options import Command, UsageError, help_text, parse
from .security import credentials_of, tls_of

COMMANDS: Final[Mapping[str, Command]] = {
    command.name: command
    for module in (
        *(topic, cluster, namesrv, message, message_query, broker, broker_admin, group, group_admin, lists),
        *(queues, measure, message_trace, monitoring, ha, export, acl_admin, raft),
    )
    for command in module.COMMANDS
}
#: Subcommands by name and by alias. The keys are in lower case, because users may write any case. Source:
#: MQAdminStartup.findSubCommand.
_BY_NAME: Final[Mapping[str, Command]] = {
    name.lower(): command for command in COMMANDS.values() for name in (command.name, command.alias) if name
}
#: Timeout of one request in seconds. Source: DefaultMQAdminExt.timeoutMillis.
_CALL_TIMEOUT_S: Final = 5.0
_NOT_OFFERED: Final = 2
_INTERRUPTED: Final = 130  # exit code that shells use for an interrupted program: 128 + SIGINT
_UNUSED_NAMESERVER: Final = "127.0.0.1:9876"


def main(
    argv: Sequence[str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Run one subcommand, and return the exit code.

    Returns:
        - 0 if the subcommand succeeded at all servers,
        - 130 if the user interrupted it,
        - 2 for a subcommand that RocketMQ's tool has and this tool lacks,
        - 1 in all other cases.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    environment = os.environ if environment is None else environment
    set_up_logging(level="ERROR")
    out, err = out or sys.stdout, err or sys.stderr
    wrong = unreadable_argument(arguments)
    if wrong is not None:
        print(f"mqadmin: {wrong}", file=err)
        return 1
    if not arguments or arguments in (["help"], ["-h"], ["--help"]):
        print(_overview(), file=out)
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version  # imported only here, because the import takes 40 ms

        print(f"mqadmin {version('routekeeper')}", file=out)
        return 0
    if arguments[0] == "--print-completion":
        shell = arguments[1] if len(arguments) == 2 else ""
        if shell not in SHELLS:
            print(f"mqadmin: --print-completion {shell!r}: allowed are {', '.join(SHELLS)}", file=err)
            return 1
        print(completion_script(COMMANDS.values(), shell), end="", file=out)
        return 0
    name = arguments[1] if arguments[0] == "help" else arguments[0]
    command = _BY_NAME.get(name.lower())
    if command is None:
        absent = absent_line(name)
        if absent is not None:
            print(absent, file=err)
            return _NOT_OFFERED
        print(f"The sub command {name} not exist.", file=out)
        return 1
    if arguments[0] == "help":
        print(help_text(command), end="", file=out)
        return 0
    return _run(command, arguments[1:], environment, out, err)


def _run(
    command: Command, argv: Sequence[str], environment: Mapping[str, str], out: TextIO, err: TextIO
) -> int:
    try:
        args = parse(command, argv)
        if "h" in args:
            print(help_text(command), end="", file=out)
            return 0
    except UsageError as error:
        print(error, file=err)
        print(help_text(command), end="", file=out)
        return 1
    try:
        text = args.get("n") or environment.get("NAMESRV_ADDR", "")
        addrs = parse_nameservers(text)
        used = addrs if command.needs_nameserver or text else (_UNUSED_NAMESERVER,)
        tls, credentials = tls_of(args), credentials_of(args, environment)
        config = ClientConfig(nameservers=used, call_timeout_s=_CALL_TIMEOUT_S, tls=tls)
        if tls is not None:  # a Java server's first TLS handshake takes longer than the default timeout
            config = replace(config, connect_timeout_s=_CALL_TIMEOUT_S)
        client = Client(config, hooks=() if credentials is None else (credentials,))
    except (UsageError, RemotingError) as error:
        print(f"mqadmin {command.name}: {error}", file=err)
        return 1
    context = Context(name=command.name, nameservers=addrs, client=client, out=out, err=err)
    for word in args.words:
        context.warn(f"{word!r} belongs to no option and is ignored")
    try:
        context.as_json = args.json(command.options)
        command.run(context, args)
        return int(context.failed > 0)
    except (UsageError, RemotingError) as error:
        context.fail(error)
        return 1
    except KeyboardInterrupt:
        context.fail("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        # The program that reads our output has closed the pipe. Replace standard output by /dev/null. Else
        # Python would write the rest of the output at exit and report an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        client.close()


def _overview() -> str:
    lines = ["The most commonly used mqadmin commands are:"]
    lines += [f"   {command.name:<35} {command.description}" for command in COMMANDS.values()]
    return "\n".join([*lines, "", "See 'mqadmin help <command>' for more information on a specific command."])


if __name__ == "__main__":
    sys.exit(main())
