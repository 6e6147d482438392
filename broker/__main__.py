"""The program ``mqbroker``, which reads flags, environment and settings file, and runs one broker."""

from __future__ import annotations

from routekeeper.remoting.interrupt import Hangups, end_quietly_when_interrupted, print_stacks_at_quit

hangups = Hangups()  # Catch SIGHUP before the slow imports below. Without this, SIGHUP kills the process.
hangups.hold()
print_stacks_at_quit()
end_quietly_when_interrupted()
# ruff: noqa: E402

from routekeeper.remoting.terminal import print_any_text
from routekeeper.remoting.wall_clock import bear_far_clocks

bear_far_clocks()
print_any_text()

import argparse
import asyncio
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from routekeeper.broker.command_line import parse_command_line, proxy_flags
from routekeeper.broker.config import (
    IMPORTANT_KEYS,
    LIVE_KEYS,
    NAMESRV_KEYS,
    BrokerConfig,
    apply_properties,
    is_broker_name,
)
from routekeeper.broker.errors import SettingError, StoreUnusable
from routekeeper.broker.foreign_settings import fit_settings
from routekeeper.broker.server.ending import UNORDERLY, end_at_signals
from routekeeper.broker.server.founding import default_place, name_of_store, stores_below
from routekeeper.broker.server.loading import read_changed_settings
from routekeeper.broker.server.process import BrokerServer
from routekeeper.broker.server.registrar import AnnouncerFactory, Registrar
from routekeeper.broker.store.files import DISK
from routekeeper.broker.tables.state_files import SETTINGS
from routekeeper.remoting.addresses import is_loopback, is_unspecified, split_address
from routekeeper.remoting.errors import LocalProtocolError
from routekeeper.remoting.files import SETTINGS_SIZE_MAX, read_regular
from routekeeper.remoting.java_options import ignored_java_properties
from routekeeper.remoting.logs import Style, apply_log_level, in_one_line, shortened
from routekeeper.remoting.output import set_up_logging, write_stderr_in_thread, write_stdout_in_thread
from routekeeper.remoting.properties import (
    OUTRANKED,
    commented,
    explain_comments,
    format_properties,
    name_unknown,
    outranked,
    parse_properties,
)
from routekeeper.remoting.reload import Reload, SettingsFile
from routekeeper.remoting.service_manager import ServiceManager
from routekeeper.remoting.state_file import StateFileError
from routekeeper.remoting.threads import TRY_AGAIN, NoFreeThread, check_threads, in_full
from routekeeper.remoting.tls_settings import TlsSettingError

logger = logging.getLogger("routekeeper.broker")

#: Number of threads that a broker starts before it is ready: for its files, readers, signals and output.
THREADS = 20

_SWITCH: Final = {"on": "true", "off": "false", None: None}
_DATA: Final = Path("data")
"""Parent folder of the store, unless the settings name the store's folder."""


