"""RocketMQ's own brokers and Java client, in place of our brokers and client.

Maven fetches their jars once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from routekeeper.bench.arms.apache import LOGBACK, RELEASE, Jars
from routekeeper.bench.arms.interface import CLUSTER
from routekeeper.bench.jre import JAVA_MAJOR_MIN, java_major
from routekeeper.bench.ports import HOST, free_ports
from routekeeper.bench.processes import ClusterError

JARS: Final = Jars(name=f"apache-brokers-{RELEASE}", pom=Path(__file__).with_name("apache_brokers.xml"))
LEASE_MS: Final = 120_000.0
"""Lease of RocketMQ's own broker in ms. It requests no lease, so the nameserver uses its default."""

READY_MARK: Final = "boot success"
_BROKER: Final = "org.apache.rocketmq.broker.BrokerStartup"
_CLIENT: Final = "Sender"
_SOURCE: Final = Path(__file__).parents[1] / "java" / f"{_CLIENT}.java"
_COMPILE_S: Final = 120.0
_FLAGS: Final = (
    # Several brokers share few cores, so choose JVM options that start few compiler and collector threads.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
    # RocketMQ uses these JDK packages by reflection, and Java 9 and later close them by default.
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)
_SETTINGS: Final[Mapping[str, object]] = {
    "brokerClusterName": CLUSTER,
    "brokerId": 0,
    "brokerIP1": HOST,
    "brokerIP2": HOST,
    "autoCreateTopicEnable": "false",
    # Use small files. With RocketMQ's default sizes, a broker would make files of gigabytes.
    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 30_000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
    "mappedFileSizeTimerLog": 4 * 1024 * 1024,
    "timerFlushIntervalMs": 60_000,
    "diskMaxUsedSpaceRatio": 95,
}


def missing() -> str | None:
    """Return the name of a program that RocketMQ's brokers or client need and this machine lacks, or None."""
    if _compiler() is None:
        return f"a Java development kit of version {JAVA_MAJOR_MIN} or newer (javac on PATH or in JAVA_HOME)"
    return JARS.missing()


def _compiler() -> Path | None:
    """Return the path of a ``javac`` that is new enough, or None.

    The folder of this ``javac`` also has ``java``.
    """
    home = os.environ.get("JAVA_HOME")
    folders = [str(Path(home, "bin"))] if home else []
    return _compiler_in(os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)]))


@cache
def _compiler_in(path: str) -> Path | None:
    found = shutil.which("javac", path=path)
    if found is None:
        return None
    done = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    major = java_major(done.stdout + done.stderr)
    return Path(found).resolve() if major is not None and major >= JAVA_MAJOR_MIN else None


def _found_compiler() -> Path:
    compiler = _compiler()
    if compiler is None:
        raise ClusterError(f"RocketMQ's own brokers and client need {missing()}")
    return compiler


def _classes() -> Path:
    """Return the folder of our Java program's classes. Compile them first if the source text has changed.

    Raises:
        ClusterError: If this machine has no compiler, or if the compiler reports an error.
    """
    jars = JARS.folder()
    text = _SOURCE.read_bytes()
    classes = jars.with_name(f"{jars.name}-classes-{hashlib.sha256(text).hexdigest()[:12]}")
    with classes.with_name(f"{classes.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if classes.exists():
            return classes
        partial = classes.with_name(f"{classes.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        command = [str(_found_compiler()), "--release", str(JAVA_MAJOR_MIN), "-d", str(partial)]
        command += ["-cp", str(jars / "*"), str(_SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
        if done.returncode != 0:
            raise ClusterError(f"javac ended with {done.returncode}: {done.stderr[-2000:]}")
        partial.rename(classes)
    return classes


def broker_addr() -> str:
    """Return a free address for a broker.

    A broker also binds two more ports: the port minus 2 (fast port) and the port plus 1 (HA). These two ports
    are free, too.
    """
    while True:
        ports = free_ports(4)
        if ports[-1] - ports[0] == 3:
            return f"{HOST}:{ports[2]}"


def broker_command(home: Path, *, name: str, addr: str, servers: Sequence[str], period_ms: int) -> list[str]:
    """Write a broker's settings file into ``home``, and return the broker's command line.

    Args:
        servers: Addresses of the nameservers.
        period_ms: Period in which the broker registers with the nameservers.
    """
    port = int(addr.rpartition(":")[2])
    properties = {
        **_SETTINGS,
        "brokerName": name,
        "listenPort": port,
        "haListenPort": port + 1,
        "storePathRootDir": home / "store",
        "storePathCommitLog": home / "store" / "commitlog",
        "namesrvAddr": ";".join(servers),
        "registerNameServerPeriod": period_ms,
    }
    command = _java(home, JARS.class_path(), heap_mib=256)
    (home / "broker.properties").write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return [*command, _BROKER, "-c", str(home / "broker.properties")]


def client_command(home: Path, settings: Path) -> list[str]:
    """Return the Java client's command line.

    Raises:
        ClusterError: If the client cannot be compiled.
    """
    class_path = os.pathsep.join((str(_classes()), JARS.class_path()))
    return [*_java(home, class_path, heap_mib=256), _CLIENT, str(settings)]


def _java(home: Path, class_path: str, *, heap_mib: int) -> list[str]:
    home.mkdir(parents=True, exist_ok=True)
    (home / "logback.xml").write_text(LOGBACK.format(file=home / "apache.log"))
    properties = {
        "user.home": home,
        "rocketmq.home.dir": home,
        "rocketmq.client.logUseSlf4j": "true",
        "rocketmq.broker.diskSpaceWarningLevelRatio": "0.99",
        "rocketmq.broker.diskSpaceCleanForciblyRatio": "0.98",
        "rmq.logback.configurationFile": home / "logback.xml",
    }
    return [
        *(str(_found_compiler().with_name("java")), f"-Xmx{heap_mib}m", *_FLAGS),
        *(f"-D{key}={value}" for key, value in properties.items()),
        *("-cp", class_path),
    ]
