"""Plans of comparisons are checked, and they give every design in a round the same conditions."""

from __future__ import annotations

import itertools
import re

import msgspec
import pytest

from routekeeper.bench.arrivals import Arrivals
from routekeeper.bench.chance import stream
from routekeeper.bench.plan import (
    CASES,
    FOLDER,
    REST,
    PlanError,
    PlannedFault,
    after_seconds,
    down_seconds,
    drawn_in_round,
    load_plan,
    only_scenarios,
    only_series,
    parse_plan,
    plan_in,
    plans,
    quiet_seconds,
    run_seconds,
    scenarios_of,
    seconds_of,
    strikes_broker,
)
from routekeeper.bench.report.answers import TIMER_SERIES
from routekeeper.bench.runfolder import REAL
from routekeeper.bench.schedule import Comparison, blocks_of
from routekeeper.bench.timers import DOCUMENTED_MS
from routekeeper.nameserver.liveness import CLOCK_PERIOD_S
from routekeeper.nameserver.replicated.reporter import REPORT_PERIOD_S
from tests.bench.expected import expected_minutes

SMOKE = (FOLDER / "smoke.toml").read_text()


@pytest.mark.parametrize("name", plans())
def test_shipped_plan_is_valid(name: str) -> None:
    plan = load_plan(name)
    for series in plan.series:
        assert run_seconds(plan, series) > 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("divisor = 60.0", "divisor = 0.5", "series.equal.timers.divisor=0.5 is out of range, allowed are 1"),
        ('name = "quiet"', 'name = "noisy"', "scenario 'noisy' is unknown"),
        ('case = "kill"', 'case = "tickle"', "'tickle' is unknown, known are: cable, freeze, kill, stop"),
        (
            "blocks = 1",
            'blocks = 1\ncases = ["1-2"]',
            "series.equal.cases='1-2' is unknown, known are: kill",
        ),
        (
            "blocks = 1",
            "blocks = 1\ndown_s = { cable = 1.0 }",
            "series.equal.down_s='cable' is unknown, known are: kill",
        ),
        ("blocks = 1", "blocks = 1\ndown_s = { kill = -1.0 }", "series.equal.down_s.kill=-1 is out of range"),
        ("blocks = 1", "blocks = 0", "series.equal.blocks=0 is out of range"),
        ("warmup_s = 1.5", "warmup_s = 1.5\nwarm = 1", "unknown field `warm`"),
        ("quiet_s = 2.0", "quiet_s = 0.0", "scenario 'quiet' has neither quiet_s nor faults"),
        (
            "observed_sims = 1",
            "observed_sims = 9",
            "load.observed_sims=9 is out of range, allowed are 0 to",
        ),
        (
            "lookup_per_s = 20.0",
            "lookup_per_s = 9000.0",
            "users that these rates and load.timeout_s need=22567 is out of range, allowed are 1 to 10000",
        ),
    ],
)
def test_bad_value_is_named_with_what_is_allowed(old: str, new: str, said: str) -> None:
    assert old in SMOKE
    with pytest.raises(PlanError, match=re.escape(said)):
        parse_plan(SMOKE.replace(old, new, 1))


def a_line(**changes: object) -> str:
    line = {
        "name": "x",
        "scenario": "leader-fails",
        "case": "kill",
        "measure": "right_again_s",
        "arms": ["raft", "independent"],
        "unit": "s",
        "margin": 0.5,
    } | changes
    fields = "\n".join(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in line.items())
    return f"\n[[lines]]\n{fields}\n"


def test_full_profile_holds_every_case_and_ten_rounds_of_those_that_carry_verdicts() -> None:
    plan = load_plan("full")
    planned = {scenario.name: {fault.case for fault in scenario.faults} for scenario in plan.scenarios}
    # The scenario without requests is left out. With this plan's timers, brokers report 60 times as often as
    # with RocketMQ's timers, so the cost of idle servers would mean little.
    assert planned == {name: set(cases) for name, cases in CASES.items() if name != REST}
    equal, rest, *described = plan.series
    for series in (equal, rest):
        about = {line.scenario for line in plan.lines if line.series == series.name}
        assert (series.blocks, about) == (10, {*series.scenarios})
    assert {series.name: series.blocks for series in described} == {
        "equal-described": 3,
        "equal-lengths": 3,
        "equal-polling": 3,
        "equal-journal": 3,
        "equal-tenth": 3,
        "defaults": 3,
    }
    assert {*equal.scenarios, *rest.scenarios, *described[0].scenarios} == set(planned), "none is left out"
    assert msgspec.structs.replace(described[0], name="equal", blocks=10, scenarios=equal.scenarios) == equal


