"""``mqbroker``: reads flags, environment and the settings file, and runs one broker."""

from __future__ import annotations

from routekeeper.remoting.interrupt import end_quietly_when_interrupted
from routekeeper.remoting.logs import STYLES, set_up_logging

end_quietly_when_interrupted()  # before the rest is loaded, which takes a while
# ruff: noqa: E402

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from routekeeper.broker.config import LIVE_KEYS, BrokerConfig, apply_properties
from routekeeper.broker.ending import end_at_signals
from routekeeper.broker.errors import BrokerError, SettingError
from routekeeper.broker.files import DISK
from routekeeper.broker.loading import read_changed_settings
from routekeeper.broker.registrar import AnnouncerFactory, Registrar
from routekeeper.broker.server import BrokerServer
from routekeeper.broker.state_files import SETTINGS
from routekeeper.remoting.addresses import is_loopback, split_address
from routekeeper.remoting.errors import LocalProtocolError
from routekeeper.remoting.properties import format_properties, parse_properties

logger = logging.getLogger("routekeeper.broker")

_OWN_SETTINGS = """\
settings of our own, in the file or by --set (-p prints all settings with their defaults):
  bindAddress, advertisePort    what --listen and --advertise set
  timerDivisor                  number from 1 on (default 1) by which registerNameServerPeriod and its bounds
                                of 10 and 60 s, and the lease of 120 s, are divided; for benchmarks that
                                shorten all timers alike
  indexFileMessages             messages of one file of the index by key (default 20000)
  recoverDamagedLog             refuse (default): do not start when valid messages follow a damaged one;
                                skip: start and give up what is damaged
  maxConnections                open client connections (default 16384)
  httpListen                    what --http sets
"""


