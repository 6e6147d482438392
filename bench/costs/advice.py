"""Costs of an installation and its minutes a year with wrong answers, computed from published unit costs.

This module does no I/O and reads no clock.

The text shows rounded numbers, and the calculation uses these rounded numbers. So a reader who multiplies the
shown numbers gets the shown totals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from routekeeper.bench.costs.fit import lookups_after_changes, told_of_the_mixture
from routekeeper.bench.costs.units import (
    QUANTITIES,
    QUANTITY_WORDS,
    STANDING,
    WORDS,
    Costs,
    Design,
    Quantity,
    Unit,
)

MINUTES_A_DAY: Final = 1440
DAYS_A_YEAR: Final = 365
MONTHS_A_YEAR: Final = 12
SERVERS: Final = 3
#: Seconds between two polls of a client (RocketMQ's pollNameServerInterval), and a broker's lease in seconds.
POLL_S: Final = 30.0
LEASE_S: Final = 120.0
#: Time in s from a server's restart until a new client has right routes, with RocketMQ's own timers. The
#: published comparison predicts it from runs with shorter timers (docs/results/full/undivided.csv).
RESTART_S: Final[dict[Design, float]] = {"independent": 25.0, "raft": 1.1, "zookeeper": 1.5}
#: Maps each design to the way in which its clients learn of changes: by polling or by watching.
CLIENTS: Final[dict[Design, Unit]] = {
    "independent": "polling",
    "raft": "polling",
    "zookeeper": "watching",
}
DESIGN_WORDS: Final[dict[Design, str]] = {
    "independent": "independent",
    "raft": "raft",
    "zookeeper": "ZooKeeper",
}


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """The size of an installation, the number of its changes, and the number and length of its faults.

    Each broker has all topics. Each client uses one topic.
    """

    brokers: int
    topics: int
    clients: int
    changes_a_day: float
    restarts_a_month: float
    rtt_ms: float
    partition_minutes_a_year: float
    partition_lasts_s: float


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the calculation: ``unit_cost`` times ``number`` gives ``product``.

    Attributes:
        minutes: Third factor of the product. 0 means that there is no third factor.
        beyond: Text with the largest number of units that was measured. The text is empty if ``number`` is
            not larger than this number.
    """

    name: str
    unit_cost: float
    per: str
    number: float
    minutes: int
    product: float
    beyond: str = ""
    assumes: str = ""

    def text(self, unit: str) -> str:
        times = f" x {self.minutes:,} minutes" if self.minutes else ""
        beyond = f" (beyond what was measured: {self.beyond})" if self.beyond else ""
        cost = f"{self.name}: {self.unit_cost:.4g} {self.per} x {_number(self.number)}{times}"
        return f"{cost} = {self.product:,.3f} {unit}{beyond}"


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of a design's lines (:class:`Product`) for one quantity, such as CPU time.

    Attributes:
        nothing: Units (such as topics) whose cost counts as 0, because it was not larger than the noise of
            the measurement.
    """

    name: str
    unit: str
    products: list[Product]
    nothing: list[str]
    total: float


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The whole calculation for an installation.

    Attributes:
        costs: Costs by design and quantity.
        answers: Minutes a year with wrong or missing answers, by design.
        decides: Two texts: the first is about CPU costs, the second about wrong answers. Each text shows the
            line of the calculation that differs most between the designs.
        mixture: Text on the accuracy of predictions for mixtures (brokers, topics and clients together).
        beyond: Warnings about inputs that are larger than any measured number, such as the number of brokers.
    """

    made: str
    assumptions: list[str]
    mixture: list[str]
    beyond: list[str]
    costs: dict[Design, dict[Quantity, Total]]
    answers: dict[Design, Total]
    decides: dict[str, str]


