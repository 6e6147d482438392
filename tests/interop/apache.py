"""Runs Apache RocketMQ's own programs, unmodified, as local processes.

The jars come by Maven (``pom.xml`` beside this file) into one cache folder per release, once; afterwards
neither Maven nor a network is needed. Nothing here is a test: fixtures in ``conftest.py`` and the script
that records golden bytes use it.

Each program gets a working folder of its own that serves as ROCKETMQ_HOME and as the JVM's home directory, so
nothing is written outside it.
"""

from __future__ import annotations

import contextlib
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
"""The youngest of each generation that has a nameserver and a broker artifact (4.9.8 has none)."""

NAMESRV_MAIN: Final = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER_MAIN: Final = "org.apache.rocketmq.broker.BrokerStartup"
ADMIN_MAIN: Final = "org.apache.rocketmq.tools.command.MQAdminStartup"

TRAFFIC_MAX_S: Final = 600.0
"""After this time a consumer of :class:`Traffic` gives up by itself."""

BINARY: Final[Mapping[str, str]] = {"rocketmq.serialize.type": "ROCKETMQ"}
"""JVM properties of a program that shall write binary headers instead of JSON."""

JVM_FLAGS: Final = (
    # short-lived processes on few cores: no optimising compiler, no parallel collector
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Djava.net.preferIPv4Stack=true",
    # RocketMQ reaches into these; Java 9 and later close them by default
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
    # the defaults map gigabytes; these keep a broker's folder small
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 30_000),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
    # the timer wheel cannot be switched off: 5.3.3 then fails to delete topics
    "mappedFileSizeTimerLog": str(4 * 1024 * 1024),
    "timerFlushIntervalMs": "60000",
    "diskMaxUsedSpaceRatio": "95",
    # how long a send may wait in a busy broker; 200 ms, the default, is little for so many JVMs
    "waitTimeMillsInSendQueue": "5000",
    # with the first check 4.9.7 creates a topic, see await_broker; the default is a minute after the start
    "transactionCheckInterval": "1000",
}

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
"""The last topic a broker creates by itself: 5.3.3 at its start, 4.9.7 with its first transaction check."""

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
    """A tool that only the machine can provide is absent; says which, in one line."""


def missing_tool() -> str | None:
    """Return why Apache's programs cannot run here, or None when they can.

    Maven is only needed while the cache lacks a release.
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
    """Return whether the cache holds a release, so that neither Maven nor a network is needed."""
    return (_jars_dir(release) / "complete").exists()


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
    """As :func:`ask_over`, over a connection of its own."""
    host, _, port = addr.rpartition(":")
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        return ask_over(connection, code, fields, body)


def ask_over(
    connection: socket.socket, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
) -> tuple[int, dict[str, Any], bytes]:
    """Send one JSON-encoded request; return code, header and body of the answer.

    Deliberately not our client: a test that compares us with Apache needs a second opinion on the wire.

    Raises:
        OSError: If nobody listens or the connection ends early.
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
    # a 5.x server answers in its own default encoding, no matter what it was asked in
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
    """Return whether the nameserver at ``namesrv`` lists the broker address ``broker``."""
    try:
        code, _, body = ask(namesrv, 106)
    except OSError:
        return False
    return code == 0 and f'"{broker}"'.encode() in body


def has_route(namesrv: str, topic: str, broker: str) -> bool:
    """Return whether the nameserver at ``namesrv`` routes ``topic`` to the broker address ``broker``."""
    try:
        code, _, body = ask(namesrv, 105, {"topic": topic})
    except OSError:
        return False
    return code == 0 and f'"{broker}"'.encode() in body


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 90.0) -> float:
    """Return the seconds it took until ``condition()`` held.

    Raises:
        ApacheFailure: If it does not hold within ``timeout_s``; the text is ``what``.
    """
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > timeout_s:
            raise ApacheFailure(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.05)
    return time.monotonic() - begin


def broker_port() -> int:
    """Return a port for a broker, which also binds the one two below (fast) and the next (replication)."""
    return free_port_with(2, 3) + 2


@dataclass(slots=True, kw_only=True)
class ApacheNamesrv(Program):
    """Apache's nameserver, ready to serve."""

    addr: str


@dataclass(slots=True, kw_only=True)
class ApacheBroker(Program):
    """Apache's broker."""

    addr: str
    name: str
    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Apache's Java producer and push consumer at work; :meth:`end` them."""

    producer: Job
    consumer: Job
    stop: Path
    count: Path

    def end(self) -> int:
        """Return how many messages were sent; each of them has been consumed.

        Raises:
            ApacheFailure: If one could not be sent, or does not arrive within :data:`START_S`.
        """
        self.stop.touch()
        sent = _facts(self._fine(self.producer))["sent"].split()[0]
        partial = self.count.with_suffix(".partial")
        partial.write_text(sent)
        partial.rename(self.count)  # never seen half written
        self._fine(self.consumer)
        return int(sent)

    def _fine(self, job: Job) -> str:
        code = job.wait(START_S)
        if code != 0:
            raise ApacheFailure(f"exit {code}:\n{job.text()[-3000:]}")
        return job.text()


