"""HTTP to servers of a run, without a proxy from the environment."""

import urllib.request
from typing import Final

OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens a URL as ``urllib.request.urlopen`` does, from the server itself."""
