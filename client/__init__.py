"""Producers, consumers and administration. Users import these classes from :mod:`routekeeper`."""

if __name__ != "routekeeper.client":  # imported under another name, the package would define each class twice
    raise ImportError(f"{__name__!r} is installed as routekeeper.client: import it by this name")
