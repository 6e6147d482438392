"""HTTP requests to the servers of a run, sent directly even if the environment names an HTTP proxy."""

import urllib.request
from typing import Final

OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opener that works like ``urllib.request.urlopen``, but always connects directly, without an HTTP proxy."""
