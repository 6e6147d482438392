"""HTTP requests to the servers of a run, which ignore an HTTP proxy in the environment's variables."""

import urllib.request
from typing import Final

OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opener that works like ``urllib.request.urlopen``, but always connects directly, without an HTTP proxy."""