def main(
    argv: Sequence[str] | None = None,
    *,
    announcer: AnnouncerFactory = Registrar,
    fixed_keys: frozenset[str] = frozenset(),
) -> int:
    """Run ``mqbroker``, and return its exit code. docs/operations.md lists the exit codes.

    At SIGHUP the broker reads its settings and the files that it watches (such as certificates) again. If
    SIGHUP means that the terminal was closed, the broker shuts down in an orderly way, with exit code 129.

    Args:
        announcer: Factory of the object that registers the broker with nameservers.
        fixed_keys: Settings that the announcer reads only when it starts.
    """
    write_stderr_in_thread()
    try:
        arguments, words = parse_command_line(argv)
    except SettingError as error:
        return _complain(error)
    try:
        file = _file(arguments.config)
    except SettingError as error:
        return _complain(error)
    try:
        _set_up_logging(arguments, file)
        config, directory, changed = _settings(arguments, file)
    except SettingError as error:
        return _complain(SettingError(explain_comments(str(error), file)))
    apply_log_level(config.log_level)
    for word in words:
        logger.warning("word on the command line ignored word=%r hint=--set KEY=VALUE sets something", word)
    if proxy := proxy_flags(arguments):
        logger.warning(
            "flags of the proxy ignored flags=%s"
            " reason=there is no proxy, clients that speak gRPC cannot connect",
            proxy,
        )
    if arguments.print_config or arguments.print_important:
        values = config.to_properties()
        shown = values.keys() if arguments.print_config else IMPORTANT_KEYS
        sys.stdout.write(format_properties({key: values[key] for key in shown}))
        return 0
    try:
        ignored = ignored_java_properties(os.environ, config.tls, to_nameservers=config.tls_enable)
    except TlsSettingError as error:
        return _complain(error)
    if ignored:
        logger.warning("Java properties ignored names=%s hint=use settings or flags of mqbroker", ignored)
    write_stdout_in_thread()
    runner = asyncio.run
    try:
        import uvloop

        runner = uvloop.run
    except ImportError:  # Not every system has uvloop. asyncio's own loop is slower, but works, too.
        pass
    try:
        check_threads(THREADS, os.environ.get("UV_THREADPOOL_SIZE", ""))
        work = _run(config, directory, announcer, changed, fixed_keys, arguments=arguments, file=file)
        return runner(work)
    except (SettingError, StoreUnusable) as error:
        return _complain(error)
    except NoFreeThread as error:
        _complain(NoFreeThread(in_full(error)))
        return TRY_AGAIN
    except Exception:
        logger.critical("broker failed", exc_info=True)
        return UNORDERLY


async def _run(
    config: BrokerConfig,
    directory: Path,
    announcer: AnnouncerFactory,
    changed: Mapping[str, str],
    fixed_keys: frozenset[str],
    *,
    arguments: argparse.Namespace,
    file: Mapping[str, str],
) -> int:
    stop = asyncio.Event()
    manager = ServiceManager.of_environment(os.environ, pid=os.getpid())
    server = BrokerServer(config, directory, announcer, changed_settings=changed, fixed_keys=fixed_keys)

    def resolve(content: Mapping[str, str]) -> dict[str, str]:
        found, _, _ = _settings(arguments, content, changed=server.changed_settings)
        return found.to_properties()

    settings_file = SettingsFile(
        file,
        read=lambda: _file(arguments.config),
        resolve=resolve,
        reloadable=frozenset({"logLevel"}) | NAMESRV_KEYS - fixed_keys,
        take=server.take_settings,
        refusals=(SettingError,),
    )
    reload = Reload(manager, watched=lambda: server.reloads, settings=settings_file.reread)
    ending = end_at_signals(stop, reload.begin)
    hangups.heed(reload.begin)  # Also handle a SIGHUP that arrived before this line.
    beside: list[asyncio.Task[None]] = []
    bind_unnamed = _bind_unnamed(arguments, file)

    async def say_when_stopping() -> None:
        await stop.wait()
        manager.stopping()

    def ready(listen: str) -> None:
        found = f"listen={listen} name={config.broker_name} cluster={config.cluster_name}"
        found += f" id={config.broker_id}" + (f" http={server.http_listen}" if server.http_listen else "")
        print(f"mqbroker ready {found}", flush=True)
        manager.ready(found)
        beside.append(asyncio.create_task(reload.run()))
        logger.info("store directory path=%s", directory.absolute())
        # Check the resolved address, because many systems resolve the machine's own name to loopback.
        if not is_loopback(split_address(listen)[0]):
            return
        logger.log(
            logging.WARNING if bind_unnamed else logging.INFO,
            "only this machine can reach the broker listen=%s hint=bindAddress=0.0.0.0 lets others reach it,"
            " as RocketMQ does, with brokerIP1=ADDRESS for clients to dial",
            listen,
        )
        if config.advertise_host != config.bind_host and not is_loopback(config.advertise_host):
            logger.warning(
                "clients are told an address that does not lead here advertised=%s listen=%s",
                config.advertise_host,
                listen,
            )

    beside.append(asyncio.create_task(say_when_stopping()))
    try:
        await server.run(stop, ready)
    finally:
        for task in beside:
            task.cancel()
    return ending.code


