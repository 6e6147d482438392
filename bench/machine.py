"""Conditions of a measurement: the machine, the versions of programs, and the commit."""

import importlib.metadata
import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path

import psutil

from routekeeper.bench.interpreter import about, describe
from routekeeper.bench.runfolder import Machine


def cpu_name() -> str:
    """Return the processor's name, as the operating system reports it."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def this_machine() -> Machine:
    return Machine(
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()}",
    )


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that affect figures."""
    found = {"python": describe(about())}
    for name in ("routekeeper", "pysyncobj", "uvloop", "aiohttp", "locust", "kazoo", "pyspark"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    jars = importlib.metadata.files("pyspark") if found["pyspark"] != "absent" else None
    for jar in jars or []:
        zookeeper = re.fullmatch(r"zookeeper-([0-9.]+)\.jar", jar.name)
        if zookeeper:
            found["zookeeper"] = zookeeper[1]
    return found


@cache
def commit() -> str:
    """Return the checkout's commit, with ``+`` if files were changed, or ``unknown`` outside a checkout."""
    root = Path(__file__).resolve().parents[1]
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
