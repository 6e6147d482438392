"""Producers, consumers and administration; users import :mod:`routekeeper`."""

if __name__ != "routekeeper.client":  # a second copy of a module has classes of its own
    raise ImportError(f"{__name__!r} is installed as routekeeper.client: import it by this name")
