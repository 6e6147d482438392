"""The newest published unit costs, read from a file that is installed with the program."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from routekeeper.bench.costs.units import Costs
from routekeeper.bench.plan import PlanError
from routekeeper.remoting.files import read_regular

PUBLISHED: Final = Path(__file__).with_name("costs.json")
SIZE_MAX: Final = 4 * 1024 * 1024


def load_costs(path: Path | None) -> Costs:
    """Return the unit costs in a file, or the published unit costs if ``path`` is None.

    Raises:
        PlanError: If the file has no unit costs.
    """
    if path is None and not PUBLISHED.is_file():
        raise PlanError(
            "no unit costs are published with this version: name a file of mqbench costs by --from"
        )
    flag = f"--from {path}" if path is not None else str(PUBLISHED)
    try:
        return msgspec.json.decode(read_regular(path or PUBLISHED, size_max=SIZE_MAX), type=Costs)
    except (OSError, msgspec.MsgspecError) as error:
        raise PlanError(f"{flag}: no result of mqbench costs: {error}") from None
