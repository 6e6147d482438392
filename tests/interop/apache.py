"""Apache RocketMQ's own programs, unmodified, as local processes.

Maven fetches the jars once (``pom.xml`` beside this file) into one cache folder per release. Afterwards
neither Maven nor a network is needed. The fixtures in ``conftest.py`` and the scripts in tests/golden use
this module.

Each program gets its own working folder, which is also its ROCKETMQ_HOME and its home directory. So a program
writes only into this folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import socket
import struct
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.ports import free_port_with

from .admin_session import AdminSession
from .programs import START_S as START_S
from .programs import AdminResult as AdminResult
from .programs import ApacheFailure as ApacheFailure
from .programs import Job as Job
from .programs import Program as Program
from .watchdog import guard

HERE: Final = Path(__file__).resolve().parent

RELEASES: Final = ("4.9.7", "5.3.3")
"""The newest 4.x release and the newest 5.x release whose nameserver and broker are Maven artifacts.

Release 4.9.8 has no such artifacts.
"""

NAMESRV_MAIN: Final = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER_MAIN: Final = "org.apache.rocketmq.broker.BrokerStartup"
ADMIN_MAIN: Final = "org.apache.rocketmq.tools.command.MQAdminStartup"

TRAFFIC_MAX_S: Final = 600.0
"""Seconds after which a consumer of :class:`Traffic` stops by itself."""

_PR_SET_TIMERSLACK: Final = 29  # of linux/prctl.h

#: Name of the file with our Java programs. It is a jar, because JVMs cannot share classes from a folder.
_PROGRAMS: Final = "programs.jar"

BINARY: Final[Mapping[str, str]] = {"rocketmq.serialize.type": "ROCKETMQ"}
"""JVM property that makes a program write binary headers instead of JSON."""

JVM_FLAGS: Final = (
    # The processes run only for a short time, and the machine has few cores. So a JVM needs neither an
    # optimising compiler nor a parallel garbage collector.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Xlog:disable",  # else a JVM without a usable class archive prints a warning
    "-Djava.net.preferIPv4Stack=true",
    # RocketMQ uses these internal packages of Java; without these options Java 9 and later refuse the access.
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)

BROKER_SETTINGS: Final[Mapping[str, str]] = {
    "brokerClusterName": "DefaultCluster",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    # By default, a broker creates files of several gigabytes. These sizes keep the broker's folder small.
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 30_000),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
    # Do not switch the timer wheel off: without it 5.3.3 fails to delete topics.
    "mappedFileSizeTimerLog": str(4 * 1024 * 1024),
    "timerFlushIntervalMs": "60000",
    "diskMaxUsedSpaceRatio": "95",
    # Milliseconds that a send request may wait in a busy broker's queue. The default of 200 ms is too short,
    # because the tests run many JVMs at once.
    "waitTimeMillsInSendQueue": "5000",
    # A broker also refuses sends if one write holds the commit log for this number of milliseconds (default:
    # 1000).
    "osPageCacheBusyTimeOutMills": "5000",
    # 4.9.7 creates its last topic when it checks transactions for the first time (see await_broker). By
    # default the first check comes one minute after the start.
    "transactionCheckInterval": "1000",
}

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Topic that a broker creates by itself, after all its other topics.

Release 5.3.3 creates the topic when it starts, release 4.9.7 when it checks transactions for the first time.
"""

QUIET_LOGBACK: Final = """<configuration>
  <statusListener class="{prefix}ch.qos.logback.core.status.NopStatusListener"/>
  <appender name="file" class="{prefix}ch.qos.logback.core.FileAppender">
    <file>${{user.home}}/apache.log</file>
    <encoder><pattern>%d %-5level %logger{{20}} - %m%n</pattern></encoder>
  </appender>
  <logger name="RocketmqPop" level="OFF"/>
  <root level="{level}"><appender-ref ref="file"/></root>
</configuration>
"""


LANGUAGES: Final = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY"),
    *("OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"),
)


class ToolMissing(Exception):
    """A tool that the machine must provide is absent; the text names the tool in one line."""