@pytest.mark.parametrize("name", plans())
def test_rates_at_rest_are_judged_with_rocketmqs_own_timers_for_one_period_of_every_broker(name: str) -> None:
    """Check that the costs of idle servers are measured with RocketMQ's own, undivided timers.

    If brokers reported 60 times as often, the difference between two designs would be 60 times as large. The
    margins, which are the largest differences that count as equal, would stay the same.
    """
    plan = load_plan(name)
    series = {each.name: each for each in plan.series}
    for line in plan.lines:
        if line.measure not in ("network_kib_per_s", "cpu_s_per_min"):
            continue
        rest = series[line.series]
        (scenario,) = (each for each in scenarios_of(plan, rest) if each.name == line.scenario)
        assert (rest.timers.divisor, plan_in(plan, rest).load.sim_brokers) == (1.0, 300)
        assert rest.timers == series["defaults"].timers
        assert scenario.quiet_s * 1000 == DOCUMENTED_MS["registerNameServerPeriod"]
        assert not rest.blocks % 10


@pytest.mark.parametrize(
    ("names", "minutes"),
    [(["equal"], 60), (["rest"], 30), (["equal", "rest"], 90), (None, 100), ([], 170)],
    ids=["equal", "rest", "headline measures", "described", "all"],
)
def test_full_profile_takes_no_longer_than_it_should(names: list[str] | None, minutes: float) -> None:
    plan = load_plan("full")
    if names is None:
        names = [series.name for series in plan.series if series.name not in ("equal", "rest")]
    chosen = only_series(plan, names) if names else plan
    asked = Comparison(profile="full", plan=chosen, seed=1, command=["mqbench"])
    assert expected_minutes(asked) < minutes


def test_each_systems_own_timers_are_seen_with_a_killed_and_with_a_silent_broker() -> None:
    """Check that the series with default timers kills one broker and cuts another broker off.

    The series with equal timers uses the session timeout that the plan sets. So only the series with default
    timers can show each system's own session timeout.
    """
    plan = load_plan("full")
    (defaults,) = (series for series in plan.series if series.name == "defaults")
    (dies,) = scenarios_of(plan, defaults)
    assert [fault.case for fault in dies.faults] == ["kill", "cable"]
    kill = dies.faults[0]
    poll_s = DOCUMENTED_MS["pollNameServerInterval"] / 1000
    window_s = down_seconds(dies.name, kill, defaults) + after_seconds(dies.name, kill, defaults, plan.links)
    assert window_s > 35 + poll_s
    assert defaults.watches, "so that no poll follows the end of a session"


@pytest.mark.parametrize("name", ["compare", "full"])
def test_a_leader_that_is_killed_has_not_just_been_started(name: str) -> None:
    """Check that leaders are killed before any restart, because a new JVM runs code slowly at first."""
    names = [scenario.name for scenario in load_plan(name).scenarios]
    assert names.index("leader-fails") < names.index("nameserver-restarts")


@pytest.mark.parametrize("name", ["compare", "full", "controls", "real"])
def test_new_clients_come_to_each_server_every_tenth_of_a_second(name: str) -> None:
    """Check that at least one new client comes to each server every 0.1 s.

    New clients show when a server has recovered, so the recovery time is exact to 0.1 s.
    """
    plan = load_plan(name)
    assert plan.servers / plan.load.newcomer_per_s <= 0.1


def test_cost_of_rocketmqs_nameserver_is_measured_when_its_virtual_machine_is_warm() -> None:
    """Check that the cost of RocketMQ's nameserver is measured late and with undivided timers.

    A Java virtual machine uses much processor time in its first seconds, so the warm-up is longer than a
    registration period. Divided timers would multiply the rates.
    """
    plan, full = load_plan("controls"), load_plan("full")
    (rest,) = (series for series in plan.series if series.name == "rest")
    (published,) = (series for series in full.series if series.name == "rest")
    assert rest.arms == ["independent", "apache"]
    assert (rest.timers, rest.load, rest.brokers) == (published.timers, published.load, published.brokers)
    (scenario,), (same,) = scenarios_of(plan, rest), scenarios_of(full, published)
    assert scenario == same
    assert plan_in(plan, rest).warmup_s * 1000 > DOCUMENTED_MS["registerNameServerPeriod"]
    for series in plan.series:
        assert series is rest or "idle-300" not in series.scenarios


