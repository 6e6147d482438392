"""Subcommand haStatus, which prints how much of a broker's log its slaves have copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.interrupt import interruptible_sleep
from routekeeper.remoting.lenient import INT64_MAX, as_object, get_bool, get_int, get_list, get_text
from routekeeper.remoting.logs import printable

from ..errors import describe
from ..operation import Operation
from . import java
from .context import Context
from .options import OUTPUT, Arguments, Command, Option
from .targets import ask_together, brokers_of, call_within, document

_WITHIN_S: Final = 30.0
_SLAVE_HEAD: Final = "{:<32}  {:<16} {:>16} {:>16} {:>16} {:>16}"


def _ha_status(context: Context, args: Arguments) -> None:
    interval_s = args.number("i", "interval", 0, low=1, high=86_400)
    while True:
        _show(context, args)
        if not interval_s:
            return
        interruptible_sleep(interval_s)


def _show(context: Context, args: Arguments) -> None:
    def ask(addr: str, left_s: float) -> Operation[dict[str, Any]]:
        return document((yield from call_within(context, addr, RequestCode.GET_BROKER_HA_STATUS, {}, left_s)))

    found, failures = ask_together(context, brokers_of(context, args), ask, within_s=_WITHIN_S)
    context.json(found)
    for addr, status in found.items() if not context.as_json else ():
        with context.reporting(f"broker {addr}"):
            context.page(status_text(addr, status))
    for addr, failure in failures.items():
        context.fail(f"broker {addr}: {describe(failure)}")


def status_text(addr: str, status: Mapping[str, Any]) -> str:
    """Return the HA status of a broker as lines. Source: HAStatusSubCommand.printStatus, 5.3.

    Raises:
        RemoteProtocolError: If a JSON member is missing in the status.
    """
    if not get_bool(status, "master"):
        return _slave_text(as_object(status.get("haClientRuntimeInfo") or {}, "haClientRuntimeInfo"))
    slaves = [as_object(one, "slave") for one in get_list(status, "haConnectionInfo")]
    lines = [
        "",
        f"#MasterAddr\t{printable(addr)}",
        f"#MasterCommitLogMaxOffset\t{get_int(status, 'masterCommitLogMaxOffset', limit=INT64_MAX)}",
        f"#SlaveNum\t{len(slaves)}",
        f"#InSyncSlaveNum\t{get_int(status, 'inSyncSlaveNums')}",
        _SLAVE_HEAD.format(
            *("#SlaveAddr", "#SlaveAckOffset", "#Diff", "#TransferSpeed(KB/s)", "#Status"),
            "#TransferFromWhere",
        ),
    ]
    for slave in slaves:
        speed = get_int(slave, "transferredByteInSecond", limit=INT64_MAX) / 1024
        lines.append(
            _SLAVE_HEAD.format(
                printable(get_text(slave, "addr") or "null"),
                get_int(slave, "slaveAckOffset", limit=INT64_MAX),
                get_int(slave, "diff", limit=INT64_MAX),
                f"{speed:.2f}",
                "OK" if get_bool(slave, "inSync") else "Fall Behind",
                get_int(slave, "transferFromWhere", limit=INT64_MAX),
            )
        )
    return "\n".join(lines)


def _slave_text(client: Mapping[str, Any]) -> str:
    speed = get_int(client, "transferredByteInSecond", limit=INT64_MAX) / 1024
    return "\n".join(
        (
            "",
            f"#MasterAddr\t{printable(get_text(client, 'masterAddr') or 'null')}",
            f"#CommitLogMaxOffset\t{get_int(client, 'maxOffset', limit=INT64_MAX)}",
            f"#TransferSpeed(KB/s)\t{speed:.2f}",
            f"#LastReadTime\t{java.time_text(get_int(client, 'lastReadTimestamp', limit=INT64_MAX))}",
            f"#LastWriteTime\t{java.time_text(get_int(client, 'lastWriteTimestamp', limit=INT64_MAX))}",
            f"#MasterFlushOffset\t{get_int(client, 'masterFlushOffset', limit=INT64_MAX)}",
        )
    )


COMMANDS: Final = (
    Command(
        name="haStatus",
        description="Fetch ha runtime status data.",
        options=(
            Option(short="c", long="clusterName", description="which cluster"),
            Option(short="b", long="brokerAddr", description="which broker to fetch"),
            Option(short="i", long="interval", description="the interval(second) of get info"),
            OUTPUT,
        ),
        run=_ha_status,
        needs_nameserver=False,
        only_reads=True,
    ),
)
