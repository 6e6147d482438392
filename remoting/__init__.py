"""RocketMQ's remoting protocol: codec and connection logic without I/O; two drivers in ``transport``."""

if __name__ != "routekeeper.remoting":  # a copy under another name would define every class a second time
    raise ImportError(f"{__name__!r} is installed as routekeeper.remoting: import it by this name")
