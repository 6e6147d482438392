"""With ``--links kernel``, the kernel's rules drop exactly the packets of the links that are cut.

With this option, the measurement after each cut lasts longer. Plans and machines that cannot use the option
are refused.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import msgspec
import pytest

from routekeeper.bench.__main__ import main
from routekeeper.bench.cuts import SIDES, directions
from routekeeper.bench.namespaces import HARNESS, Namespaces, network
from routekeeper.bench.plan import PlannedFault, load_plan, run_seconds, seconds_of
from routekeeper.bench.runfolder import Links, Manifest

SERVERS = [f"nameserver-{index}" for index in range(9)]
BROKERS = [f"broker-{index}" for index in range(20)]
SPACES = Namespaces(tag="rkb4194304-999", subnet=254, names=[*SERVERS, *BROKERS])
ENDS = [*SERVERS, *BROKERS, *SIDES]


def test_each_direction_has_a_rule_of_its_own() -> None:
    every = list(itertools.permutations(ENDS, 2))
    rules = SPACES.rules(every)
    assert len({*rules}) == len(every)
    assert SPACES.rules([("nameserver-0", "broker-1")]) == [
        "pref 1000 iif nameserver-0 to 198.19.254.46 blackhole"
    ]


def test_both_groups_of_clients_are_told_apart_by_what_they_dial() -> None:
    first, second = (SPACES.rules([(side, "nameserver-0")]) for side in SIDES)
    assert first == ["pref 1000 iif side-a to 198.19.254.6 blackhole"]
    assert second == ["pref 1000 iif side-b to 198.19.255.6 blackhole"]
    back = [SPACES.rules([("nameserver-0", side)])[0] for side in SIDES]
    assert back == [f"pref 1000 iif nameserver-0 to {SPACES.host(side)} blackhole" for side in SIDES]


def test_one_way_cut_drops_only_what_the_struck_server_sends() -> None:
    cut = directions("oneway", "oneway", servers=SERVERS, target=2, brokers=BROKERS, broker=None)
    rules = [rule.split() for rule in SPACES.rules(cut)]
    assert {rule[3] for rule in rules} == {"nameserver-2"}
    assert {rule[5] for rule in rules} == {SPACES.host(end) for end in ENDS if end != "nameserver-2"}


def test_no_cut_touches_the_harness() -> None:
    rules = SPACES.rules(list(itertools.permutations(ENDS, 2)))
    assert not [rule for rule in rules if HARNESS in rule or rule.split()[5] == SPACES.host(HARNESS)]


def test_whatever_is_dialled_is_an_address_of_who_is_to_answer() -> None:
    lines = {space: [line.split() for line in told] for space, told in SPACES.commands() if space is not None}
    for dialler, acceptor in itertools.product([HARNESS, *ENDS], ENDS):
        dialled = SPACES.dialled(dialler, acceptor)
        own = [line[2] for line in lines[SPACES.inside(acceptor)] if line[:2] == ["address", "add"]]
        assert dialled in own, (dialler, acceptor)
        leads = [line for line in lines[SPACES.router] if len(line) > 4 and dialled in (line[2], line[4])]
        assert leads[0][-2:] == ["dev", acceptor], "the router knows the way"
        assert all(line[-1] == acceptor for line in leads), "and no other"


def test_largest_cluster_has_names_and_addresses_enough() -> None:
    addresses = {SPACES.dialled(side, end) for side in SIDES for end in ENDS} | {SPACES.host(HARNESS)}
    assert len(addresses) == 2 * len([*SERVERS, *BROKERS]) + len(SIDES) + 1
    assert all(int(address.split(".")[3]) < 255 for address in addresses)
    assert all(len(name) <= 15 for name in (*ENDS, HARNESS, SPACES.tag)), "names of interfaces"
    assert network(254) == "198.19.254.0/23"


@pytest.mark.parametrize(
    ("scenario", "case", "longer_s"),
    [
        # ``stretch`` is 3. It multiplies the length of a broker's fault and of a partition, but not of other
        # faults (see ``down_seconds``). The last two cases cut no link.
        ("broker-dies", "cable", 2.0 * 3 + 1),
        ("leader-fails", "oneway", 2.0 + 1),
        ("partition", "1-2", 2.0 * 3 + 1),
        ("messages", "leader-cable", 2.0 + 1),
        ("leader-fails", "kill", 0.0),
        ("broker-dies", "freeze", 0.0),
    ],
)
def test_window_after_a_cut_by_the_kernel_is_longer_by_the_cut_and_a_second(
    scenario: str, case: str, longer_s: float
) -> None:
    fault = PlannedFault(case=case, down_s=2.0, after_s=1.0)
    series = msgspec.structs.replace(load_plan("compare").series[0], stretch=3.0)
    proxy, kernel = (seconds_of(scenario, fault, series, links) for links in ("proxy", "kernel"))
    assert kernel - proxy == pytest.approx(longer_s)


def test_planned_time_of_a_run_knows_what_cuts_its_links() -> None:
    plan = load_plan("compare")
    assert plan.links == "proxy"
    by_kernel = msgspec.structs.replace(plan, links="kernel")
    (series,) = plan.series
    more_s = run_seconds(by_kernel, series) - run_seconds(plan, series)
    # The plan cuts the links of one broker for 3.8 s, and the links of a partition for 2.6 s. If the kernel
    # cuts links, each cut lengthens the run by the duration of the cut and one second.
    assert more_s == pytest.approx((3.8 + 1) + (2.6 + 1))


def test_manifest_of_before_says_nothing_of_the_kernel() -> None:
    (field,) = (each for each in msgspec.structs.fields(Manifest) if each.name == "links")
    assert field.default == "none"
    assert msgspec.convert("kernel", Links) == "kernel"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--links kernel needs root"),
        (
            ["--profile", "attached", "--arm", "raft", "--nameservers", "h:1"],
            "'attached' cuts no links",
        ),
    ],
)
def test_who_cannot_have_the_kernel_cut_is_refused_before_anything_starts(
    options: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["compare", "--links", "kernel", *options, "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert list(tmp_path.iterdir()) == []


def test_machine_without_iproute2_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["run", "--links", "kernel", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "mqbench: --links kernel needs iproute2 (ip on PATH)\n"