def missing_tool() -> str | None:
    """Return the reason why Apache's programs cannot run here, or None if they can.

    Maven is needed only while the cache lacks a release.
    """
    if shutil.which("java") is None or shutil.which("javac") is None:
        return "needs a Java development kit (java and javac on PATH)"
    if shutil.which("mvn") is None and not all(jars_ready(release) for release in RELEASES):
        return "needs Maven (mvn on PATH) to fetch Apache RocketMQ's jars"
    return None


def cache_dir() -> Path:
    """Return the folder that keeps jars and compiled classes between runs."""
    override = os.environ.get("ROUTEKEEPER_INTEROP_CACHE")
    if override:
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "routekeeper" / "apache"


def _digest(*paths: Path) -> str:
    summary = hashlib.sha256()
    for path in paths:
        summary.update(path.name.encode() + b"\0" + path.read_bytes())
    return summary.hexdigest()[:12]


def _jars_dir(release: str) -> Path:
    return cache_dir() / f"{release}-{_digest(HERE / 'pom.xml')}"


def jars_ready(release: str) -> bool:
    """Return True if the cache has all files of a release, so that neither Maven nor a network is needed."""
    return (_jars_dir(release) / "complete").exists()


@contextlib.contextmanager
def _longer_sleeps() -> Iterator[None]:
    """Delay the timers of programs that this thread starts in the context, by up to 10 ms.

    An idle broker wakes up more than a thousand times a second, and ten such brokers need much CPU time. With
    delayed timers, the system combines many of these wake-ups.
    """
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(10_000_000))  # in ns
    try:
        yield
    finally:
        prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(0))  # 0 stands for the default


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def ask(
    addr: str,
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    timeout_s: float = 15.0,
) -> tuple[int, dict[str, Any], bytes]:
    """Send one request as :func:`ask_over` does, over a new connection."""
    host, _, port = addr.rpartition(":")
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        return ask_over(connection, code, fields, body)


def ask_over(
    connection: socket.socket, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
) -> tuple[int, dict[str, Any], bytes]:
    """Send one JSON-encoded request; return code, header and body of the answer.

    This function does not use our client: a test that compares our programs with Apache's needs an
    independent implementation of the protocol.

    Raises:
        OSError: If no server listens or the connection ends early.
    """
    header = json.dumps(
        {
            "code": code,
            "language": "JAVA",
            "version": 479,
            "opaque": 1,
            "flag": 0,
            "extFields": dict(fields or {}),
        }
    ).encode()
    connection.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)
    size, word = struct.unpack(">II", _receive(connection, 8))
    payload = _receive(connection, size - 4)
    length = word & 0xFFFFFF
    # A 5.x server answers in its own default encoding, even if the request had another encoding.
    answer = decode_binary(payload[:length]) if word >> 24 else json.loads(payload[:length])
    return int(answer["code"]), answer, payload[length:]


