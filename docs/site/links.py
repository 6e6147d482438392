"""A hook of mkdocs that replaces links out of ``docs/`` by file names.

The targets of such links do not exist on the site.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?:\.\./)+[^)#\s]*)(#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page's text; a link out of ``docs/`` becomes the link's text and the path of its target."""
    folder = posixpath.dirname(page.file.src_uri)

    def outside(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, link[3]))
        if target.startswith("docs/"):
            return link[0]
        name = f"`{target}`"
        return link[2] if target in link[2] else f"{link[2]} ({name} in the repository)"

    return _LINK.sub(outside, markdown)
