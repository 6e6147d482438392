"""The arms (designs) convert brokers to MetaQ nodes, nodes to routes, and query results to changes.

Some tests check the command line that chooses arms and profiles.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.bench.__main__ import asked_for, main, parser, without_out
from routekeeper.bench.arms.apache_brokers import broker_addr
from routekeeper.bench.arms.interface import as_dialled, looked_at
from routekeeper.bench.arms.layout import child_index, decode_addr, encode_addr, nodes_of, route_of
from routekeeper.bench.plan import FOLDER, load_plan
from routekeeper.bench.views import Views


def test_a_broker_is_laid_out_as_metaq_did() -> None:
    assert dict(nodes_of(3, "10.0.0.1:10911", {"Orders": 4})) == {
        "/meta/brokers/topics-pub/Orders/3-m": b"4",
        "/meta/brokers/topics-sub/Orders/3-m": b"4",
        "/meta/brokers/ids/3/master": b"meta://10.0.0.1:10911",
    }


def test_topics_are_made_before_the_address() -> None:
    paths = [path for path, _ in nodes_of(3, "10.0.0.1:10911", {"A": 1, "B": 1})]
    assert paths[-1] == "/meta/brokers/ids/3/master"


def test_broker_without_address_or_without_queues_is_left_out_of_the_route() -> None:
    route = route_of({0: b"4", 1: b"4"}, {0: encode_addr("h:1"), 2: encode_addr("h:3")})
    assert [data.broker_name for data in route.queue_datas] == ["broker-0"]
    assert [dict(data.broker_addrs) for data in route.broker_datas] == [{0: "h:1"}]


def test_look_up_shows_brokers_and_version_of_a_route() -> None:
    masters = {index: encode_addr(f"h:{index}") for index in (0, 2, 101)}
    found = looked_at(route_of({2: b"4", 0: b"4", 101: b"17"}, masters), target=1)
    assert (found.outcome, found.target, found.brokers, found.version) == ("ok", 1, [0, 2, 101], 17)


def test_side_dials_its_own_addresses() -> None:
    route = as_dialled(route_of({0: b"4"}, {0: encode_addr("h:1")}), {"h:1": "127.0.0.1:9"})
    assert [dict(data.broker_addrs) for data in route.broker_datas] == [{0: "127.0.0.1:9"}]


@pytest.mark.parametrize(("name", "index"), [("12-m", 12), ("12-s1", None), ("m", None), ("x-m", None)])
def test_only_masters_count(name: str, index: int | None) -> None:
    assert child_index(name) == index


def test_foreign_address_is_refused() -> None:
    with pytest.raises(ValueError, match="meta://"):
        decode_addr(b"http://h:1")


def test_view_is_recorded_when_it_changes_with_the_instants_around_it() -> None:
    views = Views(1)
    first = views.reading("T", "routed", brokers=[0, 1], sent_ns=10, seen_ns=12)
    assert first is not None
    assert first.unseen_ns is None
    assert views.reading("T", "routed", brokers=[0, 1], sent_ns=20, seen_ns=22) is None
    second = views.reading("T", "routed", brokers=[0], sent_ns=30, seen_ns=33)
    assert second is not None
    assert (second.unseen_ns, second.seen_ns, second.brokers) == (20, 33, [0])
    (end,) = views.end()
    assert (end.state, end.seen_ns) == ("end", 33)


def test_last_change_before_the_end_is_seen() -> None:
    views = Views(0)
    views.reading("T", "routed", version=1, brokers=[100], sent_ns=10, seen_ns=12)
    last = views.reading("T", "routed", version=2, brokers=[100], sent_ns=20, seen_ns=22)
    assert last is not None
    assert last.version == 2
    (end,) = views.end()
    assert end.seen_ns == 22


def test_control_that_the_machine_cannot_run_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--profile", "controls", "--out", str(tmp_path / "out")]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    _, comparison = asked_for(parser().parse_args(words), words)
    assert comparison.plan.arms == [arm for arm in load_plan("controls").arms if arm != "apache"]
    assert {series.name: series.arms for series in comparison.plan.series} == {
        "equal": [],
        "rest": ["independent"],
    }
    assert "the arm apache is left out: it needs Maven" in capsys.readouterr().err
    # make the folder in which an earlier run would have put RocketMQ
    (tmp_path / "routekeeper" / "bench" / "apache-5.3.3").mkdir(parents=True)
    _, comparison = asked_for(parser().parse_args([*words[:-1], str(tmp_path / "other")]), words)
    assert "apache" in comparison.plan.arms


@pytest.mark.parametrize("out", [["--out", "/home/me/out"], ["--out=/home/me/out"], ["--ou", "/home/me/out"]])
def test_recorded_command_names_no_folder_of_this_machine(out: list[str]) -> None:
    words = ["compare", *out, "--open", "--seed", "3"]
    assert parser().parse_args(words).out == Path("/home/me/out")
    assert without_out(words) == ["compare", "--open", "--seed", "3"]


def test_only_the_series_that_are_named_are_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "run",
        "--profile",
        "full",
        "--series",
        "defaults, equal-polling",
        "--out",
        str(tmp_path / "out"),
    ]
    _, comparison = asked_for(parser().parse_args(words), words)
    assert [series.name for series in comparison.plan.series] == ["equal-polling", "defaults"]
    assert main(["run", "--profile", "full", "--series", "quick", "--out", str(tmp_path / "none")]) == 2
    assert "series='quick' is unknown, known are: defaults" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_profile_may_be_a_file_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text((FOLDER / "smoke.toml").read_text().replace("topics = 2", "topics = 3"))
    words = ["run", "--profile", str(mine), "--out", str(tmp_path / "out")]
    _, comparison = asked_for(parser().parse_args(words), words)
    assert (comparison.profile, comparison.plan.load.topics) == ("mine", 3)
    for text, said in (
        ("arms = [", f"mqbench: --profile {mine}: "),
        (None, f"mqbench: --profile {mine}: No such file or directory"),
    ):
        mine.unlink() if text is None else mine.write_text(text)
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(said)


@pytest.mark.parametrize(
    "beside",
    [
        ["--out", "out"],
        ["--seed", "0"],
        ["--blocks", "2"],
        ["--profile", "compare"],
        ["--series", "equal"],
        ["--links", "proxy"],
    ],
    ids=lambda beside: beside[0],
)
def test_resume_refuses_what_the_comparison_of_the_folder_decides(
    beside: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--profile", "smoke", "--out", str(tmp_path)]
    out, _ = asked_for(parser().parse_args(words), words)
    assert main(["run", "--resume", str(out), *beside]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mqbench: {beside[0]} beside --resume {out}: ")


def machine_with(monkeypatch: pytest.MonkeyPatch, folder: Path, *, javac: str | None) -> None:
    """Simulate a machine that has not downloaded RocketMQ and has only this Java compiler, or none."""
    if javac is not None:
        compiler = folder / "javac"
        compiler.write_text(f"#!/bin/sh\necho javac {javac}\n")
        compiler.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.mark.parametrize("java", ["none", "old", "17"])
def test_profile_of_rocketmqs_own_brokers_says_what_is_missing_before_it_starts(
    java: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine_with(monkeypatch, tmp_path, javac={"none": None, "old": "11.0.2", "17": "17.0.2"}[java])
    assert main(["run", "--profile", "real", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    wanted = "Maven (mvn on PATH)" if java == "17" else "a Java development kit of version 17 or newer"
    assert f"profile 'real' runs RocketMQ's own brokers: it needs {wanted}" in said
    assert not (tmp_path / "out").exists()


def test_brokers_of_rocketmqs_have_the_ports_around_theirs_to_themselves() -> None:
    taken = [
        int(broker_addr().rpartition(":")[2]) + offset
        for _ in range(40)
        for offset in (-2, 0, 1)  # offsets of the broker's fast port, its own port, and its replication port
    ]
    assert len(set(taken)) == len(taken)
