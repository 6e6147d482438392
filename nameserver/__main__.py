"""The program ``mqnamesrv``: it sets up logging and the event loop, and builds all parts.

No other module reads the command line or the environment.
"""

from __future__ import annotations

from routekeeper.remoting.interrupt import (
    Ending,
    Hangups,
    Order,
    end_quietly_when_interrupted,
    print_stacks_at_quit,
    server_signals,
)

hangups = Hangups()  # Do this first: a SIGHUP while the other modules load would otherwise end the process.
hangups.hold()
print_stacks_at_quit()
end_quietly_when_interrupted()
# ruff: noqa: E402

from routekeeper.remoting.terminal import print_any_text
from routekeeper.remoting.wall_clock import bear_far_clocks

bear_far_clocks()
print_any_text()

import asyncio
import contextlib
import dataclasses
import errno
import gc
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final, cast

from routekeeper.nameserver.disk.directory import DirectoryError, hold_directory
from routekeeper.nameserver.modes.independent import Independent
from routekeeper.nameserver.modes.interface import Consistency
from routekeeper.nameserver.raft.types import RaftStartError
from routekeeper.nameserver.replicated import Replicated
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.command_line import CommandLine, parse_command_line
from routekeeper.nameserver.settings.declared import (
    CHOICES,
    ConfigError,
    format_settings,
    parse_values,
    spell_settings,
)
from routekeeper.nameserver.settings.files import FileError, load_settings_file, load_token
from routekeeper.nameserver.settings.ranking import Loaded, load_settings
from routekeeper.nameserver.wire.server import NameServer
from routekeeper.remoting.addresses import is_loopback, join_address
from routekeeper.remoting.files import SETTINGS_SIZE_MAX, read_regular
from routekeeper.remoting.java_options import ignored_java_properties
from routekeeper.remoting.logs import Style, in_one_line, shortened
from routekeeper.remoting.output import set_up_logging, write_stderr_in_thread, write_stdout_in_thread
from routekeeper.remoting.properties import OUTRANKED, explain_comments, outranked, parse_properties
from routekeeper.remoting.reload import Reload, SettingsFile
from routekeeper.remoting.service_manager import ServiceManager
from routekeeper.remoting.threads import TRY_AGAIN, NoFreeThread, check_threads, in_full
from routekeeper.remoting.tls_settings import TlsSettingError

log = logging.getLogger("routekeeper.nameserver")

#: Number of threads that a nameserver starts before it is ready: for its files, journal and output.
THREADS: Final = 8

