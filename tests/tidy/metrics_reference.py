"""Program that writes the reference of metrics in docs/metrics.md from the metrics that real servers serve.

The command ``python -m tests.tidy.metrics_reference`` starts nameservers of both modes and a broker. It sends
several kinds of requests to them, and writes the page.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from routekeeper.remoting.bodies import ConsumerData, HeartbeatData
from routekeeper.remoting.command import RemotingCommand
from tests.broker.conftest import Wire
from tests.ports import free_addresses
from tests.waiting import WITHIN_S, wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "metrics.md"
CERTS: Final = ROOT / "tests" / "nameserver" / "raft" / "certs"

_HEAD: Final = """\
# Metrics

Every metric of `/metrics`, as the servers describe it. [operations.md](operations.md#watching) says what to
look at first. `python -m tests.tidy.metrics_reference` writes this page.

Counters end in `_total`, times are in seconds. A histogram NAME has the series `NAME_bucket` (label `le`),
`NAME_sum` and `NAME_count`.

Clients choose the names of topics and groups. A family of a broker with one of these labels has at most
1,000 series, those with the greatest values; `mqbroker_series_left_out` says how many it lacks. Lag has a
series for each of the 100 pairs of a topic and a group that are behind most, and
`mqbroker_consumer_lag_all_messages` is the sum over all pairs. A broker looks for the age of the oldest
message in 1,000 queues at most, and every 10 s at most.

Metrics with `rpc_hook` in their names exist where `--rpc-hook` gives a hook, those with `cluster_test` with
`clusterTest=true`, and those of certificates with TLS.
"""
_TITLES: Final = {
    "both": "Nameservers",
    "raft": "Nameservers in raft mode",
    "broker": "Brokers",
    "process": "Every server on Linux",
}


class Passes:
    """A hook of a server that changes no request."""

    def before_request(self, remote: str, request: RemotingCommand) -> RemotingCommand:
        """Return the request unchanged."""
        return request

    def after_response(self, remote: str, request: RemotingCommand, response: RemotingCommand) -> None:
        """Accept the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric as a server serves it.

    Attributes:
        values: For each label, all values that were seen.
    """

    name: str
    kind: str
    help: str
    values: Mapping[str, frozenset[str]]

    @property
    def series(self) -> frozenset[str]:
        """Names under which a query finds the metric's series."""
        if self.kind != "histogram":
            return frozenset({self.name})
        return frozenset({f"{self.name}_{part}" for part in ("bucket", "sum", "count")})


def families_of(text: str) -> dict[str, Family]:
    """Return the metrics in a text of ``/metrics``, by name."""
    found = {}
    for family in text_string_to_metric_families(text):
        name = family.name + "_total" * (family.type == "counter")
        values: dict[str, set[str]] = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                values.setdefault(label, set()).add(value)
        frozen = {label: frozenset(them) for label, them in values.items()}
        found[name] = Family(name=name, kind=family.type, help=family.documentation, values=frozen)
    return found


@contextlib.contextmanager
def _started(*arguments: str) -> Iterator[dict[str, str]]:
    """Start a server; yield the key=value words of its ready line."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if "ready" not in line:
                log.seek(0)
                raise AssertionError(log.read().decode())
            yield dict(word.split("=", 1) for word in line.split() if "=" in word)
        finally:
            process.kill()
            process.communicate()


def _get(addr: str, path: str, *, post: bool = False) -> str:
    request = urllib.request.Request(
        f"http://{addr}{path}",
        method="POST" if post else "GET",
        headers={"Authorization": "Bearer " + _TOKEN},
    )
    with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
        return str(answer.read().decode())


_TOKEN: Final = "a-token-of-the-operators"


def _is_ready(addr: str) -> bool:
    try:
        return bool(_get(addr, "/readyz"))
    except OSError:
        return False


def _leading(group: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
    """Return the positions in ``group`` of the members that lead."""
    roles = [json.loads(_get(member["http"], "/v1/status"))["role"] for member in group]
    return tuple(place for place, role in enumerate(roles) if role == "leader")


def expositions() -> dict[str, str]:
    """Return the text of ``/metrics`` of an independent nameserver, a raft leader and a broker."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        root = Path(folder)
        (root / "token").write_text(_TOKEN)
        (root / "token").chmod(0o600)
        members = free_addresses(2)
        common = ("routekeeper.nameserver", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data")
        tls = [f"--raft-tls-{name}={CERTS / file}" for name, file in _TLS.items()]
        group = [
            stack.enter_context(
                _started(
                    *(*common, str(root / str(number)), "--mode", "raft", "--raft", member, "--peers"),
                    *(",".join(members), *tls, "--http-token-file", str(root / "token")),
                )
            )
            for number, member in enumerate(members)
        ]
        wire = [f"--tls-{name}={CERTS / _TLS[name]}" for name in ("cert", "key")]
        hook = ("--rpc-hook", "tests.tidy.metrics_reference:Passes")
        production = ("--productEnvName", "production", "--cluster-test-nameservers", members[0])
        test_environment = ("--clusterTest", "true", *production)
        alone = stack.enter_context(_started(*common, str(root / "alone"), *wire, *hook, *test_environment))
        for each in (*group, alone):
            wait_until(lambda each=each: _is_ready(each["http"]), "readiness")  # type: ignore[misc]
        leader = group[wait_until(lambda: _leading(group), "a leader")[0]]
        broker = stack.enter_context(
            _started(
                *("routekeeper.broker", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--name", "b"),
                *("--store", str(root / "store"), "-n", f"{leader['listen']};{alone['listen']}"),
                *(*wire, *hook),
            )
        )
        _do_a_little_of_everything(broker["listen"])
        _get(leader["http"], "/v1/raft/snapshot", post=True)
        for each in (leader, alone):
            wait_until(lambda each=each: '"b"' in _get(each["http"], "/v1/brokers"), "the broker")  # type: ignore[misc]
        return {
            "both": _get(alone["http"], "/metrics"),
            "raft": _get(leader["http"], "/metrics"),
            "broker": _get(broker["http"], "/metrics"),
        }


_TLS: Final = {"cert": "member.pem", "key": "member.key", "ca": "authority.pem"}


def _do_a_little_of_everything(broker: str) -> None:
    """Send, pull and send back messages, and commit offsets at a broker, so that all metrics appear."""
    wire = Wire(broker)
    consumers = (ConsumerData(group_name="G"),)
    beat = HeartbeatData(client_id="c", consumers=consumers, producer_groups=("P",))
    assert wire.call(34, body=beat.encode()).code == 0
    for _ in range(3):
        assert wire.send_message("T", b"x").code == 0
    assert wire.answer(wire.pull("T", 0)).code == 0
    assert wire.call(36, {"offset": "0", "group": "G", "delayLevel": "1"}).code == 0
    dead = {
        "topic": "%DLQ%G",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
    }
    assert wire.call(17, {**dead, "defaultTopic": "TBW102"}).code == 0
    for topic in ("T", "%RETRY%G", "%DLQ%G"):
        offset = {"consumerGroup": "G", "topic": topic, "queueId": "0", "commitOffset": "0"}
        assert wire.call(15, offset).code == 0
    wire.close()


def tables(found: Mapping[str, str]) -> dict[str, list[Family]]:
    """Return the metrics by the section of docs/metrics.md in which they are listed."""
    known = {server: families_of(text) for server, text in found.items()}
    process = {name for name in known["both"] if name.startswith("process_")}
    parts = {
        "both": {name: each for name, each in known["raft"].items() if name in known["both"]} | known["both"],
        "raft": {name: each for name, each in known["raft"].items() if name not in known["both"]},
        "broker": known["broker"],
        "process": known["both"],
    }
    return {
        part: [each for name, each in sorted(of.items()) if (name in process) == (part == "process")]
        for part, of in parts.items()
    }


def page(found: Mapping[str, str]) -> str:
    """Return the text of docs/metrics.md. ``found`` has the text of ``/metrics`` of each server."""
    parts = [_HEAD]
    for part, families in tables(found).items():
        rows = [f"| `{each.name}` | {each.kind} | {_labels(each)} | {each.help} |" for each in families]
        parts.append(
            "\n".join(
                [
                    f"## {_TITLES[part]}\n",
                    "| name | kind | labels | meaning |",
                    "|---|---|---|---|",
                    *rows,
                    "",
                ]
            )
        )
    return "\n".join(parts)


def _labels(family: Family) -> str:
    return ", ".join(f"`{label}`" for label in sorted(family.values) if label != "le")


if __name__ == "__main__":
    PAGE.write_text(page(expositions()))
