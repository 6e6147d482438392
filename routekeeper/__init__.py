"""RocketMQ clients for Python: ``from routekeeper import Client, AsyncClient, Message``.

    with Client("127.0.0.1:9876") as client:
        client.producer("orders").send(Message(topic="Orders", body=b"..."))

All parts of RouteKeeper are installed below this package; in the repository they are folders beside it. The
client is loaded when a program asks for one of its names, so that a nameserver or broker does not load it.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from routekeeper.client.public import *  # noqa: F403
    from routekeeper.client.public import __all__ as __all__
else:
    # Windows and some archives drop the links to the parts: then the parts are found in the folder above.
    _FOLDER = Path(__file__).resolve().parent
    if (
        not (_FOLDER / "client" / "__init__.py").is_file()
        and (_FOLDER.parent / "client" / "__init__.py").is_file()
    ):
        __path__.append(str(_FOLDER.parent))  # noqa: F405

    _PARTS = ("remoting", "nameserver", "broker", "client", "bench")

    def __getattr__(name):
        # The import system asks here for the parts, too, before it imports them.
        if name == "__all__" or not (name.startswith("_") or name in _PARTS):
            public = import_module("routekeeper.client.public")
            if name == "__all__" or name in public.__all__:
                globals()[name] = getattr(public, name)
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__getattr__("__all__")})
