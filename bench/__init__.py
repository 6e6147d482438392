# Loading this package under a second name would define every class twice, and isinstance would fail.
if __name__ != "routekeeper.bench":
    raise ImportError(f"{__name__!r} is installed as routekeeper.bench: import it by this name")
