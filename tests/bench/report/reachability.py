"""Planted partitions, and planted nameservers that disagree.

In a partition, an answer may be right for clients of one side, and wrong for clients of the other side.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from routekeeper.bench.links import between_groups
from tests.bench.report.planted import PlantedRun

ALONE: Final = ["nameserver-0", "broker-0", "side-a"]
OTHERS: Final = ["nameserver-1", "nameserver-2", "broker-1", "broker-2", "side-b"]
CUT: Final = [list(direction) for direction in between_groups([ALONE, OTHERS])]
OF_SIDE_B: Final = "sim-101-changing"
"""Topic of simulated broker 101, which is on the same side of the partition as the clients of side b."""


def tenths(begin: float, end: float) -> list[float]:
    """Split a time span in s into tenths of a second, and return the middle instant of each tenth."""
    return [begin + 0.05 + 0.1 * number for number in range(round((end - begin) * 10))]


def parted(root: Path) -> None:
    """Write the events of a run with a partition from 5 to 10 s.

    The partition separates side a, nameserver 0 and broker 0 from everything else.

    Answers to clients of side a:

    - For the first 2 s the answers list brokers 1 and 2, and for the first 1 s simulated broker 101. Side a
      cannot reach these brokers, so these answers are wrong.
    - After that the answers do not list these brokers, which is right. Brokers 1 and 2 are listed again from
      0.5 s after the end of the partition on.

    Answers to clients of side b:

    - For the first 3 s the answers list broker 0, which side b cannot reach.
    - After that the answers lack broker 2 for 1 s, and one answer lacks broker 101. Side b can reach both
      brokers, so these answers are wrong.

    Brokers of side a register again when the partition ends. Brokers of side b register again 0.7 s after the
    partition begins.
    """
    with PlantedRun(root, scenario="parted") as run:
        run.fault(5.0, 15.0, case="1-2", healed=10.0, cut=CUT, targets=["nameserver-0"])
        for due in tenths(0.0, 15.0):
            side_a = [0] if 7 < due < 10.5 else [0, 1, 2]
            side_b = [1] if 8 < due < 9 else [1, 2] if 9 < due < 10 else [0, 1, 2]
            run.op("lookup", due, 0.001, brokers=side_a, client_side="side-a")
            run.op("lookup", due, 0.001, brokers=side_b, client_side="side-b")
            run.op("announce", due, 10 - due if 5 < due < 10 else 0.001, user=1, client_side="side-a")
            run.op("announce", due, 5.7 - due if 5 < due < 5.7 else 0.001, user=2, client_side="side-b")
        for due in (*tenths(4.0, 6.0), 6.05, 8.05):
            told = {"brokers": [101]} if due < 6 else {"outcome": "absent", "brokers": None}
            run.op("lookup", due, 0.001, topic=OF_SIDE_B, client_side="side-a", **told)
        run.op("lookup", 6.5, 0.001, "absent", topic=OF_SIDE_B, client_side="side-b")


def lost_again(root: Path) -> None:
    """Write the events of a run with two faults.

    Only during the first fault, clients of side b cannot reach broker 0. Broker 0 is listed again 1 s after
    the first fault has ended. In the second fault, answers to side b lack broker 0 for 2 s, although side b
    can reach every broker.
    """
    with PlantedRun(root, scenario="lost-again") as run:
        run.fault(3.0, 9.0, case="1-2", healed=6.0, cut=CUT, targets=["nameserver-0"], since=1.0)
        run.fault(11.0, 20.0, case="1-1-1", healed=15.0, targets=["nameserver-1"], since=9.0, n=1)
        for due in tenths(0.0, 20.0):
            lacks = 4 < due < 7 or 12 < due < 14
            run.op("lookup", due, 0.001, brokers=[1, 2] if lacks else [0, 1, 2], client_side="side-b")


def two_kinds_of_disagreement(root: Path) -> None:
    """Write the events of a run in which the answers of two nameservers differ.

    From 6 to 7.5 s, one answer lacks a broker. From 6 to 9 s, the numbers of queues differ.
    """
    with PlantedRun(root, scenario="two-kinds") as run:
        run.fault(5.0, 15.0, case="1-2", healed=9.0, cut=CUT, targets=["nameserver-0"])
        for index in range(2):
            run.view(0.0, index=index)
            run.view(0.0, index=index, topic="sim-100-changing", brokers=[100], version=1)
        run.view(6.0, index=0, unseen=6.0, brokers=[0, 1])
        run.view(7.5, index=0, unseen=7.5)
        for index, at in ((1, 6.0), (0, 9.0)):
            run.view(at, index=index, unseen=at, topic="sim-100-changing", brokers=[100], version=2)
        for index in range(2):
            for topic in ("t", "sim-100-changing"):
                run.view(14.0, "end", index=index, topic=topic)


def servers_without_an_answer(root: Path) -> None:
    """Write the events of a run in which one nameserver is silent, and another one refuses look-ups.

    The refused look-ups are of two topics. At least one server gives no answer from 6 to 9.5 s.
    """
    with PlantedRun(root, scenario="no-answer") as run:
        run.fault(5.0, 15.0, case="1-2", healed=9.0, cut=CUT, targets=["nameserver-0"])
        for index in range(3):
            for topic in ("t", "u"):
                run.view(0.0, index=index, topic=topic)
        for index, topic, state, begin, end in (
            (0, "t", "silent", 6.0, 8.0),
            (1, "t", "refused", 7.0, 9.0),
            (1, "u", "refused", 8.5, 9.5),
            (2, "u", "absent", 10.0, 12.0),
        ):
            run.view(begin, state, index=index, topic=topic, unseen=begin - 0.03)
            run.view(end, index=index, topic=topic, unseen=end)
        for index in range(3):
            for topic in ("t", "u"):
                run.view(14.0, "end", index=index, topic=topic)


PLANTS: Final = (parted, lost_again, two_kinds_of_disagreement, servers_without_an_answer)
