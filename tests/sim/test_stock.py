"""Tests that the published PySyncObj loses acknowledged commands, as docs/pysyncobj-defects.md claims.

If a later release loses none, these tests fail, and the page must be corrected.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from .stock import run_stock

pytestmark = [pytest.mark.computes]


class Shown(Exception):
    """Raised if a known defect of the library has appeared again, as the tests expect."""


WHERE: dict[str, dict[str, Any]] = {
    "D1": {
        "seed": 18,
        "faults": ("kill", "kill leader", "reset", "slow"),
        "compact_entries": 10**9,
        "batch_bytes": 150,
    },
    "D2": {"seed": 15},
    "D14": {"seed": 24},
}
"""For each defect, the arguments of a run that shows the defect.

The text of the raised :class:`Shown` lists the wrong steps of the library and their effects.
"""


@pytest.mark.xfail(
    raises=Shown,
    strict=True,
    reason="pysyncobj 0.3.17; once this passes, the code that docs/pysyncobj-defects.md names for it is to "
    "be reconsidered",
)
@pytest.mark.parametrize("name", WHERE)
def test_the_published_library_loses_nothing_by(name: str) -> None:
    """Check that the defect ``name`` of the library has no effect. This test is expected to fail.

    It fails with :class:`Shown` if a run shows a wrong step of the library and its effect. The
    effect is the loss of an acknowledged command, or that the members' states differ.
    """
    violations = run_stock(**WHERE[name]).violations
    done = [line for line in violations if line.split()[1] == f"{name}:"]
    come = [
        line
        for line in violations
        if line.split()[1] in ("lost:", "diverged:") and re.search(rf"\b{name} of ", line)
    ]
    if done and come:
        raise Shown("\n".join((*done[:3], *come[:3])))


@pytest.mark.parametrize("members", [3, 5])
def test_without_faults_the_published_library_works_in_the_simulator(members: int) -> None:
    """The library works in the simulator without faults.

    So its wrong steps in other runs are not caused by the simulation.
    """
    result = run_stock(1, members=members, faults=(), compact_entries=60, batch_bytes=2**16)
    assert not [line for line in result.violations if line.split()[1] in ("lost:", "diverged:", "stuck:")]
    assert result.count["acknowledged"] > 100


@pytest.mark.slow
def test_a_seed_of_the_published_library_repeats_exactly() -> None:
    first, second = (run_stock(5, seconds=4.0) for _ in range(2))
    assert first.trace == second.trace
    assert first.violations == second.violations
