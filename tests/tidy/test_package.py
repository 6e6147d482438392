"""Tests of the package ``routekeeper``: each way to install it, and its use in a user's project.

The project may have modules with names like ``client``, which must not hide the package's modules.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
#: Argument for tarfile's data filter, if this interpreter has the filter; Debian's Python 3.11.2 lacks it.
DATA_ONLY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
FOLDERS = ("remoting", "nameserver", "broker", "client", "bench")
#: Folder that stays in the repository and is not installed.
KEPT = "bench/micro"


def done(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def succeed(*words: str, folder: Path, **environment: str) -> str:
    found = done(*words, folder=folder, **environment)
    assert found.returncode == 0, found.stderr[-3000:]
    return found.stdout


# Building ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of all files that a build may need, because a build leaves files in its directory."""
    copy = tmp_path_factory.mktemp("source") / "routekeeper"
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "out", "*.whl")
    copy.mkdir()
    for name in (*FOLDERS, "routekeeper", "bin", "tests/tidy"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=skipped)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


def build(source: Path, out: Path) -> Path:
    """Build a wheel with pip. Use the build requirements that are already installed."""
    command = (
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    )
    succeed(*command, "--wheel-dir", str(out), str(source), folder=out.parent)
    (wheel,) = out.glob("*.whl")
    return wheel


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        return {re.sub(r"^.*\.data/scripts/", "bin/", name): archive.read(name) for name in names}


def installed_from(tree: Path) -> dict[str, bytes]:
    """Return the repository's content for each file that an installation must have."""
    found = {"routekeeper/__init__.py": (tree / "routekeeper" / "__init__.py").read_bytes()}
    found |= {f"bin/{path.name}": path.read_bytes() for path in (tree / "bin").glob("mq*")}
    if (tree / "routekeeper" / "py.typed").exists():
        found["routekeeper/py.typed"] = b""
    for folder in FOLDERS:
        for path in (tree / folder).rglob("*"):
            name = path.relative_to(tree).as_posix()
            if path.is_file() and not name.startswith(f"{KEPT}/"):
                found[f"routekeeper/{name}"] = path.read_bytes()
    return found


def without_links(tree: Path) -> None:
    for folder in FOLDERS:
        (tree / "routekeeper" / folder).unlink()


def links_as_text(tree: Path) -> None:
    """Replace each symbolic link by a file with the link's target path, as git does without link support."""
    without_links(tree)
    for folder in FOLDERS:
        (tree / "routekeeper" / folder).write_text(f"../{folder}")


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    copy = out / "source"
    shutil.copytree(tree, copy, symlinks=True)
    return build(copy, out / "made")