@dataclass(slots=True)
class Apache:
    """One release of Apache RocketMQ, and the processes of it that were started here.

    Use :meth:`open`; leave with :meth:`close`, which ends exactly the processes that this object started.
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
        """Return the release with jars fetched and our Java programs compiled.

        Args:
            folder: Existing folder for the working folders of all processes.

        Raises:
            ToolMissing: If Java, or Maven with a cold cache, is absent.
            ApacheFailure: If Maven or the compiler failed.
        """
        reason = missing_tool()
        if reason:
            raise ToolMissing(reason)
        jars = _jars_dir(release)
        sources = sorted((HERE / "java").glob("*.java"))
        classes = jars / f"classes-{_digest(*sources)}"
        with _locked(cache_dir() / f"{release}.lock"):
            if not jars_ready(release):
                _fetch(release, jars)
            if not classes.exists():
                _compile(jars, sources, classes)
        return cls(release=release, jars=jars, classes=classes, folder=folder)

    def close(self) -> None:
        """End all processes that this object started; brokers first, so that they can unregister."""
        self._end_sessions()
        for process in reversed(self.processes):
            if process.popen.poll() is None:
                process.popen.terminate()
        for process in reversed(self.processes):
            process.stop(10.0)
        self.processes.clear()

    def kill(self) -> None:
        """End them at once; a broker's orderly shutdown takes 10 s."""
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
        """End the JVMs in which clients run, at once."""
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
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command line and environment for a main class; writes what it demands into ``home``.

        Args:
            properties: JVM system properties, e.g. ``{"rocketmq.serialize.type": "ROCKETMQ"}`` for the binary
                header codec.
            level: Of the log file ``home/apache.log``.
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
            "rmq.logback.configurationFile": str(quiet),
            "logback.configurationFile": str(config / "logback_tools.xml"),
            **(properties or {}),
        }
        command = [
            "java",
            *JVM_FLAGS,
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
        """Start a nameserver and return it once it serves."""
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
        """Start a broker and return it once all of ``namesrvs`` list it.

        Args:
            namesrvs: Addresses, ``host:port``.
            settings: Overrides of :data:`BROKER_SETTINGS`, under RocketMQ's own keys.
            properties: JVM system properties.
            port: Listen port; the ports around it (-2 fast, +1 replication) are used too.
            files: Texts by their path below the broker's folder.
            wait: False returns at once, for starts that shall overlap; call :meth:`await_broker` later.
            hasten: As of :meth:`await_broker`.

        A 5.3.3 broker skips nameservers that it has not yet reached, usually all of them at its start, and
        then registers 10 s later; 4.9.7 registers before it reports to have booted.
        """
        home = self._home(name)
        port = port or broker_port()
        merged = {
            **BROKER_SETTINGS,
            "brokerName": name,
            "brokerId": "0",
            "listenPort": str(port),
            "haListenPort": str(port + 1),
            "storePathRootDir": str(home / "store"),
            "storePathCommitLog": str(home / "store" / "commitlog"),
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
        """Return once the broker has booted and every one of ``namesrvs`` lists it with all its own topics.

        A topic that came later would change its registration under a test: that undoes ``wipeWritePerm``.

        Args:
            hasten: Have the broker register at once, as it does when an administrator sets its permission
                (to what it is), instead of with its first period 10 s after the start.

        Raises:
            ApacheFailure: If that takes longer than :data:`START_S`.
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
        """Run Apache's ``mqadmin SUBCOMMAND...`` to its end.

        Args:
            namesrvs: Passed as ``-n``; none leaves the flag out.
            timeout_s: A run longer than this is killed and an error.

        Raises:
            ApacheFailure: If it did not end in time.
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
        """Start one of our own Java programs, ``java/MAIN.java``; its comment lists the arguments."""
        home = self._home(main.lower())
        popen, output = self._spawn(main, args, home, properties=properties)
        process = Program(popen, output, home)
        self.processes.append(process)
        return process

    def client(self, main: str, *args: str, properties: Mapping[str, str] | None = None) -> Job:
        """Start ``Producer`` or ``PushConsumer`` within the JVM that all with the same properties share."""
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
    ) -> AdminResult:
        """Run ``mqadmin SUBCOMMAND...`` in the JVM that all runs of a session share, one after the other.

        Args:
            properties: JVM system properties of a session that begins.

        Raises:
            ApacheFailure: If it gave no answer; a wrong command line ends the JVM.
        """
        with self._asking:
            admin = self._admins.get(session)
            if admin is None:
                home = self._home("admin-session")
                command = self.command("AdminSession", [], home, properties=properties)
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
        """Send ``count`` messages by Apache's Java producer; return its output, first word -> rest of line.

        ``status NAME N`` lines have the key ``status NAME``; with ``batch`` > 1 they count batches. What
        else is ``named`` is told in ``Producer.java``.
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
        """Start a producer that sends 50 messages a second and a consumer of them; return once both go on.

        Both ask the nameservers for routes every second.
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
        """Consume by Apache's Java push consumer until ``count`` distinct messages came; return its facts."""
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
        """Start the push consumer and return at once; its output is complete when it has ended.

        ``count`` may be ``@FILE``, which will hold the number. What else is ``named`` is told in
        ``PushConsumer.java``.
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
    ) -> tuple[subprocess.Popen[bytes], Path]:
        command, environment = self.command(main, args, home, heap=heap, properties=properties)
        output = home / "output.txt"
        with output.open("wb") as sink:
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
    """Write ``text``, but never under the eyes of a program that runs over the same folder."""
    with _providing:
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _write_properties(path: Path, settings: Mapping[str, str]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="latin-1")


def _classpath(jars: Path, classes: Path) -> str:
    return os.pathsep.join([*(str(path) for path in sorted(jars.glob("*.jar"))), str(classes)])


def _fetch(release: str, jars: Path) -> None:
    partial = jars.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(jars, ignore_errors=True)
    partial.mkdir(parents=True)
    # Maven wants its folder of builds beside the pom; the copy keeps the source tree clean
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
    partial.rename(classes)


def _run_tool(command: Sequence[str], cwd: Path) -> None:
    done = subprocess.run(
        command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode != 0:
        raise ApacheFailure(
            f"{command[0]} exit {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