def decode_binary(head: bytes) -> dict[str, Any]:
    """Return the members of a ROCKETMQ binary header under their JSON names."""
    code, language, version, opaque, flag, remark_size = struct.unpack_from(">hBhiii", head)
    at = 17
    remark = head[at : at + remark_size].decode() if remark_size > 0 else None
    at += max(remark_size, 0)
    (fields_size,) = struct.unpack_from(">i", head, at)
    at += 4
    fields: dict[str, str] = {}
    end = at + fields_size
    while at < end:
        (size,) = struct.unpack_from(">h", head, at)
        key = head[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (size,) = struct.unpack_from(">i", head, at)
        fields[key] = head[at + 4 : at + 4 + size].decode()
        at += 4 + size
    decoded: dict[str, Any] = {
        "code": code,
        "flag": flag,
        "language": LANGUAGES[language],
        "opaque": opaque,
        "version": version,
    }
    if remark is not None:
        decoded["remark"] = remark
    if fields:
        decoded["extFields"] = fields
    return decoded


def _receive(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        chunk = connection.recv(count - len(received))
        if not chunk:
            raise ConnectionError(f"closed after {len(received)} of {count} bytes")
        received += chunk
    return bytes(received)


def listed(namesrv: str, broker: str) -> bool:
    """Return True if the nameserver at ``namesrv`` lists the broker address ``broker``."""
    try:
        code, _, body = ask(namesrv, 106)
    except OSError:
        return False
    return code == 0 and f'"{broker}"'.encode() in body


def has_route(namesrv: str, topic: str, broker: str) -> bool:
    """Return True if the nameserver at ``namesrv`` routes ``topic`` to the broker address ``broker``."""
    try:
        code, _, body = ask(namesrv, 105, {"topic": topic})
    except OSError:
        return False
    return code == 0 and f'"{broker}"'.encode() in body


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 90.0) -> float:
    """Wait until ``condition()`` is true; return the seconds that this took.

    Raises:
        ApacheFailure: If the condition is still false after ``timeout_s``; the error names ``what``.
    """
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > timeout_s:
            raise ApacheFailure(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.05)
    return time.monotonic() - begin


def broker_port() -> int:
    """Return a port that a broker can use.

    ``port - 2`` (fast port) and ``port + 1`` (replication) are free, too.
    """
    return free_port_with(2, 3) + 2


@dataclass(slots=True, kw_only=True)
class ApacheNamesrv(Program):
    """A running nameserver of Apache RocketMQ, ready to serve."""

    addr: str


@dataclass(slots=True, kw_only=True)
class ApacheBroker(Program):
    """A running broker of Apache RocketMQ."""

    addr: str
    name: str
    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Apache's Java producer and push consumer while they run; :meth:`end` ends these two programs."""

    producer: Job
    consumer: Job
    stop: Path
    count: Path

    def end(self) -> int:
        """Stop the producer, wait until the consumer has received all messages, and return their number.

        Raises:
            ApacheFailure: If a message could not be sent, or does not arrive within :data:`START_S`.
        """
        self.stop.touch()
        sent = _facts(self._fine(self.producer))["sent"].split()[0]
        partial = self.count.with_suffix(".partial")
        partial.write_text(sent)
        partial.rename(self.count)  # the consumer must not read an incomplete file
        self._fine(self.consumer)
        return int(sent)

    def _fine(self, job: Job) -> str:
        code = job.wait(START_S)
        if code != 0:
            raise ApacheFailure(f"exit {code}:\n{job.text()[-3000:]}")
        return job.text()


@dataclass(slots=True)
class Apache:
    """One release of Apache RocketMQ, and the processes that were started through this object.

    Create the object with :meth:`open`. The method :meth:`close` ends only these processes.
    """

    release: str
    jars: Path
    classes: Path
    folder: Path
    processes: list[Program] = field(default_factory=list)
    _serial: Iterator[int] = field(default_factory=itertools.count)
    _shared: threading.Lock = field(default_factory=threading.Lock)
    _clients: dict[str, Program] = field(default_factory=dict)
    _admins: dict[str, AdminSession] = field(default_factory=dict)
    _asking: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def open(cls, release: str, folder: Path) -> Apache:
        """Fetch the jars, compile our Java programs, and return the release.

        Args:
            folder: Existing folder for the working folders of all processes.

        Raises:
            ToolMissing: If Java is absent, or Maven is absent while the cache lacks the release.
            ApacheFailure: If Maven or the compiler failed.
        """
        reason = missing_tool()
        if reason:
            raise ToolMissing(reason)
        jars = _jars_dir(release)
        sources = sorted((HERE / "java").glob("*.java"))
        classes = jars / f"classes-{_digest(*sources)}"
        apache = cls(release=release, jars=jars, classes=classes, folder=folder)
        with _locked(cache_dir() / f"{release}.lock"):
            if not jars_ready(release):
                _fetch(release, jars)
            if not classes.exists():
                _compile(jars, sources, classes)
            if not apache.shares_classes():
                apache._archive_classes()
        return apache

    @property
    def _shared_classes(self) -> Path:
        return self.classes / "shared.jsa"

    def shares_classes(self) -> bool:
        """Return True if this machine's Java can use the archive of classes that all JVMs share."""
        command, environment = self.command("-version", [], self._home("version"))
        command.insert(-1, "-Xshare:on")  # with this option, a JVM that cannot use its archive fails
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        return self._shared_classes.exists() and done.returncode == 0

    def _archive_classes(self) -> None:
        """Make the archive of classes that all JVMs share.

        Without the archive, a JVM spends half of its start with loading classes.

        If this fails, the JVMs start without the archive.
        """
        self._shared_classes.unlink(missing_ok=True)
        home, namesrv, port = self._home("training"), f"127.0.0.1:{free_port_with()}", broker_port()
        _write_properties(home / "namesrv.properties", {"listenPort": namesrv.rpartition(":")[2]})
        _write_properties(home / "broker.properties", _broker_settings(home, port) | {"namesrvAddr": namesrv})
        popen, output = self._spawn(
            "Training",
            [str(home), namesrv, f"127.0.0.1:{port}"],
            home,
            heap="512m",
            flags=(f"-XX:ArchiveClassesAtExit={self._shared_classes}",),
        )
        try:
            code = Program(popen, output, home).wait(START_S)
        except ApacheFailure:
            code = None
        if code != 0:  # an aborted run may have written an archive of few classes
            self._shared_classes.unlink(missing_ok=True)

    def close(self) -> None:
        """End all processes that this object started.

        Brokers end before nameservers, so that they can unregister.
        """
        self._end_sessions()
        for process in reversed(self.processes):
            if process.popen.poll() is None:
                process.popen.terminate()
        for process in reversed(self.processes):
            process.stop(10.0)
        self.processes.clear()

    def kill(self) -> None:
        """Kill all processes that this object started; a broker's orderly shutdown would take 10 s."""
        self._end_sessions()
        for process in reversed(self.processes):
            process.kill()
        self.processes.clear()

    def _end_sessions(self) -> None:
        with self._asking:
            for admin in self._admins.values():
                admin.close()
            self._admins.clear()
        self.end_clients()

    def end_clients(self) -> None:
        """Kill the JVMs in which clients run."""
        with self._shared:
            for host in self._clients.values():
                host.kill()
                assert host.popen.stdin is not None
                host.popen.stdin.close()
            self._clients.clear()

    def command(
        self,
        main: str,
        args: Sequence[str],
        home: Path,
        *,
        heap: str = "256m",
        properties: Mapping[str, str] | None = None,
        level: str = "WARN",
        flags: Sequence[str] = (),
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command line and environment for a main class; write its log settings into ``home``.

        Args:
            properties: JVM system properties, e.g. ``{"rocketmq.serialize.type": "ROCKETMQ"}`` for the binary
                header codec.
            level: Lowest level of the messages in the log file ``home/apache.log``.
            flags: Further options of the JVM.
        """
        config = home / "conf"
        config.mkdir(parents=True, exist_ok=True)
        shaded = "" if self.release.startswith("4.") else "org.apache.rocketmq.logging."
        for name in ("namesrv", "broker", "tools"):
            _provide(config / f"logback_{name}.xml", QUIET_LOGBACK.format(prefix="", level=level))
        quiet = config / "quiet.xml"
        _provide(quiet, QUIET_LOGBACK.format(prefix=shaded, level=level))
        jvm_properties = {
            "user.home": str(home),
            "rocketmq.home.dir": str(home),
            "rocketmq.client.logUseSlf4j": "true",
            "rocketmq.broker.diskSpaceWarningLevelRatio": "0.99",
            "rocketmq.broker.diskSpaceCleanForciblyRatio": "0.98",
            # Milliseconds between two rebalances of a consumer; the default is 20 s.
            "rocketmq.client.rebalance.waitInterval": "1000",
            "rmq.logback.configurationFile": str(quiet),
            "logback.configurationFile": str(config / "logback_tools.xml"),
            **(properties or {}),
        }
        archive = [f"-XX:SharedArchiveFile={self._shared_classes}"] if self._shared_classes.exists() else []
        command = [
            "java",
            *JVM_FLAGS,
            *archive,
            *flags,
            f"-Xmx{heap}",
            *(f"-D{key}={value}" for key, value in jvm_properties.items()),
            "-cp",
            _classpath(self.jars, self.classes),
            main,
            *args,
        ]
        environment = {
            key: value
            for key, value in os.environ.items()
            if key not in ("NAMESRV_ADDR", "JAVA_TOOL_OPTIONS", "CLASSPATH", "ROCKETMQ_SERIALIZE_TYPE")
        }
        environment |= {"ROCKETMQ_HOME": str(home), "HOME": str(home), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        return command, environment

    def namesrv(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> ApacheNamesrv:
        """Start a nameserver; return it when it serves requests."""
        home = self._home("namesrv")
        port = port or free_port_with()
        _write_properties(home / "namesrv.properties", {"listenPort": str(port)} | dict(settings or {}))
        popen, output = self._spawn(
            NAMESRV_MAIN, ["-c", str(home / "namesrv.properties")], home, properties=properties
        )
        namesrv = ApacheNamesrv(popen, output, home, addr=f"127.0.0.1:{port}")
        self.processes.append(namesrv)
        namesrv.wait_for("boot success")
        return namesrv

    def broker(
        self,
        namesrvs: Sequence[str],
        *,
        name: str = "broker-a",
        settings: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        port: int | None = None,
        files: Mapping[str, str] | None = None,
        wait: bool = True,
        hasten: bool = False,
    ) -> ApacheBroker:
        """Start a broker; return it when all of ``namesrvs`` list it.

        Args:
            namesrvs: Addresses, ``host:port``.
            settings: Settings that override :data:`BROKER_SETTINGS`, by RocketMQ's keys.
            properties: JVM system properties.
            port: Listen port; the ports around it (-2 fast, +1 replication) are used too.
            files: Texts by their path below the broker's folder.
            wait: False to return at once, so that several brokers can start in parallel. Call
                :meth:`await_broker` later.
            hasten: Passed to :meth:`await_broker`.

        A 5.3.3 broker skips nameservers that it has not yet reached, usually all of them at its start. It
        registers with them 10 s later. A 4.9.7 broker registers before it reports that it has booted.
        """
        home = self._home(name)
        port = port or broker_port()
        merged = _broker_settings(home, port) | {
            "brokerName": name,
            "namesrvAddr": ";".join(namesrvs),
            **(settings or {}),
        }
        _write_properties(home / "broker.properties", merged)
        for path, text in (files or {}).items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(text)
        popen, output = self._spawn(
            BROKER_MAIN, ["-c", str(home / "broker.properties")], home, heap="512m", properties=properties
        )
        broker = ApacheBroker(
            popen,
            output,
            home,
            addr=f"{merged['brokerIP1']}:{port}",
            name=name,
            cluster=merged["brokerClusterName"],
        )
        self.processes.append(broker)
        if wait:
            self.await_broker(broker, namesrvs, hasten=hasten)
        return broker

    def await_broker(self, broker: ApacheBroker, namesrvs: Sequence[str], *, hasten: bool = False) -> None:
        """Return when the broker has booted and each of ``namesrvs`` lists it with all its own topics.

        Wait for all topics, because the broker registers whenever it creates a topic. If the broker created a
        topic during a test, its registration would undo a ``wipeWritePerm`` of the test.

        Args:
            hasten: True to make the broker register at once, and not 10 s after its start. For this, the
                method sets the broker's permission to its present value, as an administrator can do.

        Raises:
            ApacheFailure: If the wait takes longer than :data:`START_S`.
        """
        broker.wait_for("boot success")
        if hasten and not all(listed(namesrv, broker.addr) for namesrv in namesrvs):
            code, answer, _ = ask(broker.addr, 25, body=b"brokerPermission=6")
            if code != 0:
                raise ApacheFailure(f"{broker.name} refused its permission: {answer}")
        for namesrv in namesrvs:
            wait_until(
                lambda namesrv=namesrv: has_route(namesrv, HALF_TOPIC, broker.addr),  # type: ignore[misc]
                f"{broker.name} {broker.addr} and its {HALF_TOPIC} listed by {namesrv}",
                START_S,
            )

    def mqadmin(
        self,
        *args: str,
        namesrvs: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> AdminResult:
        """Run Apache's ``mqadmin SUBCOMMAND...`` until it ends.

        Args:
            namesrvs: Addresses for the flag ``-n``; without addresses, the flag is left out.
            timeout_s: Seconds after which the run is killed.

        Raises:
            ApacheFailure: If the run did not end within ``timeout_s``.
        """
        home = self.folder / f"mqadmin-{self.release}"
        arguments = [*args, *(("-n", ";".join(namesrvs)) if namesrvs else ())]
        command, environment = self.command(ADMIN_MAIN, arguments, home, properties=properties)
        try:
            done = subprocess.run(
                command,
                env=environment,
                cwd=home,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ApacheFailure(
                f"mqadmin {' '.join(arguments)} ran {timeout_s:g} s: {error.stdout!r}"
            ) from None
        return AdminResult(
            args=tuple(arguments),
            returncode=done.returncode,
            stdout=done.stdout.decode(errors="replace"),
            stderr=done.stderr.decode(errors="replace"),
        )

    def java(self, main: str, *args: str, properties: Mapping[str, str] | None = None) -> Program:
        """Start one of our own Java programs, ``java/MAIN.java``.

        A comment in that file lists the arguments.
        """
        home = self._home(main.lower())
        popen, output = self._spawn(main, args, home, properties=properties)
        process = Program(popen, output, home)
        self.processes.append(process)
        return process

    def client(self, main: str, *args: str, properties: Mapping[str, str] | None = None) -> Job:
        """Start ``Producer`` or ``PushConsumer`` in a JVM.

        All clients with the same ``properties`` share one JVM.
        """
        with self._shared:
            key = json.dumps(dict(properties or {}), sort_keys=True)
            host = self._clients.get(key)
            if host is None:
                home = self._home("clients")
                popen, output = self._spawn(
                    "Clients", [], home, heap="512m", properties=properties, stdin=subprocess.PIPE
                )
                host = self._clients[key] = Program(popen, output, home)
                self.processes.append(host)
            output = host.home / f"{main.lower()}-{next(self._serial)}.txt"
            assert host.popen.stdin is not None
            host.popen.stdin.write(("\t".join((str(output), main, *args)) + "\n").encode())
            host.popen.stdin.flush()
        return Job(host, output)

    def admin(
        self,
        *args: str,
        namesrvs: Sequence[str],
        session: str = "all",
        properties: Mapping[str, str] | None = None,
        keys: str = "",
    ) -> AdminResult:
        """Run ``mqadmin SUBCOMMAND...`` in the session's JVM, which runs one command at a time.

        Args:
            properties: JVM system properties, used only when the session's JVM starts.
            keys: Text of ``conf/tools.yml``, used only when the session's JVM starts. mqadmin signs its
                requests with the keys in this file.

        Raises:
            ApacheFailure: If the JVM did not answer in time, or ended because the command line was wrong.
        """
        with self._asking:
            admin = self._admins.get(session)
            if admin is None:
                home = self._home("admin-session")
                command = self.command("AdminSession", [], home, properties=properties)
                if keys:
                    (home / "conf" / "tools.yml").write_text(keys)
                admin = self._admins[session] = AdminSession(*command, home)
        return admin.run(*args, namesrvs=namesrvs)

    def produce(
        self,
        namesrvs: Sequence[str],
        topic: str,
        count: int,
        *,
        body_bytes: int = 64,
        batch: int = 1,
        timeout_s: float = 180.0,
        properties: Mapping[str, str] | None = None,
        **named: Any,
    ) -> dict[str, str]:
        """Send ``count`` messages by Apache's Java producer; return the printed lines as a mapping.

        The first word of a line is the key, and the rest of the line is the value. A line ``status NAME N``
        has the key ``status NAME``; N counts messages, or batches if ``batch`` > 1. The comment in
        ``Producer.java`` lists the other arguments that ``named`` may hold.
        """
        process = self.client(
            "Producer",
            *(";".join(namesrvs), topic, str(count), str(body_bytes), str(batch)),
            *(f"{name}={value}" for name, value in named.items()),
            properties=properties,
        )
        process.wait(timeout_s)
        return _facts(process.text())

    def traffic(self, namesrvs: Sequence[str], topic: str, group: str) -> Traffic:
        """Start a producer (50 messages per second) and a consumer; return when both are running.

        The producer and the consumer ask the nameservers for routes every second.
        """
        stop, count = self._home("traffic") / "stop", self._home("traffic") / "count"
        consumer = self.client(
            "PushConsumer", ";".join(namesrvs), topic, group, f"@{count}", str(round(TRAFFIC_MAX_S)), "0"
        )
        producer = self.client("Producer", ";".join(namesrvs), topic, "1000000", "64", "1", "20", str(stop))
        consumer.wait_for("ready")
        producer.wait_for("begun")
        return Traffic(producer=producer, consumer=consumer, stop=stop, count=count)

    def consume(
        self,
        namesrvs: Sequence[str],
        topic: str,
        group: str,
        count: int,
        *,
        seconds: int = 150,
        retry_every: int = 0,
        properties: Mapping[str, str] | None = None,
        **named: Any,
    ) -> dict[str, str]:
        """Consume by Apache's Java push consumer until ``count`` distinct messages have arrived.

        Return the consumer's output as a mapping: the first word of a line is the key, and the rest of the
        line is the value.
        """
        process = self.consumer(
            *(namesrvs, topic, group, count),
            seconds=seconds,
            retry_every=retry_every,
            properties=properties,
            **named,
        )
        process.wait(seconds + START_S)
        return _facts(process.text())

    def consumer(
        self,
        namesrvs: Sequence[str],
        topic: str,
        group: str,
        count: int | str,
        *,
        seconds: int = 150,
        retry_every: int = 0,
        properties: Mapping[str, str] | None = None,
        **named: Any,
    ) -> Job:
        """Start the push consumer and return at once; the output is complete when the consumer has ended.

        ``count`` may be ``@FILE``; the consumer then runs until this file exists, and reads the number from
        the file. The comment in ``PushConsumer.java`` lists the other arguments that ``named`` may hold.
        """
        return self.client(
            "PushConsumer",
            *(";".join(namesrvs), topic, group, str(count), str(seconds), str(retry_every)),
            *(f"{name}={value}" for name, value in named.items()),
            properties=properties,
        )

    def _home(self, name: str) -> Path:
        home = self.folder / f"{name}-{self.release}-{next(self._serial)}"
        home.mkdir(parents=True)
        return home

    def _spawn(
        self,
        main: str,
        args: Sequence[str],
        home: Path,
        *,
        heap: str = "256m",
        properties: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        flags: Sequence[str] = (),
    ) -> tuple[subprocess.Popen[bytes], Path]:
        command, environment = self.command(main, args, home, heap=heap, properties=properties, flags=flags)
        output = home / "output.txt"
        with output.open("wb") as sink, _longer_sleeps():
            popen = subprocess.Popen(
                command,
                env=environment,
                cwd=home,
                stdin=stdin,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )
        guard(popen.pid)
        return popen, output


def _facts(output: str) -> dict[str, str]:
    facts: dict[str, str] = {}
    for line in output.splitlines():
        key, _, rest = line.partition(" ")
        if key == "status":
            name, _, rest = rest.partition(" ")
            key = f"status {name}"
        facts[key] = rest
    return facts


_providing = threading.Lock()


def _provide(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` if the content differs.

    Do not write an equal file again, because programs may be reading it.
    """
    with _providing:
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _broker_settings(home: Path, port: int) -> dict[str, str]:
    return {
        **BROKER_SETTINGS,
        "brokerId": "0",
        "listenPort": str(port),
        "haListenPort": str(port + 1),
        "storePathRootDir": str(home / "store"),
        "storePathCommitLog": str(home / "store" / "commitlog"),
    }


def _write_properties(path: Path, settings: Mapping[str, str]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="latin-1")


def _classpath(jars: Path, classes: Path) -> str:
    return os.pathsep.join(str(path) for path in (*sorted(jars.glob("*.jar")), classes / _PROGRAMS))


def _fetch(release: str, jars: Path) -> None:
    partial = jars.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(jars, ignore_errors=True)
    partial.mkdir(parents=True)
    # Build from a copy of pom.xml. Maven writes its build folder beside this file, and the source folder must
    # not change.
    shutil.copy(HERE / "pom.xml", partial / "pom.xml")
    _run_tool(
        [
            "mvn",
            "-B",
            "-q",
            "dependency:copy-dependencies",
            f"-Drocketmq.version={release}",
            f"-Djars={partial}",
        ],
        cwd=partial,
    )
    (partial / "complete").touch()
    partial.rename(jars)


def _compile(jars: Path, sources: Sequence[Path], classes: Path) -> None:
    partial = classes.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    _run_tool(
        ["javac", "-nowarn", "-d", str(partial), "-cp", f"{jars}/*", *(str(path) for path in sources)],
        cwd=partial,
    )
    with zipfile.ZipFile(partial / _PROGRAMS, "w") as archive:
        for path in sorted(partial.glob("*.class")):
            archive.write(path, path.name)
    partial.rename(classes)


def _run_tool(command: Sequence[str], cwd: Path) -> None:
    done = subprocess.run(
        command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode != 0:
        raise ApacheFailure(
            f"{command[0]} exit {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
