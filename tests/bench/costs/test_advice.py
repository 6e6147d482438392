"""``mqbench advise`` prints products and totals that follow from the printed factors.

Its text also names sizes that were not measured, and assumptions that decide the result.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routekeeper.bench.__main__ import main
from routekeeper.bench.costs.units import Costs
from tests.bench.costs.rows import CPU_S, invented

NUMBERS = {
    "--brokers": "12",
    "--topics": "3",
    "--clients": "20",
    "--changes-a-day": "50",
    "--restarts-a-month": "4",
    "--rtt-ms": "2",
    "--partition-minutes-a-year": "30",
}
LINE = re.compile(
    r"^    (?P<name>[^:=]+): (?P<cost>\S+) \D+ x (?P<number>[\d,.e+]+)"
    r"(?: x (?P<minutes>[\d,]+) minutes)? = (?P<product>[\d,.]+) "
)
TOTAL = re.compile(r"^    total = (?P<total>[\d,.]+) ")


@pytest.fixture
def costs_file(tmp_path: Path) -> Path:
    return write(tmp_path, invented())


def write(folder: Path, costs: Costs) -> Path:
    path = folder / "costs.json"
    path.write_bytes(msgspec.json.encode(costs))
    return path


def words(path: Path, **changed: str) -> list[str]:
    numbers = NUMBERS | {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
    return ["advise", "--from", str(path), *(word for pair in numbers.items() for word in pair)]


def said(capsys: pytest.CaptureFixture[str], argv: list[str]) -> str:
    assert main(argv) == 0
    return capsys.readouterr().out


def number(text: str) -> float:
    return float(text.replace(",", ""))


def test_products_and_totals_are_those_of_the_printed_numbers(
    costs_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, words(costs_file))
    by_hand, products, totals = 0.0, 0, 0
    for line in text.splitlines():
        if (product := LINE.match(line)) is not None:
            minutes = number(product["minutes"] or "1")
            hand = number(product["cost"]) * number(product["number"]) * minutes
            assert number(product["product"]) == pytest.approx(hand, abs=0.00051), line
            by_hand += number(product["product"])
            products += 1
        elif (total := TOTAL.match(line)) is not None:
            assert number(total["total"]) == pytest.approx(by_hand, abs=1e-6), line
            by_hand = 0.0
            totals += 1
    assert totals == 3 * 6, "five quantities and the answers of three designs"
    assert products > totals
    assert "no cost above the residuals: " in text


def test_the_total_is_what_the_units_cost_times_their_numbers(
    costs_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found: dict[str, Any] = json.loads(said(capsys, [*words(costs_file), "--json"]))
    raft = sum(each["product"] for each in found["costs"]["raft"]["cpu_s"]["products"])
    a_minute = CPU_S["alone"] + 12 * CPU_S["broker"] + 36 * CPU_S["topic"] + 20 * CPU_S["polling"]
    assert raft == pytest.approx(1440 * a_minute + 50 * CPU_S["change"], abs=0.05)
    zookeeper = sum(each["product"] for each in found["costs"]["zookeeper"]["cpu_s"]["products"])
    a_minute += 20 * (CPU_S["watching"] - CPU_S["polling"])
    changes = 50 * (CPU_S["change"] + 20 / 3 * CPU_S["lookup"])
    assert zookeeper == pytest.approx(1440 * a_minute + changes, abs=0.05)


def test_an_input_outside_the_measured_sizes_is_said_to_be_beyond(
    costs_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "beyond what was measured" not in said(capsys, words(costs_file))
    text = said(capsys, words(costs_file, clients="5000"))
    assert "beyond what was measured: a client at rest that polls: 5,000, measured up to 20" in text
    text = said(capsys, words(costs_file, brokers="300"))
    assert "beyond what was measured: a broker at rest: 300, measured up to 16" in text
    assert "measured with up to 12 brokers in an answer" in text
    text = said(capsys, words(costs_file, changes_a_day="99000000"))
    assert "beyond what was measured: a route change: 99,000,000, measured up to " in text


def test_answers_say_which_assumption_decides(costs_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, words(costs_file, restarts_a_month="0", partition_minutes_a_year="0"))
    assert "Answers are decided by: old after a change" in text
    assert "half a period late" in text
    text = said(capsys, words(costs_file, changes_a_day="0", restarts_a_month="300"))
    assert "Answers are decided by: missing after a restart" in text
    text = said(capsys, words(costs_file, changes_a_day="0", partition_minutes_a_year="9000"))
    assert "Answers are decided by: wrong or missing in a partition" in text


def test_a_longer_way_between_servers_makes_answers_older(
    costs_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def old(rtt_ms: str) -> dict[str, float]:
        found = json.loads(said(capsys, [*words(costs_file, rtt_ms=rtt_ms), "--json"]))
        return {design: total["products"][0]["product"] for design, total in found["answers"].items()}

    near, far = old("1"), old("1000")
    assert near["independent"] == far["independent"]
    assert near["raft"] < far["raft"]
    assert near["zookeeper"] < far["zookeeper"]


def test_a_trial_run_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, msgspec.structs.replace(invented(), quick=True))
    assert "these figures mean nothing" in said(capsys, words(path))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param(["advise", "--brokers", "3"], "advise needs --topics, --clients,", id="numbers missing"),
        pytest.param(
            ["advise", "out", "--brokers", "3"],
            "with a report's folder, leave all other flags out",
            id="both",
        ),
        pytest.param(
            ["advise", "out", "--partition-lasts-s", "60"],
            "with a report's folder, leave all other flags out",
            id="length of a partition",
        ),
        pytest.param(
            ["advise", "--from", "no-such-file", *(w for pair in NUMBERS.items() for w in pair)],
            "--from no-such-file: no result of mqbench costs",
            id="no file",
        ),
    ],
)
def test_bad_input_is_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("value", ["-1", "many", "2.5", "nan"])
def test_a_number_of_brokers_is_whole_and_positive(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["advise", f"--brokers={value}"])
    assert f"{value} is not a whole number from 1 to 100,000" in capsys.readouterr().err