def test_series_may_have_a_load_of_its_own() -> None:
    load = msgspec.structs.replace(load_plan("smoke").load, sim_brokers=7)
    plan = load_plan("smoke")
    own = msgspec.structs.replace(plan.series[0], load=load, brokers=1, warmup_s=9.0)
    assert plan_in(plan, plan.series[0]) == plan
    assert plan_in(plan, own) == msgspec.structs.replace(plan, load=load, brokers=1, warmup_s=9.0)
    assert run_seconds(plan, own) == run_seconds(plan, plan.series[0]) - plan.warmup_s + 9.0


def test_load_of_a_series_is_checked_as_that_of_the_plan() -> None:
    full = (FOLDER / "full.toml").read_text()
    for old, new, said in (
        ("sim_brokers = 300", "sim_brokers = 3000", "series.rest.load.sim_brokers=3000 is out of range"),
        ("brokers = 1\n", "brokers = 0\n", "series.rest.brokers=0 is out of range, allowed are 1 to 20"),
        ("warmup_s = 8.0", "warmup_s = -1.0", "series.rest.warmup_s=-1 is out of range"),
        (
            'scenarios = ["idle-300"]',
            'scenarios = ["idle-300", "messages"]',
            "load.consumers=0: the scenario 'messages' needs a consumer",
        ),
    ):
        assert full.count(old) == 1
        with pytest.raises(PlanError, match=re.escape(said)):
            parse_plan(full.replace(old, new))


def test_full_profile_predicts_recoveries_by_two_divisors() -> None:
    plan = load_plan("full")
    series = {each.name: each for each in plan.series if each.name in TIMER_SERIES}
    divisors = {name: each.timers.divisor for name, each in series.items()}
    assert divisors == {"equal": 60.0, "equal-tenth": 10.0}
    assert {
        each.name: [fault.case for fault in each.faults] for each in scenarios_of(plan, series["equal-tenth"])
    } == {
        "broker-dies": ["kill", "cable"],
        "nameserver-restarts": ["one-empty", "all"],
    }
    equal = series["equal"]
    assert all(each.watches for each in series.values())
    # The two series differ only in the timers' divisor and in ``stretch``. If the timers of a series are six
    # times as long, its ``stretch`` is six times as great.
    for each in series.values():
        assert each.stretch == equal.timers.divisor / each.timers.divisor
        assert msgspec.structs.replace(each.timers, divisor=60.0) == equal.timers


def test_series_has_the_cases_that_it_names_and_no_scenario_without_any() -> None:
    plan = load_plan("full")
    kills = msgspec.structs.replace(plan.series[0], cases=["kill"])
    left = {
        scenario.name: [fault.case for fault in scenario.faults] for scenario in scenarios_of(plan, kills)
    }
    assert left == {
        "quiet": [],
        "broker-dies": ["kill"],
        "leader-fails": ["kill"],
    }


def test_some_scenarios_are_made_in_the_series_that_have_a_case_of_them() -> None:
    plan = only_scenarios(load_plan("full"), ["nameserver-restarts", "new-topic"])
    assert [scenario.name for scenario in plan.scenarios] == ["nameserver-restarts", "new-topic"]
    made = {series.name: [scenario.name for scenario in scenarios_of(plan, series)] for series in plan.series}
    assert made == {
        "equal": ["nameserver-restarts"],
        "equal-described": ["new-topic"],
        "equal-tenth": ["nameserver-restarts"],
    }
    with pytest.raises(PlanError, match="scenarios='coffee' is unknown, known are: broker-dies, "):
        only_scenarios(load_plan("full"), ["quiet", "coffee"])
    watches = only_series(load_plan("full"), ["equal-polling", "defaults"])
    with pytest.raises(PlanError, match="scenarios=leader-fails,quiet: no chosen series has a case"):
        only_scenarios(watches, ["leader-fails", "quiet"])


def test_some_series_of_a_profile_keep_their_order_and_an_unknown_one_is_named() -> None:
    plan = only_series(load_plan("full"), ["defaults", "equal"])
    assert [series.name for series in plan.series] == ["equal", "defaults"]
    with pytest.raises(PlanError, match="series='equals' is unknown, known are: defaults, equal"):
        only_series(plan, ["equals"])


def test_what_syncing_costs_is_asked_of_raft_mode_alone() -> None:
    plan = load_plan("full")
    (journal,) = (series for series in plan.series if series.name == "equal-journal")
    assert (plan.durability, journal.durability) == ("fsync", "journal")
    assert [[turn.arm for turn in block] for block in blocks_of(only_series(plan, [journal.name]), 1)] == [
        ["raft"],
        ["raft"],
        ["raft"],
    ]
    assert journal.timers == plan.series[0].timers


