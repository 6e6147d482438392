"""Tests of the start scripts, for example ``sh bin/mqbroker`` and ``sh bin/mqshutdown broker``.

RocketMQ's quick start has the same command lines.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "bin"
PROGRAMS = ("mqnamesrv", "mqbroker", "mqadmin", "mqshutdown")
#: Shells that are installed on this machine. On most systems, one of these shells is ``sh``.
SHELLS = [
    pytest.param(words, id=words[0])
    for words in (["dash"], ["bash", "--posix"], ["busybox", "sh"])
    if shutil.which(words[0])
]
#: An environment of only a few variables, so that the environment of the test run has no influence.
BARE = {"HOME": "/nonexistent", "LC_ALL": "C", "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}

pytestmark = [
    pytest.mark.one_core,
    pytest.mark.slow,
]


def run(*words: str | Path, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=cwd,
        env=BARE | variables,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of programs in a new virtual environment, like after an installation by pip.

    Other tests run servers with the Python of the checkout. mqshutdown stops only servers of its own
    installation, so it does not stop the servers of other tests.
    """
    home = tmp_path_factory.mktemp("installed") / "env"
    venv.create(home, symlinks=True)
    (packages,) = (home / "lib").glob("python*/site-packages")
    lines = f"{ROOT}\n{sysconfig.get_path('purelib')}\n"
    (packages / "everything.pth").write_text(lines)
    for name in PROGRAMS:
        shutil.copy(BIN / name, home / "bin")
    return home / "bin"