def advise(costs: Costs, of: Installation) -> Advice:
    """Return the calculation for an installation, for each design whose costs were measured."""
    by_design = {
        design: {
            quantity: _total(
                QUANTITY_WORDS[quantity][0],
                f"{QUANTITY_WORDS[quantity][2]}{'' if quantity == STANDING else ' a day'}",
                _products(costs, design, of, quantity),
            )
            for quantity in QUANTITIES
            if quantity in found.alone
        }
        for design, found in costs.designs.items()
    }
    answers = {design: _answers(design, of) for design in costs.designs}
    beyond = dict.fromkeys(
        f"{product.name}: {_number(product.number)}, measured {product.beyond}"
        for totals in by_design.values()
        for total in totals.values()
        for product in total.products
        if product.beyond
    )
    return Advice(
        made=_made(costs),
        assumptions=_assumptions(of, costs.brokers_in_an_answer),
        mixture=told_of_the_mixture(costs),
        beyond=list(beyond),
        costs=by_design,
        answers=answers,
        decides={
            "cost": _decides({design: totals["cpu_s"] for design, totals in by_design.items()}),
            "answers": _decides(answers),
        },
    )


def _total(name: str, unit: str, products: Iterable[Product]) -> Total:
    found = list(products)
    kept = [product for product in found if product.unit_cost]
    return Total(
        name=name,
        unit=unit,
        products=kept,
        nothing=[product.name for product in found if not product.unit_cost],
        total=round(sum(product.product for product in kept), 3),
    )


def _made(costs: Costs) -> str:
    trial = "; short timers to try the program, so these figures mean nothing" if costs.quick else ""
    return f"unit costs of {costs.date}, {costs.machine.cpu}, {costs.machine.cores} cores{trial}"


def _assumptions(of: Installation, in_an_answer: int) -> list[str]:
    return [
        "three servers, RocketMQ's own timers: registrations and polls every 30 s, leases of 120 s",
        "costs were measured with all servers on one machine; the round-trip time affects the answers only",
        f"the costs of a client and of a look-up are for {in_an_answer} brokers in each answer",
        "each broker has each topic; each client uses one topic, and clients are spread evenly over topics",
        "clients of independent and raft poll every 30 s; clients of ZooKeeper watch, and read a route again "
        "after a change",
        "a restart restarts one server; an independent server comes back empty and gets its registrations "
        "again, a third of those on the three servers",
        f"a partition lasts {_number(of.partition_lasts_s)} s (--partition-lasts-s); minutes are for an "
        "affected client: it uses the changed topic, asks the restarted server, or is on the smaller side",
    ]


def _products(costs: Costs, design: Design, of: Installation, quantity: Quantity) -> Iterator[Product]:
    """Yield one line for each unit (such as a broker): its cost in a design, and the number of these units.

    Omit units whose cost was not measured.
    """
    found = costs.designs[design]
    _, scale, unit = QUANTITY_WORDS[quantity]
    held = quantity == STANDING
    minutes = 0 if held else MINUTES_A_DAY
    per = f"{unit} each" if held else f"{unit} a minute"
    alone = found.resident_alone_bytes if held else found.alone[quantity]
    yield _product("the servers alone", alone / scale, per, 1, minutes)
    clients = CLIENTS[design]
    answers_beyond = ""
    if of.clients and of.brokers > costs.brokers_in_an_answer:
        answers_beyond = f"with up to {costs.brokers_in_an_answer} brokers in an answer"
    changes_max = costs.changes_a_minute_max * MINUTES_A_DAY
    numbers: list[tuple[Unit, float, str]] = [
        ("broker", of.brokers, ""),
        ("topic", of.brokers * of.topics, ""),
        (clients, of.clients, answers_beyond),
    ]
    for name, number, beyond in numbers:
        if (slope := found.slopes[name].get(quantity)) is not None:
            beyond = _beyond(number, slope.sizes) or beyond
            yield _product(WORDS[name], slope.cost / scale, per, number, minutes, beyond=beyond)
    if held:
        return
    per = f"{unit} each"
    lookups = lookups_after_changes(
        changes=of.changes_a_day, watching=of.clients if clients == "watching" else 0, topics=of.topics
    )
    restarted = of.restarts_a_month * MONTHS_A_YEAR / DAYS_A_YEAR * of.brokers * of.topics / SERVERS
    events: list[tuple[Unit, float]] = [
        ("change", of.changes_a_day),
        ("lookup", lookups),
        ("registration", restarted if design == "independent" else 0.0),
    ]
    for name, number in events:
        if (slope := found.slopes[name].get(quantity)) is not None and (number or name == "change"):
            beyond = f"up to {_number(changes_max)}" if of.changes_a_day > changes_max else ""
            yield _product(WORDS[name], slope.cost / scale, per, number, 0, beyond=beyond)