@pytest.mark.slow
def test_a_wheel_holds_the_folders_files_below_one_name(wheel: Path, tree: Path) -> None:
    assert contents(wheel) == installed_from(tree)
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert sorted(re.sub(r"-.*\.", ".", name) for name in tops) == [
        *("routekeeper", "routekeeper.data", "routekeeper.dist-info")
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "alter",
    [
        pytest.param(without_links, id="archive without links"),
        pytest.param(links_as_text, id="links as text"),
    ],
)
def test_a_tree_whose_links_were_lost_installs_and_runs_the_same(
    alter: Callable[[Path], None], tree: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "source"
    shutil.copytree(tree, copy, symlinks=True)
    alter(copy)
    program = (
        "import routekeeper as r, routekeeper.nameserver.types as t; print(r.Client.__module__, t.__file__)"
    )
    said = succeed(sys.executable, "-c", program, folder=tmp_path, PYTHONPATH=str(copy)).split()
    assert said == ["routekeeper.client.public", str(copy / "nameserver" / "types.py")]
    shutil.rmtree(copy)
    shutil.copytree(tree, copy, symlinks=True)
    alter(copy)
    assert contents(build(copy, tmp_path / "made")) == installed_from(tree)


@pytest.mark.slow
def test_a_source_archive_installs_the_same(tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "source"
    shutil.copytree(tree, copy, symlinks=True)
    program = "from setuptools import build_meta; build_meta.build_sdist('made')"
    (copy / "made").mkdir()
    succeed(sys.executable, "-W", "ignore", "-c", program, folder=copy)
    (archive,) = (copy / "made").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "unpacked", **DATA_ONLY)
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert contents(build(unpacked, tmp_path / "wheels")) == installed_from(tree)


# Running -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder into which pip has installed the wheel."""
    target = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target")
    succeed(*command, str(target), str(wheel), folder=target.parent)
    return target


@pytest.fixture(params=["checkout", "wheel"])
def place(request: pytest.FixtureRequest) -> Path:
    """Return the folder on a user's Python path: this checkout, or an installation."""
    found: Path = ROOT if request.param == "checkout" else request.getfixturevalue("site")
    return found


@pytest.mark.slow
def test_pip_puts_one_name_into_site_packages(site: Path) -> None:
    tops = {path.name for path in site.iterdir()} - {"bin", "__pycache__"}
    assert {re.sub(r"-.*\.", ".", name) for name in tops} == {"routekeeper", "routekeeper.dist-info"}


PROGRAM = """
import pickle
import {first}
import routekeeper
from routekeeper import AsyncClient, Client, Message, Producer, SendNotApplied
import routekeeper.broker.__main__
import routekeeper.nameserver.__main__
import routekeeper.client.mqadmin.__main__
import routekeeper.remoting.route
import {first} as again

config = routekeeper.TopicConfig(topic_name="Orders")
copy = pickle.loads(pickle.dumps(config))
assert copy == config and type(copy) is routekeeper.TopicConfig
started = Client("127.0.0.1:9")
modules = {{type(started).__module__, AsyncClient.__module__, Producer.__module__, SendNotApplied.__module__}}
assert all(each.startswith("routekeeper.client.") for each in modules), modules
assert routekeeper.client.blocking.log.name == "routekeeper.client.blocking"
started.close()
print({first}.WHOSE, again.WHOSE, routekeeper.__file__)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "kind"), [*((name, "{}.py") for name in FOLDERS), ("client", "{}/__init__.py")]
)
def test_modules_of_a_users_own_break_nothing(own: str, kind: str, place: Path, tmp_path: Path) -> None:
    for name in FOLDERS:
        path = tmp_path / kind.format(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text("WHOSE = 'mine'\n")
    (tmp_path / "program.py").write_text(PROGRAM.format(first=own))
    said = succeed(sys.executable, "program.py", folder=tmp_path, PYTHONPATH=str(place)).split()
    assert said == ["mine", "mine", str(place / "routekeeper" / "__init__.py")]


@pytest.mark.slow
@pytest.mark.parametrize("program", ["mqnamesrv", "mqbroker", "mqadmin", "mqbench"])
def test_each_installed_program_starts(program: str, site: Path, tmp_path: Path) -> None:
    asked = ["-h"] if program == "mqadmin" else ["--help"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = [str(site / "bin" / program), *asked]
    found = done(*words, folder=tmp_path, PYTHONPATH=str(site), PATH=path)
    assert found.returncode == 0, found.stderr
    assert program in found.stdout


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["--help", "compare"])
def test_the_benchmark_without_its_extra_names_the_extra(asked: str, site: Path, tmp_path: Path) -> None:
    # With -S, Python does not find the packages of this environment, such as those of the extra.
    program = (sys.executable, "-S", str(site / "bin" / "mqbench"), asked)
    found = done(*program, folder=tmp_path, PYTHONPATH=str(site))
    assert found.returncode == 2
    (line,) = found.stderr.splitlines()
    assert line.startswith("mqbench: not installed: pyspark, ")
    assert line.endswith("; run pip install 'routekeeper[bench]'")


@pytest.mark.slow
def test_servers_do_not_load_the_client(place: Path, tmp_path: Path) -> None:
    program = (
        "import sys, routekeeper.nameserver.__main__, routekeeper.broker.__main__;"
        "print(sorted(name for name in sys.modules if name.startswith('routekeeper.client')))"
    )
    assert succeed(sys.executable, "-c", program, folder=tmp_path, PYTHONPATH=str(place)) == "[]\n"


@pytest.mark.slow
def test_public_names_are_offered_before_they_are_loaded(tmp_path: Path) -> None:
    program = "import routekeeper; print(*(name for name in dir(routekeeper) if not name.startswith('_')))"
    said = succeed(sys.executable, "-c", program, folder=tmp_path, PYTHONPATH=str(ROOT)).split()
    assert {"Client", "AsyncClient", "Message"} < set(said)
    assert not set(FOLDERS) & set(said), "folders are no public names"
    found = done(sys.executable, "-c", "from routekeeper import Clint", folder=tmp_path, PYTHONPATH=str(ROOT))
    assert "ImportError: cannot import name 'Clint' from 'routekeeper'" in found.stderr


# Names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_refuses_its_bare_name(folder: str, tmp_path: Path) -> None:
    found = done(sys.executable, "-c", f"import {folder}", folder=tmp_path, PYTHONPATH=str(ROOT))
    assert found.returncode == 1
    line = f"ImportError: '{folder}' is installed as routekeeper.{folder}: import it by this name"
    assert found.stderr.splitlines()[-1] == line
    assert done(sys.executable, "-m", folder, folder=ROOT).returncode == 1


def sources() -> Iterator[Path]:
    for folder in (*FOLDERS, "routekeeper", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.is_relative_to(ROOT / "routekeeper") or path.parent == ROOT / "routekeeper":
                yield path


def bare_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each import or string in which a module name lacks ``routekeeper.``."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = re.findall(rf"^(?:{'|'.join(FOLDERS)})(?:\.\w+)+$", node.value)
            names = [name for name in names if is_module(name)]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] in FOLDERS)


def is_module(name: str) -> bool:
    first, second = name.split(".")[:2]
    return (ROOT / first / second).is_dir() or (ROOT / first / f"{second}.py").is_file()


@pytest.mark.slow
def test_nothing_is_imported_by_a_bare_name() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sources()
        for line, name in bare_names(path.read_text())
    ]
    assert wrong == []


def test_bare_names_are_found() -> None:
    name, other = ".".join(["nameserver", "types", "X"]), ".".join(["client", "aio"])
    text = f"import {other}\nfrom remoting import route\nfrom .bench import x\nf('{name}', 'client.id')\n"
    assert list(bare_names(text)) == [(1, other), (2, "remoting"), (4, name)]


def test_each_folder_is_found_in_the_package() -> None:
    for folder in FOLDERS:
        found = importlib.util.find_spec(f"routekeeper.{folder}")
        assert found is not None
        assert found.origin is not None
        assert Path(found.origin).resolve() == ROOT / folder / "__init__.py"