# Search for a Python interpreter -----------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("place", ["checkout", "installed"])
def test_each_program_starts_by_sh(place: str, shell: list[str], installed: Path, tmp_path: Path) -> None:
    folder = BIN if place == "checkout" else installed
    for name in PROGRAMS[:3]:
        asked = "-h" if name == "mqadmin" else "--help"
        done = run(
            *shell, folder / name, *(["topicList", asked] if name == "mqadmin" else [asked]), cwd=tmp_path
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"usage: {name}")
    done = run(*shell, folder / "mqshutdown", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "mqshutdown: no server is named, allowed are broker and namesrv\n"


def test_a_program_starts_from_its_folder_over_links_and_by_path(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "sub folder").mkdir()
    link = tmp_path / "sub folder" / "mqadmin"
    link.symlink_to(os.path.relpath(installed / "mqadmin", link.parent.resolve()))
    for words, cwd in (
        (["sh", "mqadmin"], installed),
        (["sh", "bin/mqadmin"], installed.parent),
        (["sh", "sub folder/mqadmin"], tmp_path),
        (["sh", "mqadmin"], link.parent),
        ([str(installed / "mqadmin")], tmp_path),
        (["mqadmin"], tmp_path),
        # bash also searches PATH for a script whose name has no slash.
        *([(["bash", "mqadmin"], tmp_path)] if shutil.which("bash") else []),
    ):
        done = run("env", *words, "help", "topicList", cwd=cwd, PATH=f"{installed}:{BARE['PATH']}")
        assert (done.returncode, done.stderr) == (0, ""), words
        assert done.stdout.startswith("usage: mqadmin topicList")


def test_modules_of_a_users_own_are_not_taken_for_ours(installed: Path, tmp_path: Path) -> None:
    for name in ("logging", "socket", "routekeeper", "client"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the user')\n")
    for folder in (BIN, installed):
        done = run("sh", folder / "mqadmin", "help", "topicList", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


def test_without_our_packages_one_line_says_what_to_install(tmp_path: Path) -> None:
    shutil.copy(BIN / "mqadmin", tmp_path)
    done = run("/bin/sh", tmp_path / "mqadmin", "topicList", PATH="/usr/bin:/bin")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "pip install" in done.stderr


def test_all_starters_are_alike_and_can_be_run() -> None:
    files = [BIN / name for name in PROGRAMS]
    assert len({file.read_bytes() for file in files}) == 1
    assert all(os.access(file, os.X_OK) for file in (*files, BIN / "tools.sh"))


@pytest.mark.parametrize(
    ("example", "instead"),
    [("Producer", "mqadmin sendMessage"), ("Consumer", "mqadmin consumeMessage")],
)
def test_the_examples_in_java_name_what_does_the_same(example: str, instead: str) -> None:
    done = run("sh", BIN / "tools.sh", f"org.apache.rocketmq.example.quickstart.{example}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"instead use {instead} -n localhost:9876 -t TopicTest" in done.stderr


# Starting and stopping ---------------------------------------------------------------------------


class Servers:
    """The servers that a test starts. Servers that still run are stopped at the end of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *words: str | Path) -> tuple[subprocess.Popen[str], str]:
        """Start a server, and return its process and the address in its ready line."""
        with (self.folder / f"log-{len(self._started)}").open("w") as log:
            process = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.folder, env=BARE
            )
        self._started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " ready listen=" in line, (line, Path(log.name).read_text())
        return process, line.partition(" listen=")[2].split()[0]

    def stop(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.terminate()
        for process in self._started:
            process.wait(timeout=30)
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    running = Servers(tmp_path)
    yield running
    running.stop()


LOCAL = ("--listen", "127.0.0.1:0")


def test_the_quick_start_of_rocketmqs_guides(
    installed: Path, servers: Servers, eventually: Callable[..., None]
) -> None:
    alone = ("--http", "off")
    other, _ = servers.start(
        sys.executable,
        "-m",
        "routekeeper.nameserver",
        *LOCAL,
        *alone,
        "--data",
        str(servers.folder / "other"),
    )
    namesrv, addr = servers.start(
        "nohup", "sh", installed / "mqnamesrv", *LOCAL, *alone, "--data", str(servers.folder / "ns")
    )
    broker, _ = servers.start("nohup", "sh", installed / "mqbroker", "-n", addr, *LOCAL)

    def listed() -> bool:
        return "DefaultCluster" in run("sh", installed / "mqadmin", "clusterList", "-n", addr).stdout

    eventually(listed, "the broker registered")
    # A terminal that closes sends SIGHUP to its programs. nohup must protect the servers from this signal.
    for process in (namesrv, broker):
        process.send_signal(signal.SIGHUP)
    assert listed()

    def stopped(program: str, process: subprocess.Popen[str]) -> list[str]:
        name = f"{program}({process.pid})"
        return [
            f"The {name} is running...",
            f"Send shutdown request to {name} OK",
            f"The {name} has stopped.",
        ]

    shutdown = ("sh", installed / "mqshutdown")
    done = run(*shutdown, "broker")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == stopped("mqbroker", broker)
    assert broker.wait(timeout=5) == 0, "in order"
    assert namesrv.poll() is None
    broker, _ = servers.start("sh", installed / "mqbroker", "-n", addr, *LOCAL)
    done = run(*shutdown, "namesrv", "broker")
    assert done.stdout.splitlines() == stopped("mqbroker", broker) + stopped("mqnamesrv", namesrv)
    assert (broker.wait(timeout=5), namesrv.wait(timeout=5)) == (0, 0)
    assert other.poll() is None, "it belongs to another installation"
    done = run(*shutdown, "namesrv")
    assert (done.returncode, done.stdout) == (1, "No mqnamesrv running.\n")
    done = run(*shutdown, "--help")
    assert (done.returncode, done.stdout.partition("\n")[0]) == (0, "usage: mqshutdown broker|namesrv ...")
    done = run(*shutdown, "controller")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "mqshutdown: 'controller' names no server, allowed are broker and namesrv\n"


def test_an_interrupted_shutdown_says_what_may_still_run(installed: Path, servers: Servers) -> None:
    namesrv, _ = servers.start(
        installed / "mqnamesrv", *LOCAL, "--http", "off", "--data", str(servers.folder / "ns")
    )
    namesrv.send_signal(signal.SIGSTOP)  # so that it does not end
    try:
        # A shell makes background processes ignore SIGINT, and these tests may be such a process.
        shutdown = subprocess.Popen(
            [installed / "mqshutdown", "namesrv"],
            env=BARE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert shutdown.stdout is not None
        while not shutdown.stdout.readline().startswith("Send shutdown request"):
            pass
        shutdown.send_signal(signal.SIGINT)
        _, said = shutdown.communicate(timeout=30)
    finally:
        namesrv.send_signal(signal.SIGCONT)
    assert shutdown.returncode == 130
    name = f"mqnamesrv({namesrv.pid})"
    assert said == f"mqshutdown: interrupted; SIGTERM was sent to {name}, which may still run\n"
