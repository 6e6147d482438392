"""A message broker that speaks RocketMQ's protocol.

This folder holds the program and its settings. All other code is in subfolders.

    __main__.py            the program: arguments, settings, logging, signals
    command_line.py        flags
    config.py              settings, with RocketMQ's names and defaults
    foreign_settings.py    RocketMQ's settings that this broker does not support
    errors.py              exceptions
    store/, tables/        messages on disk; all other state of the broker
    requests/, server/     handlers of requests; the process that runs them
"""

# Refuse any other name: under a second name Python would load each class again, and `isinstance` would fail.
if __name__ != "routekeeper.broker":
    raise ImportError(f"{__name__!r} is installed as routekeeper.broker: import it by this name")