def test_stretch_lengthens_what_timers_decide_and_no_restart() -> None:
    fault = PlannedFault(case="kill", quiet_s=0.4, jitter_s=0.0, down_s=2.0, after_s=1.0)
    series = msgspec.structs.replace(load_plan("smoke").series[0], stretch=6.0)
    assert seconds_of("broker-dies", fault, series) == pytest.approx(0.4 + 12.0 + 6.0)
    assert seconds_of("leader-fails", fault, series) == pytest.approx(0.4 + 2.0 + 6.0)
    cut = msgspec.structs.replace(fault, case="1-2")
    assert down_seconds("partition", cut, series) == pytest.approx(12.0)
    named = msgspec.structs.replace(series, down_s={"kill": 7.0})
    assert down_seconds("broker-dies", fault, named) == 7.0
    drawn = msgspec.structs.replace(fault, jitter_s=0.5)
    assert seconds_of("leader-fails", drawn, series) == pytest.approx(0.4 + 1.5 + 2.0 + 6.0)


@pytest.mark.parametrize("name", plans())
def test_clients_ask_each_at_its_own_instant_but_beside_the_java_client(name: str) -> None:
    """Check that our clients start together only in the plan with Java's clients, which start together, too.

    Otherwise a difference between Java's clients and ours could come from their different start times.
    """
    assert load_plan(name).load.clients_together is (name == "real")


@pytest.mark.parametrize("name", ["full", "controls", "real"])
def test_a_fault_comes_at_any_instant_between_two_registrations(name: str) -> None:
    """Check that faults have a random delay, which makes all instants between registrations equally likely.

    Without this delay, the fault would come equally long after a registration in every round. The delay is
    also long enough in the two series (timers divided by 60 and by 10) from which the plan "full" predicts
    recovery times.
    """
    plan = load_plan(name)
    for series in plan.series:
        period_s = DOCUMENTED_MS["registerNameServerPeriod"] / 1000 / series.timers.divisor
        for scenario in scenarios_of(plan, series):
            for fault in scenario.faults:
                drawn_s = quiet_seconds(fault, series, 1.0) - quiet_seconds(fault, series, 0.0)
                assert drawn_s == pytest.approx(max(drawn_s, period_s)), (
                    series.name,
                    scenario.name,
                    fault.case,
                )


def test_rounds_of_a_series_together_hit_every_part_between_two_registrations() -> None:
    for edge in (0.001, 0.999):
        found = [drawn_in_round(edge, block=block, blocks=6) for block in range(1, 7)]
        assert [int(6 * each) for each in found] == list(range(6))
    assert drawn_in_round(0.3, block=1, blocks=1) == 0.3


def test_clients_that_poll_together_poll_equally_often_in_every_quiet_time() -> None:
    plan = load_plan("real")
    assert plan.load.clients_together
    (quiet,) = (scenario for scenario in plan.scenarios if scenario.name == "quiet")
    for series in plan.series:
        poll_s = DOCUMENTED_MS["pollNameServerInterval"] / 1000 / series.timers.divisor
        assert (quiet.quiet_s * series.stretch / poll_s).is_integer()


#: Longest time in s for which a leader of raft mode lists a silent broker after its lease has run out.
#: The divisor that shortens RocketMQ's timers does not shorten this time.
JUDGED_S = REPORT_PERIOD_S + CLOCK_PERIOD_S


@pytest.mark.parametrize("name", [name for name in plans() if name != "smoke"])
def test_a_dead_broker_is_watched_until_the_last_client_must_have_dropped_it(name: str) -> None:
    """Check that the observation lasts long enough even for a slow design to drop the broker."""
    plan = load_plan(name)
    for series in plan.series:
        lease_s, scan_s, poll_s = (
            DOCUMENTED_MS[timer] / 1000 / series.timers.divisor
            for timer in ("brokerLease", "scanNotActiveBrokerInterval", "pollNameServerInterval")
        )
        tick_s = (series.timers.zookeeper_tick_ms or 1.5 * series.timers.election_timeout_ms / 5) / 1000
        session_s = series.timers.session_ms() / 1000 + tick_s
        for scenario in scenarios_of(plan, series):
            for fault in scenario.faults:
                if not strikes_broker(scenario.name, fault.case):
                    continue
                if REAL.keys() & set(plan.arms):
                    # Plans with RocketMQ's brokers only kill brokers. A kill closes the connections, so no
                    # lease has to run out.
                    longest_s = poll_s
                elif CASES[scenario.name][fault.case] == "kill":
                    # ZooKeeper drops a killed broker only after the broker's session has run out. Clients
                    # with watches notice this at once. Other clients notice this at their next poll.
                    longest_s = max(session_s + (0.0 if series.watches else poll_s), poll_s)
                else:
                    longest_s = max(lease_s + max(scan_s, JUDGED_S), session_s) + poll_s
                if fault.case != "stop":
                    assert down_seconds(scenario.name, fault, series) >= longest_s, (series.name, fault.case)


