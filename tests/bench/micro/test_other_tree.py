"""A benchmark that compares two commits runs the other commit's own code, from a checkout of that commit."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import time
import urllib.request
from pathlib import Path

import pytest

from routekeeper.bench.micro import beside, registration
from routekeeper.bench.micro.raft import __main__ as raft
from routekeeper.bench.micro.raft.report import OTHER, OURS

pytestmark = [pytest.mark.bench, pytest.mark.one_core]

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("remoting", "nameserver", "broker", "client", "bench")
#: Name of a file that only the copied tree's nameserver creates. The file proves that the copied code ran.
PLANTED = "planted"


@pytest.fixture(scope="module", params=["one package", "five packages", "one package without links"])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of this source tree with two planted changes, in one of three package layouts.

    There are three layouts, because older commits have other package layouts. All tests of one layout share a
    copy, because the first program that runs in a copy has to compile all files.
    """
    tree = tmp_path_factory.mktemp("other") / "tree"
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "routekeeper").mkdir()
    shutil.copy(ROOT / "routekeeper" / "__init__.py", tree / "routekeeper")
    if request.param == "one package":
        for folder in FOLDERS:
            (tree / "routekeeper" / folder).symlink_to(f"../{folder}")
    elif request.param == "five packages":
        (tree / "routekeeper" / "__init__.py").write_text("")
        for path in tree.rglob("*.py"):
            text = re.sub(r"\bfrom routekeeper import", "import", path.read_text())
            path.write_text(text.replace("routekeeper.", ""))
    started = tree / "nameserver" / "__main__.py"
    line = "from __future__ import annotations\n"
    text = started.read_text()
    assert line in text
    started.write_text(text.replace(line, f'{line}open("{PLANTED}", "w").close()\n'))
    decoding = tree / "nameserver" / "registration.py"
    text, count = re.subn(
        r"(?m)^def decode_registration\((?:.|\n)*?\) -> .*:\n(?:    \"\"\"(?:.|\n)*?\"\"\"\n)?",
        lambda found: f"{found[0]}    sum(range(100_000))\n",
        decoding.read_text(),
    )
    assert count == 1
    decoding.write_text(text)
    return tree


def test_registrations_are_decoded_by_the_other_tree(other: Path, tmp_path: Path) -> None:
    cases = tmp_path / "cases"
    sent = [frame.hex() for frame in registration.frames(1, compressed=False)]
    cases.write_text(json.dumps({"one": (sent, 20)}))
    with registration.Worker(ROOT, cases) as this, registration.Worker(other, cases) as that:
        # CPU time of one decoding in us. The copied code needs longer, because its planted code adds up
        # 100,000 numbers.
        assert that.time("one") > 500 > this.time("one")


def test_route_queries_are_answered_by_the_other_tree(other: Path) -> None:
    for _, (this, that) in beside._pair((ROOT, other), "independent", 0):
        found = [Path(f"/proc/{target.pid}/cwd/{PLANTED}").exists() for target in (this, that)]
        assert found == [False, True]


# One layout is enough here. The raft benchmark imports a nameserver in the same way as the benchmark of route
# queries, whose test covers all layouts.
@pytest.mark.parametrize("other", ["five packages"], indirect=True)
def test_members_of_the_other_group_are_the_other_trees(other: Path, tmp_path: Path) -> None:
    arguments = argparse.Namespace(seed=0, against=other, python="")
    bench = raft.Bench(arguments, tmp_path / "systems")
    for name, planted in ((OURS, False), (OTHER, True)):
        system = bench.make(name)
        try:
            system.launch(0)
            wait_for_answer(system.watched[0])
            assert (system.folder / "0" / PLANTED).exists() == planted
        finally:
            system.stop()


def wait_for_answer(http: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"http://{http}/healthz", timeout=5).close()
        except OSError:
            assert time.monotonic() < deadline, f"{http} does not answer"
            time.sleep(0.02)
        else:
            return