def _complain(error: Exception) -> int:
    print(f"mqbroker: {in_one_line(error)}", file=sys.stderr)
    return 2


def _bind_unnamed(arguments: argparse.Namespace, file: Mapping[str, str]) -> bool:
    """Return True if the user gives a settings file or a port, but no address to bind.

    In this case RocketMQ listens on all addresses, but this broker listens on loopback only.
    """
    given = {text.partition("=")[0] for text in arguments.set}
    named = arguments.listen is not None or "bindAddress" in given or "bindAddress" in file
    return not named and (bool(file) or "listenPort" in given)


def _file(name: str | None) -> dict[str, str]:
    """Return the settings in the file of ``-c``, or an empty dict if there is no ``-c``.

    Raises:
        SettingError: If the file cannot be read.
    """
    if name is None:
        return {}
    try:
        # Java reads properties files as ISO-8859-1.
        return parse_properties(read_regular(name, size_max=SETTINGS_SIZE_MAX).decode("latin-1"))
    except OSError as error:
        raise SettingError(f"-c {name}: {error.strerror}") from None
    except ValueError as error:
        raise SettingError(f"-c {name}: {error}") from None


def _set_up_logging(arguments: argparse.Namespace, file: Mapping[str, str]) -> None:
    """Set up the program's log first, so that errors in all other settings are logged.

    Flags win over the settings file.

    Raises:
        SettingError: If ``logLevel`` or ``logFormat`` is invalid.
    """
    given = (text.partition("=") for text in arguments.set)
    texts = {**file, **{key: value for key, _, value in given}}
    texts |= {
        key: value
        for key, value in (("logLevel", arguments.log_level), ("logFormat", arguments.log_format))
        if value is not None
    }
    wanted = {key: texts[key] for key in ("logLevel", "logFormat") if key in texts}
    config, _ = apply_properties(BrokerConfig(), wanted)
    config.check_logging()
    set_up_logging(level=config.log_level, style=cast(Style, config.log_format))


