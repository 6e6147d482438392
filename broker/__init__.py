"""A message broker that speaks RocketMQ's protocol.

Here belongs the program and its settings. Everything else has a folder.

    __main__.py            the program: arguments, settings, logging, signals
    command_line.py        flags
    config.py              settings, with RocketMQ's names and defaults
    foreign_settings.py    settings that this broker cannot honour
    errors.py              exceptions
    store/, tables/        messages on disk; the broker's other state
    requests/, server/     handlers of requests; the process
"""

if __name__ != "routekeeper.broker":  # a second copy of a module has classes of its own
    raise ImportError(f"{__name__!r} is installed as routekeeper.broker: import it by this name")
