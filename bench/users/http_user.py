"""A Locust user that asks a nameserver for routes over HTTP, on a connection that it keeps open."""

from __future__ import annotations

import http.client

from routekeeper.bench.users._arguments import addresses
from routekeeper.bench.users._common import Failed, Missing, ScheduledUser, http_addresses

_OK = 200
_NOT_FOUND = 404


class HttpUser(ScheduledUser):
    """An HTTP client that changes to the next nameserver when a request fails."""

    request_type = "HTTP"
    name = "route"

    def begin(self) -> None:
        self.addrs = addresses(self.options.http_addrs)
        self.connection: http.client.HTTPConnection | None = None

    def end(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def operate(self, topic: str, due_ns: int) -> int:
        if not self.addrs:
            client = self.new_client()
            try:
                self.addrs = self.rotated(http_addresses(client))
            finally:
                client.close()
        try:
            return self.ask(f"/v1/topics/{topic}/route")
        except (OSError, http.client.HTTPException, Failed) as error:
            self.end()
            self.addrs = self.addrs[1:] + self.addrs[:1]
            if isinstance(error, http.client.HTTPException):
                raise Failed(f"{type(error).__name__}: {error}") from error
            raise

    def ask(self, path: str) -> int:
        if self.connection is None:
            self.connection = http.client.HTTPConnection(
                self.addrs[0], timeout=self.options.request_timeout_s
            )
        self.connection.request("GET", path)
        reply = self.connection.getresponse()
        body = reply.read()
        if reply.status == _NOT_FOUND:
            raise Missing(f"HTTP {reply.status}")
        if reply.status != _OK:
            raise Failed(f"HTTP {reply.status}")
        return len(body)
