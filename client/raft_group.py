"""Operations for an administrator's HTTP requests to a raft group of nameservers. They do no I/O.

Only the leader makes changes. Any other member refuses a change, and its answer contains the leader's raft
address. To find the leader's HTTP address, the client asks the nameservers at the given HTTP addresses for
their raft addresses. If no nameserver has the leader's raft address, the client uses the leader's HTTP
address from the refusal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from routekeeper.remoting.addresses import is_loopback, same_address
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.lenient import ANSWER, as_object, loads
from routekeeper.remoting.logs import shortened

from .errors import NotApplied, OutcomeUnknown
from .operation import Fetch, FetchReply, Operation, Sleep, Unreached, read_clock

#: Largest snapshot that the client accepts over HTTP, in bytes.
SNAPSHOT_MAX: Final = 1 << 30
#: Largest answer to a change that returns no snapshot, in bytes.
_ANSWER_MAX: Final = 1 << 20
#: Largest number of times that one change may be refused because another member leads.
_HOPS_MAX: Final = 5
#: Seconds between two requests while no leader is known.
_NO_LEADER_PAUSE_S: Final = 0.5
#: Seconds for which the client waits for an answer after the time limit of the change. The nameserver may use
#: the whole time limit before it answers.
_MARGIN_S: Final = 5.0


#: Pattern for an HTTP address: ``host:port``, or a base URL as a browser shows it.
ADDRESS: Final = re.compile(
    r"(?:https?://)?(?:[^\s:/\[\]]+|\[[0-9A-Fa-f:.%]+\]):\d{1,5}/?|https?://[^\s:/]+/?"
)


class NoAnswer(NotApplied):
    """An address gave no usable answer; nothing was changed."""


def http_address(addr: str, settings: Mapping[str, str]) -> str:
    """Return a nameserver's HTTP address, from its settings (request code 319).

    The port comes from the settings, the host from ``addr``. The settings must not decide to which host an
    operator's token is sent.

    Raises:
        NoAnswer: If the nameserver does not serve HTTP, or serves HTTP only to its own machine.
    """
    listen = settings.get("httpListen", "off")
    host, _, port = listen.rpartition(":")
    if len(port) > 5 or not port.isdecimal() or not 0 < int(port) < 65536:
        raise NoAnswer(f"name server[{addr}] does not say where it serves HTTP (httpListen={listen})")
    at = addr.rpartition(":")[0]
    if is_loopback(host) and not is_loopback(at):
        raise NoAnswer(f"name server[{addr}] serves HTTP to its own machine only (httpListen={listen})")
    return f"https://{at}:{port}" if settings.get("httpTlsCert") else f"{at}:{port}"


@dataclass(frozen=True, slots=True)
class Done:
    """A change that was made.

    Attributes:
        http: Address of the nameserver that made the change.
        reply: The nameserver's answer.
        document: The JSON object in the answer; empty if the answer is a file.
    """

    http: str
    reply: FetchReply
    document: Mapping[str, Any]


class Group:
    """A raft group of nameservers, which the caller names by their HTTP addresses.

    Args:
        addresses: ``host:port``, with or without ``http://`` before it.
        token: Content of ``--token-file``. Reads do not need a token.
        read_timeout_s: Seconds for each read.
        change_timeout_s: Seconds for a change, including redirections to the leader.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        token: str | None = None,
        read_timeout_s: float,
        change_timeout_s: float = 30.0,
    ) -> None:
        self.addresses = tuple(addresses)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._read_timeout_s = read_timeout_s
        self._change_timeout_s = change_timeout_s

    # Reads ------------------------------------------------------------------------------------------

    def read(self, address: str, path: str) -> Operation[Mapping[str, Any]]:
        """Return one nameserver's answer to a read.

        Raises:
            NoAnswer: If the nameserver gave no answer, or refused. The error's text is one line.
        """
        reply = yield from self.ask(address, path)
        document = _document(reply)
        if reply.status != 200 or document is None:
            raise NoAnswer(f"{address}: {_words(reply)}")
        return document

    def ask(self, address: str, path: str) -> Operation[FetchReply]:
        """Return one nameserver's answer with any HTTP status, including error statuses.

        Raises:
            NoAnswer: If no answer came.
        """
        try:
            reply: FetchReply = yield Fetch(_url(address, path), self._read_timeout_s)
        except (OSError, ValueError) as error:
            raise NoAnswer(f"{address}: {_reason(error)}") from None
        return reply

    # Changes ----------------------------------------------------------------------------------------

    def add_member(self, address: str) -> Operation[Done]:
        """Add a member, which votes when its log is complete. A repeated call continues the same change."""
        return self._change("POST", "/v1/raft/members", document={"address": address})

    def remove_member(self, address: str) -> Operation[Done]:
        """Remove a member from the group. The removed nameserver then stops."""
        return self._change("DELETE", f"/v1/raft/members/{quote(address, safe='')}")

    def transfer_leadership(self, to: str | None) -> Operation[Done]:
        """Hand leadership over to member ``to``, or to the member with the longest log if ``to`` is None."""
        return self._change("POST", "/v1/raft/transfer", document={} if to is None else {"to": to})

    def save_snapshot(self, *, content: bool) -> Operation[Done]:
        """Write the leader's state to a snapshot file.

        Args:
            content: True to return the content of the file; False to return its name.
        """
        return self._change("POST", "/v1/raft/snapshot", accept="application/octet-stream" if content else "")

    def restore_snapshot(self, image: bytes) -> Operation[Done]:
        """Replace the group's state by the state in a snapshot file. The group must have only one member."""
        return self._change("POST", "/v1/raft/restore", image=image)

    def _change(
        self,
        method: str,
        path: str,
        *,
        document: Mapping[str, Any] | None = None,
        image: bytes | None = None,
        accept: str = "",
    ) -> Operation[Done]:
        """Request a change from the leader.

        Raises:
            NotApplied: If the change was not made. The text gives the reason.
            OutcomeUnknown: If it is unknown whether the change was made.
        """
        headers = dict(self._headers)
        body = image
        if image is not None:
            headers["Content-Type"] = "application/octet-stream"
        elif document is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(document).encode()
        if accept:
            headers["Accept"] = accept
        timeout_s = self._change_timeout_s
        started = yield from read_clock()
        waiting, unreached, hops = list(self.addresses), list[str](), 0
        leader: object = None
        while waiting:
            address = waiting.pop(0)
            try:
                reply: FetchReply = yield Fetch(
                    f"{_url(address, path)}?timeout={timeout_s:g}s",
                    timeout_s + _MARGIN_S,
                    method,
                    body,
                    headers,
                    SNAPSHOT_MAX if accept else _ANSWER_MAX,
                )
            except (Unreached, ValueError) as error:
                who = address if address in self.addresses else f"{address}, where {leader} is said to lead"
                unreached.append(f"{who}: {_reason(error)}")
                continue
            except OSError as error:
                raise OutcomeUnknown(
                    f"{address} gave no answer ({_reason(error)}): outcome unknown, look with raftStatus"
                ) from None
            match reply.status:
                case 200:
                    done = _document(reply)
                    if done is None and not accept:
                        raise OutcomeUnknown(
                            f"{address} answered status 200 without a JSON object: outcome unknown, look with"
                            " raftStatus"
                        )
                    return Done(address, reply, done or {})
                case 421:
                    hops += 1
                    refusal = _document(reply) or {}
                    leader = refusal.get("leader")
                    if isinstance(leader, str):
                        leader = shortened(leader)
                    found = yield from self._named(leader)
                    if found is None:
                        found = _told(address, refusal.get("leader_http"))
                    if found is None:
                        raise NotApplied(
                            f"{address} does not lead. The leader is {leader} (its raft address): add its"
                            f" HTTP address to --http, where only {';'.join(self.addresses)} is given, and"
                            " which the members do not tell each other"
                        )
                    if hops > _HOPS_MAX:
                        raise NotApplied(
                            f"{address}: {_words(reply)}; the leader changed {hops} times meanwhile"
                        )
                    waiting = [found]
                case 503:
                    now = yield from read_clock()
                    if now.now_s - started.now_s >= timeout_s:
                        raise NotApplied(f"{address}: {_words(reply)}")
                    yield Sleep(_NO_LEADER_PAUSE_S)
                    # The address that answered may be missing in ``self.addresses``, because another member
                    # may have named it as the leader's address.
                    position = self.addresses.index(address) + 1 if address in self.addresses else 0
                    waiting = [*self.addresses[position:], *self.addresses[:position]]
                case 401 if "Authorization" not in headers:
                    raise NotApplied(f"{address}: a change of the group needs its token: give --token-file")
                case 504:
                    raise OutcomeUnknown(f"{address}: {_words(reply)}")
                case _:
                    raise NotApplied(f"{address}: {_words(reply)}")
        raise NotApplied("; ".join(dict.fromkeys(unreached)) or "no HTTP address is given")

    def _named(self, leader: object) -> Operation[str | None]:
        """Return the HTTP address from ``addresses`` whose member has raft address ``leader``, or None."""
        for address in self.addresses:
            try:
                status = yield from self.read(address, "/v1/raft/status")
            except NoAnswer:
                continue
            me = status.get("me")
            if isinstance(me, str) and isinstance(leader, str) and same_address(me, leader):
                return address
        return None


def _told(address: str, leader: object) -> str | None:
    """Check the leader's HTTP address that the nameserver at ``address`` sent. Return None to refuse it.

    The client will send its token to the returned address. The nameserver at ``address`` already has the
    token. But if the connection to ``address`` was encrypted, the connection to the leader must be encrypted,
    too.
    """
    if not isinstance(leader, str) or ADDRESS.fullmatch(leader) is None:
        return None
    if address.startswith("https://"):
        leader = _url(leader, "").replace("http://", "https://", 1)
    return None if leader == address else leader


def _url(address: str, path: str) -> str:
    base = address if address.startswith(("http://", "https://")) else f"http://{address}"
    return base.rstrip("/") + path


def _document(reply: FetchReply) -> Mapping[str, Any] | None:
    try:
        return as_object(loads(reply.data, ANSWER), "answer")
    except RemoteProtocolError:
        return None


def _words(reply: FetchReply) -> str:
    """Return the text with which the server refused a request."""
    detail = (_document(reply) or {}).get("detail")
    return (
        shortened(detail) if isinstance(detail, str) else f"answered status {reply.status} without saying why"
    )


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