@pytest.mark.parametrize("name", [name for name in plans() if name != "smoke"])
def test_a_returned_broker_is_watched_until_its_clients_must_have_it_again(name: str) -> None:
    """Check that the observation after a fault is longer than a registration period plus a poll period.

    A broker that was cut off or frozen is listed again after its next registration. After that, each client
    finds the broker at the client's next poll.
    """
    plan = load_plan(name)
    for series in plan.series:
        timers = ("registerNameServerPeriod", "pollNameServerInterval")
        longest_s = sum(DOCUMENTED_MS[timer] for timer in timers) / 1000 / series.timers.divisor
        for scenario in scenarios_of(plan, series):
            for fault in scenario.faults:
                kind = CASES[scenario.name][fault.case]
                if strikes_broker(scenario.name, fault.case) and kind in ("cable", "freeze"):
                    assert fault.after_s * series.stretch > 1.2 * longest_s, (series.name, fault.case)


@pytest.mark.parametrize("name", plans())
def test_schedule_never_waits_for_a_user(name: str) -> None:
    """Check that the load has enough users even if every operation takes as long as its timeout allows."""
    load = load_plan(name).load
    for op in ("lookup", "newcomer", "send", "send_once"):
        rate_per_s = getattr(load, f"{op}_per_s")
        assert load.users(op) >= rate_per_s * load.timeout_s * (2 if op == "newcomer" else 1)
    assert load.all_users > load.sim_brokers or name == "idle"


def test_messages_need_somebody_to_read_them() -> None:
    text = (FOLDER / "full.toml").read_text().replace("consumers = 2 ", "consumers = 0 ")
    with pytest.raises(
        PlanError, match=re.escape("load.consumers=0: the scenario 'messages' needs a consumer")
    ):
        parse_plan(text)


def test_rest_is_the_last_scenario() -> None:
    text = (FOLDER / "compare.toml").read_text()
    begin, end = text.index('[[scenarios]]\nname = "rest"'), text.index("# Headline measures")
    rest = text[begin:end]
    moved = text[:begin] + text[end:]
    moved = moved.replace("[[scenarios]]", f"{rest}[[scenarios]]", 1)
    with pytest.raises(PlanError, match="scenario 'rest' must be the last one"):
        parse_plan(moved)


def test_topics_come_to_be_after_everything_else() -> None:
    """Check that the scenario with the first send to a new topic must be the last scenario.

    This scenario restarts the brokers with a setting by which they create missing topics automatically. Later
    scenarios would run with this setting.
    """
    text = SMOKE.replace("[load]", "[load]\nconsumers = 1", 1)
    faults = 'faults = [{ case = "first-send", down_s = 0.0, after_s = 1.0 }]'
    scenario = f'[[scenarios]]\nname = "new-topic"\n{faults}\n'
    assert parse_plan(f"{text}\n{scenario}").scenarios[-1].name == "new-topic"
    first = text.index("[[scenarios]]")
    with pytest.raises(PlanError, match="scenario 'new-topic' must be the last one"):
        parse_plan(text[:first] + scenario + text[first:])
    with pytest.raises(PlanError, match=r"load\.consumers=0: the scenario 'new-topic' needs a consumer"):
        parse_plan(f"{SMOKE}\n{scenario}")


def test_series_of_documented_timers_leaves_no_system_with_anothers() -> None:
    defaults = next(series.timers for series in load_plan("full").series if series.name == "defaults")
    assert (defaults.lease_ms(), defaults.session_ms(), defaults.zookeeper_tick_ms) == (120_000, 30_000, 2000)
    equal = load_plan("compare").series[0].timers
    assert equal.session_ms() == equal.lease_ms() == 2000


