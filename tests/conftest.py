"""Settings for every test."""

import os

from hypothesis import HealthCheck, settings

# The same examples every time: a red run is the change's fault. ROUTEKEEPER_EXPLORE=1 looks for new ones.
# No deadlines: how long an example takes says more about the machine than about the code.
settings.register_profile(
    "routekeeper",
    deadline=None,
    derandomize=not os.environ.get("ROUTEKEEPER_EXPLORE"),
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("routekeeper")
