"""Producers, consumers and administration. Users import these classes from :mod:`routekeeper`."""

# If the package had a second name, Python would load each class twice.
if __name__ != "routekeeper.client":
    raise ImportError(f"{__name__!r} is installed as routekeeper.client: import it by this name")