def _product(
    name: str,
    unit_cost: float,
    per: str,
    number: float,
    minutes: int,
    *,
    beyond: str = "",
    assumes: str = "",
) -> Product:
    """Return one line of the calculation.

    The function rounds the numbers as they are printed, and then multiplies them. So a reader can check the
    line.
    """
    rounded, times = float(f"{unit_cost:.4g}"), float(_number(number).replace(",", ""))
    return Product(
        name=name,
        unit_cost=rounded,
        per=per,
        number=times,
        minutes=minutes,
        product=round(rounded * times * (minutes or 1), 3),
        beyond=beyond,
        assumes=assumes,
    )


def _number(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:,.6g}"


def _beyond(number: float, sizes: Sequence[float]) -> str:
    return f"up to {_number(max(sizes))}" if number > max(sizes) else ""


def _answers(design: Design, of: Installation) -> Total:
    """Return the minutes a year in which a client has a wrong route or no route after a change or a fault."""
    rtt_s = of.rtt_ms / 1000
    changes = of.changes_a_day * DAYS_A_YEAR
    if CLIENTS[design] == "watching":
        late_s, late = 2 * rtt_s, "a watching client knows of a change after two round trips"
    elif design == "raft":
        late_s, late = POLL_S / 2 + rtt_s, "a polling client knows of a change half a period late, on average"
    else:
        late_s, late = POLL_S / 2, "a polling client knows of a change half a period late, on average"
    restarts = of.restarts_a_month * MONTHS_A_YEAR
    if design == "independent":
        share = min(1.0, LEASE_S / of.partition_lasts_s)
        cut = "each side lists brokers of the other until their leases of 120 s run out"
    else:
        share, cut = 1.0, "the smaller side has old answers, or none, until the partition ends"
    return _total(
        "wrong or missing answers",
        "minutes a year",
        [
            _minutes("old after a change", late_s, changes, late),
            _minutes(
                "missing after a restart",
                RESTART_S[design],
                restarts,
                "an empty server waits for the brokers' next registrations"
                if design == "independent"
                else "a restarted server reads its table from its disk and gets the rest from the others",
            ),
            _minutes("wrong or missing in a partition", 60 * share, of.partition_minutes_a_year, cut),
        ],
    )


def _minutes(name: str, seconds: float, number: float, assumes: str) -> Product:
    return _product(name, seconds / 60, "minutes", number, 0, assumes=assumes)


def _decides(totals: Mapping[Design, Total]) -> str:
    """Return the values and assumptions of the :class:`Product` that differs most between the designs."""
    by_name: dict[str, dict[Design, Product]] = {}
    for design, total in totals.items():
        for product in total.products:
            by_name.setdefault(product.name, {})[design] = product
    spreads = {
        name: max(found[design].product if design in found else 0.0 for design in totals)
        - min(found[design].product if design in found else 0.0 for design in totals)
        for name, found in by_name.items()
    }
    name = max(spreads, key=lambda each: spreads[each])
    found = by_name[name]
    shown = ", ".join(
        f"{DESIGN_WORDS[design]} {found[design].product if design in found else 0.0:,.3f}"
        for design in totals
    )
    assumptions = dict.fromkeys(product.assumes for product in found.values() if product.assumes)
    because = f" ({'; '.join(assumptions)})" if assumptions else ""
    return f"{name}: {shown} {next(iter(totals.values())).unit}{because}"


def lines(advice: Advice) -> Iterator[str]:
    """Yield the costs of an installation, with their calculation, as lines of text."""
    yield f"From {advice.made}."
    for assumption in advice.assumptions:
        yield f"- assumed: {assumption}"
    for told in advice.mixture:
        yield f"- {told}"
    for beyond in advice.beyond:
        yield f"- beyond what was measured: {beyond}"
    for design, totals in advice.costs.items():
        yield ""
        yield DESIGN_WORDS[design]
        for total in [*totals.values(), advice.answers[design]]:
            yield f"  {total.name}"
            for product in total.products:
                yield f"    {product.text(total.unit)}"
            if total.nothing:
                yield f"    no cost above the residuals: {', '.join(total.nothing)}"
            yield f"    total = {total.total:,.3f} {total.unit}"
    yield ""
    yield f"CPU is decided by: {advice.decides['cost']}"
    yield f"Answers are decided by: {advice.decides['answers']}"
