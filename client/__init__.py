"""Producers, consumers and administration; users import :mod:`routekeeper`.

Modules of this package name each other relative to it: where a module of the user's own is called ``client``,
:mod:`routekeeper` loads this package under another name.
"""
