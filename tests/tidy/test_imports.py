"""Tests of the rules for imports between modules.

The tests read the source files, and name the file and the line of each violation.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("remoting", "nameserver", "broker", "client", "routekeeper", "bench")
#: Modules for waiting, clocks, threads, sockets and randomness. Only the modules in IO_MODULES may import
#: them.
IMPURE = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "threading"),
    *("select", "selectors", "signal", "socket", "subprocess", "time"),
    *("random", "secrets"),
}
#: Modules that may import modules in ``IMPURE``, even if only for a type. All other modules are pure.
IO_MODULES = {
    "remoting/audit_log.py",
    "remoting/certificates.py",
    "remoting/disk_threads.py",
    "remoting/interrupt.py",
    "remoting/reload.py",
    "remoting/output.py",
    "remoting/service_manager.py",
    "remoting/threads.py",
    "remoting/http/asking.py",
    "remoting/http/gate.py",
    "remoting/http/listener.py",
    "remoting/wall_clock.py",
    "remoting/watched_files.py",
    "remoting/transport/accepting.py",
    "remoting/transport/aio.py",
    "remoting/transport/blocking.py",
    "remoting/transport/connection.py",
    "remoting/transport/listener.py",
    "remoting/transport/lookups.py",
    "remoting/transport/secured.py",
    "remoting/transport/tls.py",
    "nameserver/__main__.py",
    "nameserver/production/asking.py",
    "nameserver/wire/notices.py",
    "nameserver/wire/server.py",
    "nameserver/http/app.py",
    "nameserver/http/reads.py",
    "nameserver/http/shortcut.py",
    "nameserver/http/admin.py",
    "nameserver/http/lane.py",
    "nameserver/http/token.py",
    "nameserver/http/watchers.py",
    "nameserver/http/console/asking.py",
    "nameserver/http/console/resources.py",
    "nameserver/modes/independent.py",
    "nameserver/replicated/kv_file.py",
    "nameserver/replicated/leader.py",
    "nameserver/replicated/mode.py",
    "nameserver/replicated/proposer.py",
    "nameserver/replicated/reader.py",
    "nameserver/replicated/surroundings.py",
    "nameserver/modes/kept_file.py",
    "nameserver/modes/waiters.py",
    "nameserver/raft/storage/identity.py",
    "nameserver/raft/node/changes.py",
    "nameserver/raft/node/images.py",
    "nameserver/raft/node/promises.py",
    "nameserver/raft/pysyncobj_seam.py",
    "nameserver/raft/node/member.py",
    "nameserver/raft/links/transport.py",
    "nameserver/raft/storage/writer.py",
    "broker/__main__.py",
    "broker/server/access.py",
    "broker/server/announcements.py",
    "broker/server/http.py",
    "broker/server/process.py",
    "broker/server/rebalance_notices.py",
    "broker/server/registrar.py",
    "broker/server/nameserver_names.py",
    "broker/server/disk_threads.py",
    "broker/server/ending.py",
    "broker/server/upkeep.py",
    "broker/server/waiting_pulls.py",
    "broker/store/commit_log.py",
    "broker/server/delay.py",
    "client/aio.py",
    "client/aio_parts.py",
    "client/blocking.py",
    "client/blocking_parts.py",
    "client/call_threads.py",
    "client/fetch.py",
    "client/file_lock.py",
    "client/mqadmin/measure.py",
    "client/mqadmin/monitoring.py",
    "client/send_threads.py",
    "client/tls.py",
    "client/mqshutdown/__main__.py",
    "bench/__main__.py",
    "bench/arms/apache.py",
    "bench/arms/apache_brokers.py",
    "bench/arms/remoting.py",
    "bench/arms/servers.py",
    "bench/arms/zookeeper.py",
    "bench/arms/zookeeper_broker.py",
    "bench/chance.py",
    "bench/cluster.py",
    "bench/compare.py",
    "bench/costs/measured.py",
    "bench/costs/players.py",
    "bench/costs/run.py",
    "bench/director.py",
    "bench/generator.py",
    "bench/interpreter.py",
    "bench/iproute.py",
    "bench/held_back.py",
    "bench/kernel.py",
    "bench/machine.py",
    "bench/network.py",
    "bench/observer.py",
    "bench/play/clients.py",
    "bench/play/http.py",
    "bench/play/hub.py",
    "bench/play/play.py",
    "bench/play/program.py",
    "bench/play/readers.py",
    "bench/play/replay.py",
    "bench/play/stage.py",
    "bench/ports.py",
    "bench/processes.py",
    "bench/proxy.py",
    "bench/recorder.py",
    "bench/session.py",
    "bench/slow_disk.py",
    "bench/group.py",
    "bench/storm/blocking.py",
    "bench/storm/brokers.py",
    "bench/storm/bystander.py",
    "bench/storm/life.py",
    "bench/storm/rightness.py",
    "bench/users/_common.py",
    "bench/users/consumer_user.py",
    "bench/users/producer_user.py",
    "bench/users/registrar_user.py",
    "bench/scale/command.py",
    "bench/scale/distance.py",
    "bench/scale/herd.py",
    "bench/scale/number.py",
    "bench/scale/probes.py",
    "bench/scale/series.py",
    "bench/scale/size.py",
    "bench/wires/client.py",
    "bench/wires/job.py",
    "bench/jre.py",
    "bench/report/job.py",
    "bench/report/picture.py",
    "bench/report/session.py",
    "bench/report/start.py",
    "bench/micro/beside.py",
    "bench/micro/echo.py",
    "bench/micro/load.py",
    "bench/micro/messages.py",
    "bench/micro/route_query.py",
    "bench/micro/raft/__main__.py",
    "bench/micro/raft/load.py",
    "bench/micro/raft/loading.py",
    "bench/micro/raft/systems.py",
    "bench/micro/registration.py",
    "bench/micro/signed.py",
    "bench/micro/storm/__main__.py",
    "bench/micro/storm/servers.py",
}
#: Parts of the nameserver, lowest first: each imports only from lower parts, so there is no import cycle.
ROOMS = (
    *("types", "commands", "verdicts", "liveness", "registration", "routes", "disk", "settings", "handlers"),
    *("raft/types", "raft/pysyncobj_seam", "raft/library", "raft/consensus", "raft/storage", "raft/links"),
    *("raft/node", "raft", "modes", "replicated", "production", "wire", "http", "__main__"),
)
#: Parts of the broker, lowest first: each imports only from lower parts.
BROKER_ROOMS = (
    "errors",
    "store",
    "config",
    "foreign_settings",
    "command_line",
    "tables",
    "requests",
    "server",
    "__main__",
)
#: Parts that import from no other part of the nameserver, except from the interface to the disk.
ALONE = ("raft", "settings")
#: Parts whose code never waits, reads a clock or draws a random number.
PURE_ROOMS = ("nameserver/routes/", "nameserver/raft/consensus/")
MAY_IMPORT = {
    "remoting": {"remoting"},
    "nameserver": {"nameserver", "remoting"},
    "broker": {"broker", "remoting"},
    "client": {"client", "remoting"},
    "routekeeper": {"client"},
    "bench": {"bench", "client", "remoting"},
}
#: Benchmarks that may import code of a server. One benchmark runs our broker with ZooKeeper. The others
#: measure a part of a server's code.
TIMES_INSIDE = {
    "bench/micro/messages.py": {"broker"},
    "bench/micro/registration.py": {"nameserver"},
    "bench/arms/zookeeper_broker.py": {"broker"},
}


def folder_of(module: str) -> str:
    """Return a module's name without the package: ``client.aio`` for ``routekeeper.client.aio``."""
    return module.removeprefix("routekeeper.")


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path, package: Sequence[str] = (), *, types: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted module) of each import in a file, except imports that are only for type checks.

    Args:
        package: Package in which relative imports are resolved. If it is empty, they are ignored.
        types: True to yield imports for type checks, too.
    """
    tree = ast.parse(path.read_text(), str(path))
    skipped: set[int] = set()
    for node in () if types else ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped.update(id(inner) for part in node.body for inner in ast.walk(part))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, folder_of(alias.name)) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from ((node.lineno, name) for name in named(node.module, node.names))
        elif isinstance(node, ast.ImportFrom) and package:
            base = [*package[: len(package) - node.level + 1], *filter(None, [node.module])]
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)


def named(module: str, names: list[ast.alias]) -> list[str]:
    """Return the modules that a from-import names. In ``from routekeeper import x``, x may be a package."""
    if module != "routekeeper":
        return [folder_of(module)]
    return [each.name if each.name in PACKAGES else module for each in names]


def room_of(module: str) -> str:
    """Return the part of the nameserver to which a module belongs."""
    names = module.split(".")[1:]
    if names[:1] == ["raft"]:
        return "/".join(names[:2]) if "/".join(names[:2]) in ROOMS else "raft"
    return names[0] if names else ""


def nameserver_imports() -> Iterator[tuple[str, int, str, str]]:
    """Yield (file, line, part, imported part) of each import between two parts of the nameserver."""
    for path in sources("nameserver"):
        where = path.relative_to(ROOT)
        here = list(where.with_suffix("").parts)
        module = ".".join(here[:-1] if here[-1] == "__init__" else here)
        package = here[:-1]
        for line, name in imports(path, package):
            if name.split(".")[0] == "nameserver" and room_of(name) != room_of(module):
                yield where.as_posix(), line, room_of(module), room_of(name)


def violations() -> Iterator[str]:
    for package in PACKAGES:
        for path in sources(package):
            where = path.relative_to(ROOT)
            for line, module in imports(path):
                top = module.split(".")[0]
                allowed = MAY_IMPORT[package] | TIMES_INSIDE.get(where.as_posix(), set())
                if top in PACKAGES and top not in allowed:
                    yield f"{where}:{line}: {package} must not import {module}"
                if top == "pysyncobj" and not where.as_posix().startswith("nameserver/raft/"):
                    yield f"{where}:{line}: only nameserver/raft knows pysyncobj, not {module}"
                if top == "kazoo" and package != "bench":
                    yield f"{where}:{line}: only bench knows ZooKeeper, not {package}: {module}"
                if top == "pickle":
                    yield f"{where}:{line}: nothing is pickled or unpickled here"
                if top in IMPURE and where.as_posix() not in IO_MODULES:
                    yield f"{where}:{line}: pure module imports {module}"


@pytest.mark.slow
def test_every_import_keeps_the_rules() -> None:
    assert list(violations()) == []


def test_rooms_of_the_nameserver_import_from_lower_ones_only() -> None:
    wrong = [
        f"{file}:{line}: {room} must not import from {other}"
        for file, line, room, other in nameserver_imports()
        if (room and ROOMS.index(other) >= ROOMS.index(room))
        or any(room.split("/")[0] == alone and other.split("/")[0] not in (alone, "disk") for alone in ALONE)
    ]
    assert wrong == []


def test_rooms_of_the_broker_import_from_lower_ones_only() -> None:
    wrong = []
    for path in sources("broker"):
        where = path.relative_to(ROOT)
        room = where.with_suffix("").parts[1]
        for line, name in imports(path, where.parts[:-1]):
            other = name.split(".")[1] if name.startswith("broker.") else room
            if other != room and BROKER_ROOMS.index(other) >= BROKER_ROOMS.index(room):
                wrong.append(f"{where}:{line}: {room} must not import from {other}")
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_no_files_know_each_other(package: str) -> None:
    """No files may import each other in a circle, not even for types.

    A reader could understand no file of such a circle before the other files.
    """
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sources(package)}
    known: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = [name for _, name in imports(path, module.split(".")[:-1], types=True)]
        # An imported name is a module, or a name in a module. In the second case, take this module.
        found = {name if name in modules else name.rpartition(".")[0] for name in names}
        known[module] = {name for name in found if name in modules and name != module}
    try:
        TopologicalSorter(known).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_pure_rooms_hold_no_io() -> None:
    assert [module for module in IO_MODULES if module.startswith(PURE_ROOMS)] == []


@pytest.mark.slow
def test_each_io_module_named_by_the_rules_needs_to_be() -> None:
    impure = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in sources(package)
        if any(module.split(".")[0] in IMPURE for _, module in imports(path))
    }
    assert sorted(IO_MODULES - impure) == []


@pytest.mark.slow
def test_only_programs_read_arguments_and_environment() -> None:
    readers = []
    for package in PACKAGES:
        for path in sources(package):
            if path.name == "__main__.py" or "mqadmin" in path.parts or package == "bench":
                continue
            if path == ROOT / "client" / "public.py":
                continue  # this module reads settings for programs that have no options of their own
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and ast.unparse(node) in {
                    "sys.argv",
                    "os.environ",
                    "os.getenv",
                }:
                    readers.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert readers == []


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-bench.lock", "requirements-test.lock"])
def test_lock_file_pins_with_hashes_and_names_no_index(name: str) -> None:
    text = (ROOT / name).read_text()
    pins = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert pins
    assert all("==" in pin for pin in pins)
    assert text.count("--hash=sha256:") >= len(pins)
    assert "://" not in text


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-bench.lock", "requirements-test.lock"])
def test_what_builds_the_package_is_pinned_too(name: str) -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for requirement in required:
        word = re.match(r"[a-z]+", requirement)
        assert word is not None
        assert f"\n{word[0]}==" in (ROOT / name).read_text()


@pytest.mark.parametrize("name", ["Makefile", "compose/Dockerfile"])
def test_installs_from_a_lock_file_fetch_nothing_else(name: str) -> None:
    text = (ROOT / name).read_text()
    installs = re.findall(r"pip install [^\n&]*", text)
    assert any("--no-deps" in line for line in installs)
    for line in installs:
        assert "--require-hashes" in line or "--no-deps --no-build-isolation" in line, line


def test_raft_library_is_pinned_exactly() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "pysyncobj==0.3.17" in project["dependencies"]
