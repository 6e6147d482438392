if __name__ != "routekeeper.broker":  # a second copy of a module has classes of its own
    raise ImportError(f"{__name__!r} is installed as routekeeper.broker: import it by this name")
