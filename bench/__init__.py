if __name__ != "routekeeper.bench":  # a second copy of a module has classes of its own
    raise ImportError(f"{__name__!r} is installed as routekeeper.bench: import it by this name")
