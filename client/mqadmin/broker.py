"""Subcommands brokerStatus and getBrokerConfig."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ..admin import all_addrs, masters
from ..operation import Operation
from .context import Context
from .options import OUTPUT, Arguments, Command, Option
from .targets import chosen, cluster_info, target_options

_Ask = Callable[[str], Operation[Mapping[str, str]]]
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


def _broker_status(context: Context, args: Arguments) -> None:
    def show(addr: str, table: Mapping[str, str]) -> None:
        for name, value in sorted(table.items()):
            context.line(f"{name:<32}: {value}" if "b" in args else f"{addr:<24} {name:<32}: {value}")

    _each(context, args, context.client.admin.broker_runtime, show)


def _get_broker_config(context: Context, args: Arguments) -> None:
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

    _each(context, args, context.client.admin.broker_config, show)


def _each(context: Context, args: Arguments, ask: _Ask, show: _Show) -> None:
    """Ask each broker and show its answer. Report failures."""
    found: dict[str, Mapping[str, str]] = {}
    addrs = _targets(context, args)
    for addr in addrs:
        with context.reporting(f"broker {addr}"):
            found[addr] = context.run(ask(addr))
            show(addr, found[addr])
    context.json(found)
    if len(found) < len(addrs):  # a broker failed, or the cluster lists an address twice
        context.exit_with_1()


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
