"""RocketMQ clients for Python: ``from routekeeper import Client, AsyncClient, Message``.

    with Client("127.0.0.1:9876") as client:
        client.producer("orders").send(Message(topic="Orders", body=b"..."))

The names below come from the packages beside this one. A program may well have a module of its own called
``client``, which hides ours: then ours is loaded as ``routekeeper.client``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from client.public import *  # noqa: F403
    from client.public import __all__ as __all__
else:

    def _client_package() -> str:
        """Return the name under which the client's modules can be imported."""
        ours = Path(__file__).resolve().parent.parent / "client" / "__init__.py"
        try:
            found = find_spec("client")
        except ValueError:  # something in sys.modules that came without a spec: not ours
            found = None
        if found is not None and found.origin is not None and Path(found.origin).resolve() == ours:
            return "client"
        name = f"{__name__}.client"
        if name not in sys.modules:
            spec = spec_from_file_location(name, ours, submodule_search_locations=[str(ours.parent)])
            assert isinstance(spec, ModuleSpec)
            assert spec.loader is not None
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        return name

    _public = import_module(f"{_client_package()}.public")
    __all__ = list(_public.__all__)
    globals().update({_name: getattr(_public, _name) for _name in __all__})