def _settings(
    arguments: argparse.Namespace, values: Mapping[str, str], *, changed: dict[str, str] | None = None
) -> tuple[BrokerConfig, Path, dict[str, str]]:
    """Merge and check the settings. Flags win over changes at run time. These changes win over the file.

    Args:
        values: Settings of the file.
        changed: Settings that were changed at run time. None when the broker starts: then the function reads
            them from the store, and logs warnings about the file.

    Returns:
        The settings, the store's folder, and the settings that were changed at run time.

    Raises:
        SettingError: If a setting is invalid.
    """
    config = BrokerConfig(
        namesrv_addr=os.environ.get("NAMESRV_ADDR", ""), rocketmq_home=os.environ.get("ROCKETMQ_HOME", "")
    )
    file: Mapping[str, str] = {}
    if arguments.config is not None:
        file, warnings = fit_settings(values)
        config, unknown = apply_properties(config, file)
        if changed is None:
            _warn(arguments.config, warnings, unknown, file)
    flags: dict[str, str] = {}
    for key, value in (
        ("namesrvAddr", arguments.namesrv),
        ("brokerName", arguments.name),
        ("brokerClusterName", arguments.cluster),
        ("brokerId", arguments.id),
        ("storePathRootDir", arguments.store),
        ("httpListen", arguments.http),
        ("logLevel", arguments.log_level),
        ("logFormat", arguments.log_format),
        ("httpTlsCert", arguments.http_tls_cert),
        ("httpTlsKey", arguments.http_tls_key),
        ("httpTlsCa", arguments.http_tls_ca),
        ("tlsMode", arguments.tls_mode),
        ("tlsCert", arguments.tls_cert),
        ("tlsKey", arguments.tls_key),
        ("tlsCa", arguments.tls_ca),
        ("tlsClientAuth", arguments.tls_client_auth),
        ("tlsConfig", arguments.tls_config),
        ("tls.enable", _SWITCH[arguments.namesrv_tls]),
        ("tls.client.certPath", arguments.tls_client_cert),
        ("tls.client.keyPath", arguments.tls_client_key),
        ("aclFile", arguments.acl_file),
        ("adminNetworks", arguments.admin_networks),
        ("namesrvAclFile", arguments.namesrv_acl_file),
        ("rpcHook", None if arguments.rpc_hook is None else ",".join(arguments.rpc_hook)),
    ):
        if value is not None:
            flags[key] = value
    if arguments.listen is not None:
        flags["bindAddress"], flags["listenPort"] = _address("--listen", arguments.listen)
    if arguments.advertise is not None:
        flags["brokerIP1"], flags["advertisePort"] = _address("--advertise", arguments.advertise)
        if is_unspecified(flags["brokerIP1"]):
            raise SettingError(
                f"--advertise {arguments.advertise} names no machine: clients could not dial it"
            )
    for text in arguments.set:
        key, mark, value = text.partition("=")
        if not mark:
            raise SettingError(f"--set {text}: is not KEY=VALUE")
        fitting, warnings = fit_settings({key: value}, adjusts=False)
        flags |= fitting
        for warning in warnings if changed is None else ():
            logger.warning("setting cannot be honoured reason=%s flag=--set", warning)
    # Settings that were changed at run time win over the file, and flags win over both.
    is_named = "brokerName" in file or "brokerName" in flags
    directory, name = _founding(apply_properties(config, flags)[0], is_named=is_named)
    config = replace(config, broker_name=name)
    try:
        if changed is None:
            saved = read_changed_settings(DISK, directory)
            changed = {key: value for key, value in saved.items() if key in LIVE_KEYS}
            for key, value, in_force in outranked(file, changed, flags):
                path = directory / "config" / SETTINGS
                logger.warning(OUTRANKED, key, shortened(value), shortened(in_force), path)
        config, _ = apply_properties(config, changed)
    except OSError as error:
        reason = f"{error.strerror}: {error.filename}"
        raise SettingError(f"storePathRootDir={directory} cannot be used: {reason}") from None
    except StateFileError as error:
        raise SettingError(str(error)) from None
    except (ValueError, SettingError) as error:
        raise SettingError(f"{directory}/config/{SETTINGS}: {error}") from None
    config, unknown = apply_properties(config, flags)
    if unknown:
        raise SettingError(f"--set {unknown[0]}: no such setting")
    config.validate()
    return config, directory, changed


def _warn(name: str, warnings: Sequence[str], unknown: Sequence[str], file: Mapping[str, str]) -> None:
    for warning in warnings:
        logger.warning("setting cannot be honoured reason=%s file=%s", warning, name)
    for key in name_unknown(unknown):
        logger.warning("unknown setting ignored key=%s file=%s", key, name)
    for key in commented(file):
        if key not in unknown:
            logger.warning("comment is part of a value key=%s hint=put comments on lines of their own", key)


def _founding(config: BrokerConfig, *, is_named: bool) -> tuple[Path, str]:
    """Return the folder of the store and the broker's name.

    Args:
        is_named: True if the user gave the broker a name.

    Raises:
        SettingError: If the store in this folder belongs to a broker of another name, or if the folder cannot
            be read.
    """
    asked = config.broker_name or None if is_named else None
    if asked is not None and not is_broker_name(asked):
        return Path(config.store_path or "data"), asked  # `validate` later raises the error for this name.
    try:
        if config.store_path:
            directory = Path(config.store_path)
        else:
            directory = default_place(stores_below(DISK, _DATA), asked, root=_DATA)
        return directory, name_of_store(DISK, directory, asked=asked, host=socket.gethostname())
    except OSError as error:
        reason = f"{error.strerror}: {error.filename}"
        raise SettingError(
            f"storePathRootDir={config.store_path or _DATA} cannot be used: {reason}"
        ) from None


def _address(flag: str, text: str) -> tuple[str, str]:
    try:
        host, port = split_address(text)
    except LocalProtocolError as error:
        raise SettingError(f"{flag}: {error}") from None
    return host, str(port)


if __name__ == "__main__":
    sys.exit(main())