def main(argv: Sequence[str] | None = None, *, announcer: AnnouncerFactory = Registrar) -> int:
    """Run ``mqbroker``; return its exit code: 0 after a clean stop, 2 for a bad setting, 1 for a failure.

    A closed terminal (SIGHUP) stops it in order, too, with 129.

    Args:
        announcer: Makes what keeps the nameservers informed.
    """
    try:
        arguments = _parser().parse_args(argv)
    except SettingError as error:
        return _complain(error)
    set_up_logging(level=arguments.log_level.upper(), style=arguments.log_format)
    try:
        config, changed = _settings(arguments)
    except SettingError as error:
        return _complain(error)
    if arguments.print_config:
        sys.stdout.write(format_properties(config.to_properties()))
        return 0
    directory = _directory(config)
    runner = asyncio.run
    try:
        import uvloop

        runner = uvloop.run
    except ImportError:  # not available for every system; asyncio's own loop serves as well, slower
        pass
    try:
        return runner(_run(config, directory, announcer, changed))
    except SettingError as error:
        return _complain(error)
    except (BrokerError, ValueError) as error:
        print(f"mqbroker: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        # The address cannot be bound, or the store's directory cannot be used.
        return _complain(error)


async def _run(
    config: BrokerConfig, directory: Path, announcer: AnnouncerFactory, changed: Mapping[str, str]
) -> int:
    stop = asyncio.Event()
    ending = end_at_signals(stop)

    def ready(listen: str) -> None:
        print(
            f"mqbroker ready listen={listen} name={config.broker_name} cluster={config.cluster_name}"
            f" id={config.broker_id}" + (f" http={server.http_listen}" if server.http_listen else ""),
            flush=True,
        )
        # What a name was resolved to counts: many systems give loopback the machine's own name.
        if not is_loopback(split_address(listen)[0]):
            return
        logger.info("only this machine can reach the broker listen=%s", listen)
        if config.advertise_host != config.bind_host and not is_loopback(config.advertise_host):
            logger.warning(
                "clients are told an address that does not lead here advertised=%s listen=%s",
                config.advertise_host,
                listen,
            )

    server = BrokerServer(config, directory, announcer, changed_settings=changed)
    await server.run(stop, ready)
    return ending.code


def _complain(error: Exception) -> int:
    print(f"mqbroker: {error}", file=sys.stderr)
    return 2


def _directory(config: BrokerConfig) -> Path:
    return Path(config.store_path) if config.store_path else Path("data") / config.broker_name


def _settings(arguments: argparse.Namespace) -> tuple[BrokerConfig, dict[str, str]]:
    """Lay the flags over what was changed at run time over the file over the defaults, and check the result.

    Returns:
        The settings, and which of them were changed at run time.

    Raises:
        SettingError: If the file cannot be read or a setting is bad.
    """
    config = BrokerConfig(namesrv_addr=os.environ.get("NAMESRV_ADDR", ""))
    if arguments.config is not None:
        try:
            # Java reads properties files as ISO-8859-1.
            values = parse_properties(Path(arguments.config).read_text(encoding="latin-1"))
        except OSError as error:
            raise SettingError(f"-c {arguments.config}: {error.strerror}") from None
        except ValueError as error:
            raise SettingError(f"-c {arguments.config}: {error}") from None
        config, unknown = apply_properties(config, values)
        for key in unknown:
            logger.warning("unknown setting ignored key=%s file=%s", key, arguments.config)
    changed: dict[str, str] = {}
    flags: dict[str, str] = {}
    for key, value in (
        ("namesrvAddr", arguments.namesrv),
        ("brokerName", arguments.name),
        ("brokerClusterName", arguments.cluster),
        ("brokerId", arguments.id),
        ("storePathRootDir", arguments.store),
        ("httpListen", arguments.http),
    ):
        if value is not None:
            flags[key] = value
    if arguments.listen is not None:
        flags["bindAddress"], flags["listenPort"] = _address("--listen", arguments.listen)
    if arguments.advertise is not None:
        flags["brokerIP1"], flags["advertisePort"] = _address("--advertise", arguments.advertise)
    for text in arguments.set:
        key, mark, value = text.partition("=")
        if not mark:
            raise SettingError(f"--set {text}: is not KEY=VALUE")
        flags[key] = value
    # What was changed while the broker ran wins over the file, and flags over both.
    directory = _directory(apply_properties(config, flags)[0])
    try:
        saved = read_changed_settings(DISK, directory)
        changed = {key: value for key, value in saved.items() if key in LIVE_KEYS}
        config, _ = apply_properties(config, changed)
    except OSError as error:
        reason = f"{error.strerror}: {error.filename}"
        raise SettingError(f"storePathRootDir={directory} cannot be used: {reason}") from None
    except (ValueError, SettingError) as error:
        raise SettingError(f"{directory}/config/{SETTINGS}: {error}") from None
    config, unknown = apply_properties(config, flags)
    if unknown:
        raise SettingError(f"--set {unknown[0]}: no such setting")
    config.validate()
    return config, changed


def _address(flag: str, text: str) -> tuple[str, str]:
    try:
        host, port = split_address(text)
    except LocalProtocolError as error:
        raise SettingError(f"{flag}: {error}") from None
    return host, str(port)


class _Parser(argparse.ArgumentParser):
    """Ends with one line instead of the usage, as a bad setting in a file does."""

    def error(self, message: str) -> NoReturn:
        raise SettingError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mqbroker",
        description="A message broker that speaks Apache RocketMQ's protocol.",
        epilog=_OWN_SETTINGS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-n",
        "--namesrv",
        metavar="HOST:PORT;...",
        help="nameservers, separated by semicolons (default: environment NAMESRV_ADDR)",
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="address to bind (default: 127.0.0.1:10911)")
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="address that clients dial (default: the bound one)"
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="serve /metrics, /healthz and /readyz there, to anybody who reaches it (default: off)",
    )
    parser.add_argument("--name", help="broker name (default: broker-a)")
    parser.add_argument("--cluster", help="cluster name (default: DefaultCluster)")
    parser.add_argument("--id", metavar="N", help="broker id; 0 is the master (default: 0)")
    parser.add_argument("--store", metavar="DIR", help="data directory (default: ./data/BROKERNAME)")
    parser.add_argument("-c", "--config", metavar="FILE", help="settings in RocketMQ's properties format")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting by its name in the file; wins over the file; may be repeated",
    )
    parser.add_argument("-p", "--print-config", action="store_true", help="print all settings and exit")
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="least severe log line written to stderr (default: info)",
    )
    parser.add_argument(
        "--log-format",
        choices=STYLES,
        default="text",
        help="lines of text, or one JSON object a line; UTC (default: text)",
    )
    parser.add_argument("--version", action="version", version=f"mqbroker {version('routekeeper')}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
