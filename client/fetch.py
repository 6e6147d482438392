"""HTTP, as the nameservers' own interface and a list of nameservers need it."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import Any, Final

from .operation import Fetch, FetchReply, Unreached


class _Connection(http.client.HTTPConnection):
    """Tells a connection that was not made from one that broke."""

    def connect(self) -> None:
        try:
            super().connect()
        except OSError as error:
            raise Unreached(error.strerror or str(error)) from None


class _Handler(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, request)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves a redirection as the reply: a token goes only where its owner sent it."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


#: Nameservers are asked themselves: a proxy of the environment would be told tokens, and may see other hosts.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Handler(), _NoRedirects())


def http_fetch(fetch: Fetch) -> FetchReply:
    """Ask over HTTP; a status other than 200 is a reply, not an error, a redirection too.

    Raises:
        OSError: If there is no reply, or one above the limit; Unreached if nothing was sent.
        ValueError: If the URL is none or not HTTP.
    """
    url = fetch.url
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is no HTTP address")
    request = urllib.request.Request(url, fetch.body, dict(fetch.headers), method=fetch.method)
    try:
        with _OPENER.open(request, timeout=fetch.timeout_s) as reply:
            data = reply.read(fetch.reply_max + 1)
            status = reply.status
    except urllib.error.HTTPError as error:
        with error:
            data = error.read(fetch.reply_max + 1)
        status = error.code
    except urllib.error.URLError as error:
        raise error.reason if isinstance(error.reason, OSError) else error from None
    except http.client.InvalidURL as error:
        raise ValueError(f"{url!r} is no HTTP address: {error}") from None
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP reply: {type(error).__name__} {error}") from None
    if len(data) > fetch.reply_max:
        raise OSError(f"reply of {url} is above {fetch.reply_max} bytes")
    return FetchReply(status, data)
