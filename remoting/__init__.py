"""RocketMQ's remoting protocol: codec and connection logic without IO; two thin drivers in ``transport``."""

if __name__ != "routekeeper.remoting":  # a second copy of a module has classes of its own
    raise ImportError(f"{__name__!r} is installed as routekeeper.remoting: import it by this name")
