"""Subcommands brokerStatus and getBrokerConfig."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from routekeeper.remoting.errors import RemotingError

from ..admin import all_addrs, masters
from ..errors import describe
from .context import Context
from .options import OUTPUT, Arguments, Command, Option
from .targets import chosen, cluster_info, target_options

_Show = Callable[[str, Mapping[str, str]], None]


def _targets(context: Context, args: Arguments) -> list[str]:
    """Return the address given with -b, or the addresses of all brokers of the cluster given with -c.

    Each master of a cluster comes before its slaves.
    """
    if chosen(args) == "b":
        return [args.text("b")]
    addrs = list(all_addrs(cluster_info(context), args.text("c")))
    if not addrs:
        context.fail(f"no broker in cluster {args.text('c')!r}")
    return addrs


def _broker_status(context: Context, args: Arguments) -> int:
    def show(addr: str, table: Mapping[str, str]) -> None:
        for name, value in sorted(table.items()):
            context.line(f"{name:<32}: {value}" if "b" in args else f"{addr:<24} {name:<32}: {value}")

    return _each(context, args, show, config=False)


def _get_broker_config(context: Context, args: Arguments) -> int:
    master = ""
    roles: set[str] = set()
    if chosen(args) == "c":
        info = cluster_info(context)
        roles = set(masters(info, args.text("c")).values())

    def show(addr: str, table: Mapping[str, str]) -> None:
        nonlocal master
        if addr in roles:
            master = addr
            title = f"Master: {addr}"
        else:
            title = f"My Master: {master}=====Slave: {addr}" if roles else addr
        context.line(f"============{title}============")
        for name, value in table.items():
            context.line(f"{name:<50}=  {value}")
        context.line()

    return _each(context, args, show, config=True)


def _each(context: Context, args: Arguments, show: _Show, *, config: bool) -> int:
    """Ask each broker and show its answer. Report failures, and return the exit code."""
    as_json = args.json()
    admin = context.client.admin
    found: dict[str, Mapping[str, str]] = {}
    addrs = _targets(context, args)
    for addr in addrs:
        try:
            found[addr] = context.run(admin.broker_config(addr) if config else admin.broker_runtime(addr))
        except RemotingError as error:
            context.fail(f"broker {addr}: {describe(error)}")
        else:
            if not as_json:
                show(addr, found[addr])
    if as_json:
        context.json(found)
    return 0 if addrs and len(found) == len(addrs) else 1


COMMANDS: Final = (
    Command(
        name="brokerStatus",
        description="Fetch broker runtime status data.",
        options=(
            Option(short="b", long="brokerAddr", description="Broker address", group="target"),
            Option(short="c", long="clusterName", description="which cluster", group="target"),
            OUTPUT,
        ),
        run=_broker_status,
        needs_nameserver=False,
        only_reads=True,
    ),
    Command(
        name="getBrokerConfig",
        description="Get broker config by cluster or special broker.",
        options=(*target_options("get"), OUTPUT),
        run=_get_broker_config,
        needs_nameserver=False,
        only_reads=True,
    ),
)