_EXIT_SETTING: Final = 2
_EXIT_REMOVED: Final = 3
_EXIT_FAILED: Final = 70  # EX_SOFTWARE: exit code after an unexpected error.
#: Errors that keep the process from serving. The process prints only the error's message and exits with 2.
_REFUSALS: Final = (ConfigError, DirectoryError, FileError, RaftStartError, TlsSettingError)
#: Thresholds of Python's garbage collector, above Python's defaults so that it runs less often. The first
#: number counts allocations before the youngest generation is collected. Each other number counts collections
#: of one generation before the next older generation is collected.
_COLLECT_AFTER: Final = (10_000, 20, 20)
#: Parameters of glibc's mallopt, and their values. M_MMAP_THRESHOLD: size in bytes from which an allocation
#: gets a memory mapping of its own from the kernel. M_TRIM_THRESHOLD: number of free bytes at the end of the
#: heap above which glibc returns these bytes to the kernel.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_FREED_KEPT_MAX: Final = 16 * 1024**2
_FROM_KERNEL_FROM: Final = 32 * 1024**2
#: Maps each environment variable to the setting that it sets.
_ENVIRONMENT: Final = {"MQNAMESRV_LOG_LEVEL": "logLevel", "MQNAMESRV_LOG_FORMAT": "logFormat"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a nameserver until a signal ends it; return the exit code."""
    write_stderr_in_thread()
    try:
        line = parse_command_line(
            sys.argv[1:] if argv is None else argv, version=f"mqnamesrv {metadata.version('routekeeper')}"
        )
        file = _read_file(line)
        loaded, stored = _load(line, file)
        settings = loaded.settings
        if line.print_config:
            print(format_settings(settings), end="")
            return 0
        set_up_logging(level=settings.log_level, style=cast(Style, settings.log_format))
        for word in line.words:
            log.warning("word on the command line ignored word=%r hint=--KEY VALUE sets something", word)
        if ignored := ignored_java_properties(os.environ, settings.tls):
            log.warning("Java properties ignored names=%s hint=use settings or flags of mqnamesrv", ignored)
        check_threads(THREADS, os.environ.get("UV_THREADPOOL_SIZE", ""))
        write_stdout_in_thread()
        for warning in loaded.warnings:
            log.warning("setting ignored reason=%s", warning)
        for key in loaded.commented:
            log.warning("comment is part of a value key=%s hint=put comments on lines of their own", key)
        token = None
        if settings.http_token_file:
            token, warning = load_token(Path(settings.http_token_file))
            if warning:
                log.warning("token file warning=%s", warning)
        live = LiveSettings(settings, stored)
        for key, value, in_force in outranked(file, live.stored, line.flags):
            log.warning(OUTRANKED, key, shortened(value), shortened(in_force), settings.store_path)
        settings_file = SettingsFile(
            file,
            read=lambda: _read_file(line),
            resolve=lambda file: spell_settings(_merge(line, file, live.stored).settings),
            reloadable=("logLevel",),
            take=live.take,
            refusals=(ConfigError,),
        )
        return _run(serve(live, settings_file, token=token, bind_unnamed=loaded.bind_unnamed))
    except (*_REFUSALS, NoFreeThread) as error:
        if isinstance(error, NoFreeThread):
            print(f"mqnamesrv: {in_full(error)}", file=sys.stderr)
            return TRY_AGAIN
        print(f"mqnamesrv: {in_one_line(error)}", file=sys.stderr)
        return _EXIT_SETTING
    except Exception:
        log.critical("nameserver failed", exc_info=True)
        return _EXIT_FAILED


class _Ending:
    """The orderly end of this process, after a signal or after the raft group removed this member.

    Attributes:
        begun: Event that is set when the orderly end begins.
    """

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self._signals = Ending()
        self._removed = False

    @property
    def code(self) -> int:
        """Return the exit code of an orderly end."""
        return _EXIT_REMOVED if self._removed else self._signals.code

    def signal(self, number: int) -> None:
        """Begin an orderly end at the first signal; exit at once at a second signal more than 1 s later.

        A second signal within 1 s does nothing, because it may be the first signal sent twice; see
        :class:`.interrupt.Ending`.
        """
        order = self._signals.take(number, asyncio.get_running_loop().time())
        if order is Order.AT_ONCE:
            log.warning("second signal, exiting at once signal=%s", number)
            logging.shutdown()
            os._exit(128 + number)
        if order is Order.END:
            log.info("stopping signal=%s", signal.Signals(number).name)
            self.begun.set()

    def removed(self, line: str) -> None:
        """Begin an orderly end, because the raft group removed this member.

        As at a signal, clients still get answers to the requests in flight.
        """
        print(f"mqnamesrv: {line}", file=sys.stderr, flush=True)
        self._removed = True
        self.begun.set()


async def serve(
    settings: LiveSettings,
    settings_file: SettingsFile,
    *,
    token: str | None = None,
    bind_unnamed: bool = False,
) -> int:
    """Bind and log the ports, serve until a signal arrives, and stop in order; return the exit code.

    Args:
        settings_file: The settings file, which the server reads again at SIGHUP.
        token: Content of ``--http-token-file``, which every change over HTTP must send. If None, the server
            refuses all changes over HTTP.
        bind_unnamed: True if a file or a port was given, but no address to listen on. RocketMQ then listens
            on all addresses. This nameserver listens only on loopback then, and logs a warning.

    Raises:
        ConfigError: If an address cannot be bound.
    """
    current = settings.current
    if current.http_listen is not None:
        # Import aiohttp only if needed. Loading it takes 0.15 s of CPU, a third of a start. A start with
        # --help, with a bad setting or with --http off does not need it.
        from routekeeper.nameserver.http.app import HttpServer
    loop = asyncio.get_running_loop()
    ending = _Ending()
    manager = ServiceManager.of_environment(os.environ, pid=os.getpid())
    reload = Reload(manager, watched=lambda: server.reloads, settings=settings_file.reread)
    hangups.heed(lambda: loop.call_soon_threadsafe(reload.begin))
    for number in server_signals()[0]:
        loop.add_signal_handler(number, ending.signal, number)
    async with asyncio.TaskGroup() as group, contextlib.AsyncExitStack() as at_end:
        server = NameServer(settings=settings, group=group)
        # Use 6 bytes: JavaScript programs read this number too, and lose digits of integers above 2**53.
        boot_id = int.from_bytes(os.urandom(6), "big")
        consistency = await _open_mode(settings, server, boot_id=boot_id, ending=ending)
        at_end.push_async_callback(consistency.close)
        at_end.push_async_callback(server.close, drain_s=float(current.drain_s))
        listen = await _bind(f"--listen {join_address(*current.listen)}", server.start(consistency))
        http_listen = "off"
        if current.http_listen is not None:
            version = f"routekeeper {metadata.version('routekeeper')}"
            http = HttpServer(
                consistency=consistency, server=server, settings=settings, version=version, token=token
            )
            at_end.push_async_callback(http.close)
            http_listen = await _bind(f"--http {current.http}", http.start(*current.http_listen))
        settings.bound(listen=listen, http=http_listen)
        log.info("data directory path=%s", Path(current.data_dir).absolute())
        if is_loopback(host := current.listen[0]):
            log.log(
                logging.WARNING if bind_unnamed else logging.INFO,
                "only this machine can reach the nameserver listen=%s"
                " hint=bindAddress=0.0.0.0 lets others reach it, as RocketMQ does",
                host,
            )
        status = consistency.status()
        _spare_collector()
        _keep_freed_memory()
        ready = f"listen={listen} http={http_listen} mode={status.mode} role={status.role}"
        print(f"mqnamesrv ready {ready}", flush=True)
        manager.ready(ready)
        reloading = group.create_task(reload.run())
        await ending.begun.wait()
        reloading.cancel()
        manager.stopping()
    log.info("stopped abandoned=%s", server.wire.stats.tasks_abandoned)
    return ending.code


def _spare_collector() -> None:
    """Exclude loaded modules and tables from garbage collection, and collect less often.

    A full collection of 70,000 objects (modules and tables) took 33 ms of CPU, and several times as long on a
    busy machine. The process does nothing else during a collection, so heartbeats wait too.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def _keep_freed_memory() -> None:
    """Let the C library keep freed memory instead of returning it to the kernel at once.

    A registration of 10,000 topics has 1.7 MB. The server copies these bytes several times, because it
    receives them in parts, joins the parts and cuts the result. A repeated registration takes 2.8 ms of CPU
    with this setting and 7.4 ms without it. Without this setting, the kernel supplies some 1,300 memory
    pages for each registration, and fills them with zeros.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return  # The operator has already set these parameters through the environment.
    # Ignore failures: the C library may not be glibc, and a service manager may forbid memory that is both
    # writable and executable, which ctypes needs.
    with contextlib.suppress(AttributeError, ImportError, MemoryError, OSError):
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _FROM_KERNEL_FROM)
        mallopt(_M_TRIM_THRESHOLD, _FREED_KEPT_MAX)


async def _open_mode(
    settings: LiveSettings, server: NameServer, *, boot_id: int, ending: _Ending
) -> Consistency:
    """Create and start the mode that the settings name. No other function knows the modes by name."""
    if settings.current.mode == "raft":
        replicated = Replicated(settings, server, boot_id=boot_id, on_removed=ending.removed)
        await replicated.start()
        server.reloads.extend(replicated.member.reloads)
        return replicated
    hold_directory(Path(settings.current.data_dir), mode="independent")
    independent = Independent(settings, server, boot_id=boot_id)
    independent.start()
    return independent


async def _bind(what: str, start: Coroutine[Any, Any, str]) -> str:
    try:
        return await start
    except OSError as error:
        # Use only the system's reason: asyncio's error text also contains the address, but ``what`` already
        # contains it.
        number = error.errno or 0
        reason = os.strerror(number) if number in errno.errorcode else error.strerror or error
        raise ConfigError(f"{what} cannot be bound: {reason}") from None


def _read_file(line: CommandLine) -> dict[str, str]:
    """Return the settings in the ``-c`` file; empty if the command line names no file."""
    if line.config_file is None:
        return {}
    try:
        # Decode as ISO-8859-1, as Java does with properties files.
        content = read_regular(line.config_file, size_max=SETTINGS_SIZE_MAX)
        return parse_properties(content.decode("latin-1"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"-c {line.config_file} cannot be read: {why}") from None


def _load(line: CommandLine, file: Mapping[str, str]) -> tuple[Loaded, dict[str, str]]:
    """Merge settings from flags, the stored settings, the ``-c`` file and the defaults.

    The ``-c`` file may name the path of the stored settings. So this function first merges the settings
    without the stored settings, only to find this path.
    """
    first = _merge(line, file, {})
    ignored: tuple[str, ...] = ()
    if line.config_file is not None:
        if "configStorePath" in file and _is_same_file(line.config_file, first.settings.store_path):
            # RocketMQ itself writes this line, because it stores changes in the file of -c.
            ignored = (f"configStorePath={first.settings.store_path} is the file of -c",)
            file = {key: text for key, text in file.items() if key != "configStorePath"}
            first = _merge(line, file, {})
        _refuse_shared_file(line.config_file, first.settings.store_path)
    stored = load_settings_file(Path(first.settings.store_path))
    loaded = _merge(line, file, stored)
    return dataclasses.replace(loaded, warnings=(*loaded.warnings, *ignored)), stored


def _is_same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):  # one of them does not exist yet, or its path is not valid
        return False


def _refuse_shared_file(config_file: str, store_path: str) -> None:
    """Check that the ``-c`` file does not also hold the stored settings.

    The nameserver writes only the settings that request 318 may change into the file of stored settings. All
    others, such as ``listenPort``, would be lost from the ``-c`` file at the first change.

    Raises:
        ConfigError: If both paths lead to one file.
    """
    if _is_same_file(config_file, store_path):
        raise ConfigError(
            f"configStorePath={store_path} is the file of -c {config_file}, and updateNamesrvConfig would"
            " overwrite it; name another file by configStorePath or by -c"
        )


def _merge(line: CommandLine, file: Mapping[str, str], stored: Mapping[str, str]) -> Loaded:
    try:
        return load_settings(flags=line.flags, stored=stored, file=file, environment=_read_environment())
    except ConfigError as error:
        raise ConfigError(explain_comments(str(error), file)) from None


def _run(body: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop  # uvloop is not available on every system.
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(body)
    # Unwrap the error here: in Python 3.11.2, an exception raised inside except* is wrapped in a group again.
    except ExceptionGroup as group:
        refusals, others = group.split((*_REFUSALS, NoFreeThread))
        if refusals is None or others is not None:
            raise
        error: Exception = refusals
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def _read_environment() -> dict[str, str]:
    """Return the settings that environment variables set.

    Raises:
        ConfigError: If a variable has a value that is not allowed.
    """
    found = {}
    for name, key in _ENVIRONMENT.items():
        if text := os.environ.get(name):
            (word,) = parse_values({key: text}).values()
            if word not in CHOICES[key]:
                raise ConfigError(f"{name}={text} is none of {', '.join(CHOICES[key])}")
            found[key] = text
    return found


if __name__ == "__main__":
    sys.exit(main())
