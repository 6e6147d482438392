"""Producers, consumers and administration. Users import these classes from :mod:`routekeeper`."""

# Refuse every other name. If programs imported this package under two names, Python would make two different
# classes from each class, and ``isinstance`` would fail.
if __name__ != "routekeeper.client":
    raise ImportError(f"{__name__!r} is installed as routekeeper.client: import it by this name")
