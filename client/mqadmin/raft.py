"""RouteKeeper's own subcommands, which send HTTP requests to nameservers.

They are raftStatus, addMember, removeMember, transferLeader, snapshotSave, snapshotRestore, explainRoute and
routeDiff.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson

from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.files import read_regular
from routekeeper.remoting.lenient import (
    ANSWER,
    INT64_MAX,
    as_int,
    as_object,
    as_texts,
    get_bool,
    get_list,
    get_text,
    loads,
    need_text,
)
from routekeeper.remoting.logs import shortened
from routekeeper.remoting.properties import split_properties
from routekeeper.remoting.route import decode_route

from ..errors import NotApplied, describe
from ..operation import FetchReply, Operation
from ..raft_group import ADDRESS, SNAPSHOT_MAX, Done, Group, NoAnswer, http_address
from .context import Context
from .options import OUTPUT, Arguments, Command, Option, UsageError

_HTTP_DEFAULT: Final = "127.0.0.1:9880"
_TOKEN_SIZE_MAX: Final = 4096
#: Largest number of topics whose routes routeDiff compares, if no topic is given.
_TOPICS_MAX: Final = 1000
#: Largest number of differences of one kind that routeDiff prints. Of further differences, it prints only the
#: number.
_SHOWN_MAX: Final = 50

_HTTP: Final = Option(
    short="a",
    long="http",
    description="HTTP addresses of name servers, eg: '192.168.0.1:9880;192.168.0.2:9880'"
    f" (default: those of the name servers given by -n, else {_HTTP_DEFAULT})",
)
_TOKEN: Final = Option(
    short="k",
    long="token-file",
    description="file with the same token as the name servers' --http-token-file",
)
_CHECK: Final = Option(
    short="",
    long="check",
    description="exit with 1 unless every name server knows a leader and serves reads and writes",
    value=False,
)
_TIMEOUT: Final = Option(
    short="w", long="timeout", description="longest wait for the change in seconds, 1 to 100 (default 30)"
)


def _addresses(context: Context, args: Arguments) -> tuple[tuple[str, ...], list[str]]:
    """Return the nameservers' HTTP addresses, and a reason for each nameserver without an HTTP address.

    Raises:
        NotApplied: If no nameserver reported an address.
        UsageError: If an address of ``-a`` is malformed.
    """
    if "a" not in args and context.nameservers:
        found, missing = [], []
        for answer in context.run(context.client.admin.namesrv_config()):
            if answer.response is None:
                assert answer.error is not None
                missing.append(f"name server[{answer.addr}] failed: {describe(answer.error)}")
                continue
            try:
                found.append(http_address(answer.addr, split_properties(answer.response.body)))
            except NoAnswer as error:
                missing.append(str(error))
        if not found:
            raise NotApplied(f"{'; '.join(missing)}; give the HTTP addresses with --http")
        return tuple(dict.fromkeys(found)), missing
    addresses = tuple(
        dict.fromkeys(part.strip() for part in (args.get("a") or _HTTP_DEFAULT).split(";") if part.strip())
    )
    wrong = [address for address in addresses if not ADDRESS.fullmatch(address)]
    if not addresses or wrong:
        raise UsageError(f"http='{''.join(wrong[:1])}', allowed HOST:PORT, several separated by ;")
    return addresses, []


def _group(context: Context, args: Arguments) -> tuple[Group, list[str]]:
    """Return the group of nameservers with an HTTP address, and a reason for each nameserver without it."""
    addresses, missing = _addresses(context, args)
    token = None
    if "k" in args:
        try:
            token = read_regular(args.text("k"), size_max=_TOKEN_SIZE_MAX).decode("ascii").strip()
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no ASCII text"
            raise NotApplied(f"token file {args.text('k')} cannot be read: {reason}") from None
        if not token or any(not "!" <= letter <= "~" for letter in token):
            raise NotApplied(f"token file {args.text('k')} does not hold one word of visible ASCII")
    group = Group(
        addresses,
        token=token,
        read_timeout_s=context.client.core.config.call_timeout_s,
        change_timeout_s=float(args.number("w", "timeout", 30, low=1, high=100)),
    )
    return group, missing


@contextmanager
def _reporting(context: Context, address: str) -> Iterator[None]:
    """Report an error of the ``with`` block about the nameserver at ``address``, and go on."""
    try:
        yield
    except NoAnswer as error:  # its text begins with the address
        context.fail(error)
    except RemoteProtocolError as error:
        context.fail(f"{address}: {error}")


# -- raftStatus ---------------------------------------------------------------------------------------------


_STATUS_HEAD: Final = (
    *("#Http address", "#Member", "#Role", "#Term", "#Leader"),
    *("#Applied", "#Lag", "#Contact", "#Links", "#Ready"),
)
_TO_THE_RIGHT: Final = {"#Term", "#Applied", "#Lag", "#Contact", "#Links"}


def _raft_status(context: Context, args: Arguments) -> None:
    group, missing = _group(context, args)
    found: dict[str, _Status] = {}
    for reason in missing:
        context.fail(reason)
    for address in group.addresses:
        with _reporting(context, address):
            general = context.run(group.read(address, "/v1/status"))
            mode = get_text(general, "mode")
            if mode != "raft":
                mode = shortened(str(mode))
                raise NoAnswer(f"{address}: runs in mode {mode} and belongs to no raft group")
            found[address] = _Status.of({**context.run(group.read(address, "/v1/raft/status")), **general})
    if "check" in args:
        _check(context, found)
    context.json([{"http": address, **status.document} for address, status in found.items()])
    if context.as_json or not found:
        return
    rows = [_STATUS_HEAD, *(_status_row(address, status) for address, status in found.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_STATUS_HEAD))]
    for row in rows:
        cells = zip(row, widths, _STATUS_HEAD, strict=True)
        context.line(
            "  ".join(
                cell.rjust(width) if name in _TO_THE_RIGHT else cell.ljust(width)
                for cell, width, name in cells
            ).rstrip()
        )
    for address, status in found.items():
        if status.waiting_for and not status.ready:
            context.line(f"{address} is not ready: {status.waiting_for}")
    for address, status in found.items():
        if status.stalled:
            context.line(f"{address} cannot write its journal: its disk does not answer")
    for line in (*_missing_links(found), *_strength(found)):
        context.line(line)
    _print_members(context, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Status:
    """A nameserver's report of its own state in the raft group.

    Attributes:
        contact_ms: Milliseconds since the nameserver's last contact with the leader; for the leader itself,
            with a majority. None if there was no contact.
        waiting_for: Reason why the nameserver does not serve reads and writes. Empty if the nameserver serves
            reads and writes, or names no reason.
        document: The whole report as JSON.
    """

    me: str
    role: str
    term: int
    leader: str
    applied_index: int
    commit_index: int
    members: tuple[str, ...]
    learners: tuple[str, ...]
    linked: tuple[str, ...]
    contact_ms: float | None
    ready: bool
    waiting_for: str
    stalled: bool
    document: Mapping[str, Any]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> _Status:
        """Decode the JSON of a status report.

        Raises:
            RemoteProtocolError: If a JSON member is missing or has a wrong type.
        """
        contact = document.get("last_contact_ms")
        if not isinstance(contact, int | float | None):
            raise RemoteProtocolError("last_contact_ms must be a number")
        return cls(
            me=need_text(document, "me"),
            role=need_text(document, "role"),
            term=as_int(document.get("term"), "term", limit=INT64_MAX),
            leader=get_text(document, "leader") or "",
            applied_index=as_int(document.get("applied_index"), "applied_index", limit=INT64_MAX),
            commit_index=as_int(document.get("commit_index"), "commit_index", limit=INT64_MAX),
            members=as_texts(document.get("members"), "members"),
            learners=as_texts(document.get("learners") or [], "learners"),
            linked=as_texts(document.get("linked") or [], "linked"),
            contact_ms=contact,
            ready=get_bool(document, "reads_ready") and get_bool(document, "writes_ready"),
            waiting_for=get_text(document, "waiting_for") or "",
            stalled=get_bool(document, "storage_stalled"),
            document=document,
        )


def _check(context: Context, found: Mapping[str, _Status]) -> None:
    """Report each nameserver that does not serve reads and writes."""
    for address, status in found.items():
        if not (status.leader and status.ready):
            context.fail(f"{address} is not ready: {status.waiting_for or 'no leader'}")


def _status_row(address: str, status: _Status) -> tuple[str, ...]:
    others = {member for member in status.members if member != status.me}
    return (
        address,
        status.me,
        status.role,
        str(status.term),
        status.leader or "none",
        str(status.applied_index),
        str(max(0, status.commit_index - status.applied_index)),
        "never" if status.contact_ms is None else f"{status.contact_ms:.0f} ms",
        f"{len(others & set(status.linked))} of {len(others)}",
        "yes" if status.ready else "no",
    )


def _missing_links(found: Mapping[str, _Status]) -> list[str]:
    """Return a line for each member to which at least one nameserver has no link.

    The line lists the nameservers that have no link to the member.
    """
    lines = []
    for member in sorted({member for status in found.values() for member in status.members}):
        others = [address for address, status in found.items() if status.me != member]
        without = [address for address in others if member not in found[address].linked]
        if without:
            words = "is down or cut off: no" if without == others else "has no"
            lines.append(f"{member} {words} link with {', '.join(without)}")
    return lines


def _strength(found: Mapping[str, _Status]) -> list[str]:
    """Return a warning if a voter is missing, or if the loss of one more voter would leave no majority.

    The warning contains the number of voters that the leader reaches. Without a reason for a warning, return
    an empty list. A group of one voter has no other voter to lose, so it gets no warning.
    """
    for status in found.values():
        if status.role == "leader":
            voters = set(status.members) - set(status.learners)
            up = voters & {status.me, *status.linked}
            is_last = len(voters) > 1 and len(up) == len(voters) // 2 + 1
            if is_last or up != voters:
                last = "; if one more is lost, nothing is served" if is_last else ""
                return [f"{len(up)} of {len(voters)} voters are up{last}"]
    return []


def _print_members(context: Context, found: Mapping[str, _Status]) -> None:
    """Print the voters and learners of the raft group.

    During a change of members, nameservers may report different members. Then print each list of members
    together with the nameservers that report it.
    """
    views: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for address, status in found.items():
        learners = tuple(sorted(status.learners))
        voters = tuple(sorted(set(status.members) - set(learners)))
        views.setdefault((voters, learners), []).append(address)
    for (voters, learners), addresses in views.items():
        source = "" if len(views) == 1 else f" (according to {', '.join(addresses)})"
        context.line(f"voters: {', '.join(voters) or 'none'}{source}")
        if learners:
            context.line(f"learners: {', '.join(learners)}{source}")


# -- subcommands that change the group or its data ----------------------------------------------------------


def _change(
    begin: Callable[[Group, Arguments], Operation[Done]], words: Callable[[Done, Arguments], Iterable[str]]
) -> Callable[[Context, Arguments], None]:
    def run(context: Context, args: Arguments) -> None:
        done = context.run(begin(_group(context, args)[0], args))
        for line in words(done, args):
            context.line(line)

    return run


def _members_line(done: Done) -> str:
    try:
        members = ", ".join(as_texts(done.document.get("members"), "members"))
    except RemoteProtocolError:  # the answer is incomplete, but the change was made
        members = "unknown"
    return f"members: {members}"


def _snapshot_save(context: Context, args: Arguments) -> None:
    group, _ = _group(context, args)
    target = None if args.get("f") is None else Path(args.text("f"))
    if target is None:
        done = context.run(group.save_snapshot(content=False))
        path, *figures = (_member_text(done, name) for name in ("path", "index", "term", "size"))
        index, term, size = figures
        context.line(f"snapshot saved at {done.http}: {path} index={index} term={term} bytes={size}")
        return
    done = context.run(group.save_snapshot(content=True))
    partial = target.with_name(f"{target.name}.tmp")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(done.reply.data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError as error:
        raise NotApplied(f"{target} cannot be written: {error.strerror}") from None
    context.line(f"snapshot of {done.http} saved: {target} bytes={len(done.reply.data)}")


def _snapshot_restore(context: Context, args: Arguments) -> None:
    try:
        image = read_regular(args.text("f"), size_max=SNAPSHOT_MAX)
    except OSError as error:
        raise NotApplied(f"{args.text('f')} cannot be read: {error.strerror}") from None
    done = context.run(_group(context, args)[0].restore_snapshot(image))
    revision, index, digest = (_member_text(done, name) for name in ("revision", "applied_index", "digest"))
    context.line(f"snapshot restored at {done.http}: revision={revision} index={index} digest={digest}")


def _member_text(done: Done, name: str) -> str:
    """Return the text of a JSON member in the answer to a change, or "unknown" if the member is missing.

    A missing member is no error, because the change was made.
    """
    try:
        return get_text(done.document, name) or "unknown"
    except RemoteProtocolError:
        return "unknown"


# -- explainRoute and routeDiff -----------------------------------------------------------------------------


def _explain_route(context: Context, args: Arguments) -> None:
    reply, address = None, ""
    group, unreached = _group(context, args)
    for address in group.addresses:
        try:
            reply = context.run(context.client.admin.explain_route(address, args.text("t")))
            break
        except (OSError, ValueError) as error:
            unreached.append(f"{address}: {getattr(error, 'strerror', None) or error}")
    if reply is None:
        raise NotApplied("; ".join(unreached))
    try:
        document = loads(reply.data, ANSWER)
    except RemoteProtocolError:
        raise NotApplied(f"{address} answered with status {reply.status} and without JSON") from None
    context.json(document)
    for line in _readable(document, 0) if not context.as_json else ():
        context.line(line)
    if reply.status != 200:
        context.fail(f"{address} answered with status {reply.status}")


def _readable(value: Any, depth: int) -> list[str]:
    """Return a JSON value as indented lines. Each name, and each value of a list, has its own line."""
    indent = "  " * depth
    lines: list[str] = []
    if isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, (dict, list)) and item:
                lines += [f"{indent}{name}:", *_readable(item, depth + 1)]
            else:
                lines.append(f"{indent}{name}: {_leaf(item)}")
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, (dict, list)) and item:
                first, *others = _readable(item, depth + 1)
                lines += [f"{indent}- {first.lstrip()}", *others]
            else:
                lines.append(f"{indent}- {_leaf(item)}")
    else:
        lines.append(f"{indent}{_leaf(value)}")
    return lines


def _leaf(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def _route_diff(context: Context, args: Arguments) -> None:
    group, missing = _group(context, args)
    if len(group.addresses) + len(missing) < 2:
        raise UsageError("only one name server is named; name at least two")
    only = args.get("t")
    digests: dict[str, str] = {}
    for reason in missing:
        context.fail(reason)
    for address in group.addresses:
        with _reporting(context, address):
            digests[address] = need_text(context.run(group.read(address, "/v1/digest")), "digest")
    differences: list[dict[str, Any]] = []
    compared, equal = 0, len(set(digests.values())) <= 1
    if not equal:
        differences, compared = _differences(context, group, tuple(digests), only)
        if differences or only is None:
            context.exit_with_1()
    context.json({"digests": digests, "differences": differences})
    for address, digest in digests.items():
        context.line(f"{address:<22} digest {digest}")
    if len(digests) > 1 and equal:
        context.line(f"the route tables of {len(digests)} name servers are equal")
    _print_differences(context, differences)
    if only is not None and not (equal or differences or context.failed):
        context.line(f"the routes of topic {only} are equal; the route tables differ elsewhere")
    elif only is None and not (equal or differences):
        context.line(
            f"the digests differ, but brokers, topics and {compared} routes are equal: the tables have"
            " changed meanwhile, or differ in KV configuration, or in routes that were not compared"
            " (name such a topic with -t)"
        )


def _differences(
    context: Context, group: Group, addresses: Sequence[str], only: str | None
) -> tuple[list[dict[str, Any]], int]:
    """Return the differences between the nameservers' route tables, and the number of routes compared.

    Args:
        only: The only topic whose routes are compared; None to compare brokers, topics and all routes.
    """
    brokers: dict[str, dict[str, object]] = {}
    topics: dict[str, set[str]] = {}
    for address in addresses:
        listed = context.run(group.read(address, "/v1/brokers?consistency=stale"))
        names = ("cluster", "broker_name", "broker_id", "broker_addr")
        brokers[address] = {}
        for row in get_list(listed, "brokers"):
            cluster, name, broker_id, addr = (need_text(as_object(row, "broker"), each) for each in names)
            brokers[address][f"{cluster}/{name}/{broker_id} {addr}"] = True
        topics[address] = set(
            as_texts(context.run(group.read(address, "/v1/topics?consistency=stale")).get("topics"), "topics")
        )
    differences = []
    if only is None:
        differences += _one_sided("broker", brokers)
        differences += _one_sided("topic", topics)
    common = sorted(set.intersection(*topics.values())) if only is None else [only]
    for topic in common[:_TOPICS_MAX]:
        path = f"/v1/topics/{quote(topic, safe='')}/route?consistency=stale"
        routes: dict[str, Any] = {}
        for address in addresses:
            reply = context.run(group.ask(address, path))
            if reply.status in (200, 404):
                routes[address] = _canonical(reply) if reply.status == 200 else None
            else:
                context.fail(f"{address}: route of topic {topic}: answered with status {reply.status}")
        if any(route != first for first in list(routes.values())[:1] for route in routes.values()):
            differences.append({"kind": "route", "name": topic, "at": routes})
    return differences, min(len(common), _TOPICS_MAX)


def _one_sided(kind: str, tables: Mapping[str, Iterable[str]]) -> list[dict[str, Any]]:
    everything = sorted(set().union(*tables.values()))
    held = {address: set(table) for address, table in tables.items()}
    return [
        {"kind": kind, "name": name, "at": {address: name in table for address, table in held.items()}}
        for name in everything
        if not all(name in table for table in held.values())
    ]


def _canonical(reply: FetchReply) -> dict[str, Any]:
    """Return the route in an answer, sorted so that the order of registrations does not matter.

    Raises:
        RemoteProtocolError: If the answer contains no route.
    """
    route = as_object(as_object(loads(reply.data, ANSWER), "answer").get("route"), "route")
    decode_route(orjson.dumps(route))  # raises if the value is not a route
    return {
        **route,
        "brokerDatas": sorted(get_list(route, "brokerDatas"), key=lambda data: str(data.get("brokerName"))),
        "queueDatas": sorted(get_list(route, "queueDatas"), key=lambda data: str(data.get("brokerName"))),
    }


def _print_differences(context: Context, differences: Sequence[Mapping[str, Any]]) -> None:
    shown: dict[str, int] = {}
    for difference in differences:
        kind, at = difference["kind"], difference["at"]
        shown[kind] = shown.get(kind, 0) + 1
        if shown[kind] > _SHOWN_MAX:
            continue
        if kind == "route":
            context.line(f"route of {difference['name']}")
            for address, route in at.items():
                context.line(f"  {address:<22} {_route_in_words(route)}")
        else:
            there = [address for address, has in at.items() if has]
            missing = [address for address, has in at.items() if not has]
            context.line(f"{kind} {difference['name']}: at {', '.join(there)}; not at {', '.join(missing)}")
    for kind, count in shown.items():
        if count > _SHOWN_MAX:
            context.line(f"{count - _SHOWN_MAX} more {kind}s differ; -o json prints all")


def _route_in_words(route: Mapping[str, Any] | None) -> str:
    if route is None:
        return "no route"
    addresses = {data.get("brokerName"): data.get("brokerAddrs") for data in route["brokerDatas"]}
    parts = [
        f"{queues.get('brokerName')} read={queues.get('readQueueNums')} write={queues.get('writeQueueNums')}"
        f" perm={queues.get('perm')} {addresses.get(queues.get('brokerName'), {})}"
        for queues in route["queueDatas"]
    ]
    return "; ".join(parts) or "no queues"


def _member(description: str, *, long: str = "address", required: bool = True) -> Option:
    return Option(short="m", long=long, description=description, required=required)


COMMANDS: Final = (
    Command(
        name="raftStatus",
        description="Role, term, indexes, contact and members of a raft group (RouteKeeper, over HTTP).",
        options=(_HTTP, _TOKEN, OUTPUT, _CHECK),
        run=_raft_status,
        needs_nameserver=False,
        only_reads=True,
    ),
    Command(
        name="addMember",
        description="Add a name server to a raft group (RouteKeeper, over HTTP).",
        options=(
            _member("raft address of the new member, as in its --raft, eg: '192.168.0.4:9878'"),
            *(_HTTP, _TOKEN, _TIMEOUT),
        ),
        run=_change(
            lambda group, args: group.add_member(args.text("m")),
            lambda done, args: (f"member {args.text('m')} added; it votes.", _members_line(done)),
        ),
        needs_nameserver=False,
    ),
    Command(
        name="removeMember",
        description="Remove a name server from a raft group (RouteKeeper, over HTTP).",
        options=(_member("raft address of the member to remove"), _HTTP, _TOKEN, _TIMEOUT),
        run=_change(
            lambda group, args: group.remove_member(args.text("m")),
            lambda done, args: (
                f"member {args.text('m')} removed; it stops as soon as it learns of this.",
                _members_line(done),
            ),
        ),
        needs_nameserver=False,
    ),
    Command(
        name="transferLeader",
        description="Hand over the leadership of a raft group (RouteKeeper, over HTTP).",
        options=(
            _member(
                "raft address of the next leader (default: the voter with the most complete log)",
                long="to",
                required=False,
            ),
            *(_HTTP, _TOKEN, _TIMEOUT),
        ),
        run=_change(
            lambda group, args: group.transfer_leadership(args.get("m")),
            lambda done, args: (f"leadership transferred to {_member_text(done, 'leader')}.",),
        ),
        needs_nameserver=False,
    ),
    Command(
        name="snapshotSave",
        description="Save the state of a raft group to a file (RouteKeeper, over HTTP).",
        options=(
            Option(
                short="f",
                long="file",
                description="write the snapshot to this local file (default: leave it on the leader)",
            ),
            *(_HTTP, _TOKEN, _TIMEOUT),
        ),
        run=_snapshot_save,
        needs_nameserver=False,
    ),
    Command(
        name="snapshotRestore",
        description="Restore a snapshot into a raft group of one member (RouteKeeper, over HTTP).",
        options=(
            Option(short="f", long="file", description="a file that snapshotSave made", required=True),
            *(_HTTP, _TOKEN, _TIMEOUT),
        ),
        run=_snapshot_restore,
        needs_nameserver=False,
    ),
    Command(
        name="explainRoute",
        description="Explain why a topic has the route it has, or none (RouteKeeper, over HTTP).",
        options=(
            Option(short="t", long="topic", description="topic name", required=True),
            *(_HTTP, _TOKEN, OUTPUT),
        ),
        run=_explain_route,
        needs_nameserver=False,
        only_reads=True,
    ),
    Command(
        name="routeDiff",
        description="Compare the route tables of name servers; exit with 1 if they differ"
        " (RouteKeeper, over HTTP).",
        options=(
            _HTTP,
            Option(short="t", long="topic", description="compare the route of this topic only"),
            *(_TOKEN, OUTPUT),
        ),
        run=_route_diff,
        needs_nameserver=False,
        only_reads=True,
    ),
)