def test_at_most_eight_lines_with_arms_and_scenarios_of_the_plan() -> None:
    eight = "".join(a_line(name=f"line {number}") for number in range(8))
    assert len(parse_plan(SMOKE + eight).lines) == 8
    for bad, said in (
        (eight + a_line(), "9 headline measures (lines), allowed are 8"),
        (a_line(arms=["raft", "apache"]), "lines.x.arms='apache' is unknown"),
        (a_line(scenario="partition"), "lines.x.scenario='partition' is unknown"),
        (a_line(series="rest"), "lines.x.series='rest' is unknown, known are: equal"),
        (a_line(margin=0), "lines.x.margin=0 must be above 0"),
        (
            a_line(margin=0.2),
            "lines.x.margin=0.2 s is below the resolution of right_again_s, allowed from 0.25 s on",
        ),
        (a_line() + a_line(), "lines has one value twice"),
    ):
        with pytest.raises(PlanError, match=re.escape(said)):
            parse_plan(SMOKE + bad)


def test_load_lasts_as_long_as_its_scenarios() -> None:
    plan = load_plan("smoke")
    series = plan.series[0]
    faults = [fault for scenario in plan.scenarios for fault in scenario.faults]
    quiet = sum(quiet_seconds(fault, series, 0.5) for fault in faults)
    struck = sum(fault.down_s + fault.after_s for fault in faults)
    assert run_seconds(plan, series) == pytest.approx(1.5 + 0.5 + 2.0 + quiet + struck)
    stretched = msgspec.structs.replace(series, stretch=2.0, scenarios=["quiet"])
    assert run_seconds(plan, stretched) == pytest.approx(1.5 + 0.5 + 4.0)


def drawn(seed: int, rate_per_s: float, name: str = "lookup") -> list[str]:
    arrivals = Arrivals(start_ns=0, rate_per_s=rate_per_s, choices=["a", "b", "c"], chance=stream(seed, name))
    arrivals.end(10**10)
    found = []
    while (taken := arrivals.take()) is not None:
        found.append(taken[2])
    return found


def test_each_stream_draws_from_its_own_source() -> None:
    alone = drawn(7, 10.0)
    stream(7, "another").random()  # must not change the numbers of the first stream
    assert drawn(7, 10.0) == alone
    assert drawn(8, 10.0) != alone
    assert drawn(7, 10.0, "send") != alone


def test_operations_are_due_at_the_rate_whoever_takes_them_when() -> None:
    arrivals = Arrivals(start_ns=1_000, rate_per_s=10.0, choices=[None], chance=stream(1, "x"))
    arrivals.end(2 * 10**9 + 1_000)
    due = []
    while (taken := arrivals.take()) is not None:
        due.append(taken[1])
    assert len(due) in (20, 21)
    assert {later - sooner for sooner, later in itertools.pairwise(due)} <= {
        10**8,
        10**8 - 1,
        10**8 + 1,
    }
    assert 1_000 <= due[0] < 10**8 + 1_000


def test_a_rate_of_zero_is_never_due_and_a_negative_one_is_refused() -> None:
    assert drawn(1, 0.0) == []
    with pytest.raises(ValueError, match="rate_per_s=-1"):
        drawn(1, -1.0)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "divisor = 3.0",
            "divisor = 3.1",
            "timers.divisor beside independent-real, raft-real=3.1 is out of range, allowed are 0.5 to 3",
        ),
        (
            'name = "leader-fails"\nfaults = [{ case = "kill"',
            'name = "leader-fails"\nfaults = [{ case = "cable"',
            "fault of leader-fails.cable beside independent-real, raft-real='cable' is unknown",
        ),
        (
            "send_clients = 3",
            "consumers = 1\nsend_clients = 3",
            "load.consumers beside independent-real, raft-real=1 is out of range, allowed are 0 to 0",
        ),
        (
            'name = "broker-dies"\nfaults = [{ case = "kill"',
            'name = "broker-dies"\nfaults = [{ case = "freeze"',
            "fault of broker-dies.freeze beside independent-real, raft-real='freeze' is unknown, "
            "known are: kill",
        ),
    ],
)
def test_what_rocketmqs_own_brokers_cannot_do_is_refused(old: str, new: str, said: str) -> None:
    text = (FOLDER / "real.toml").read_text()
    assert old in text
    with pytest.raises(PlanError, match=re.escape(said)):
        parse_plan(text.replace(old, new, 1))
    ours = text.replace(', "independent-real"', "").replace(', "raft-real"', "").replace(old, new, 1)
    assert parse_plan(ours).arms == ["independent", "raft"], "ours can"
