"""Tests that ``/openapi.json`` describes the server correctly.

The program schemathesis tests all operations, and other tests use a client generated from the document.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from routekeeper.nameserver.http import openapi
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.faults.servers import server
from tests.nameserver.http import schemathesis_hooks
from tests.ports import free_addresses
from tests.registrations import registration

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-the-operators"
WAIT_S = 60.0
BIN = Path(sys.executable).parent
#: The checks that schemathesis makes on each answer. Its checks of valid and invalid requests are left out,
#: because other tests cover them more exactly.
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_schema_conformance", "response_headers_conformance"),
    *("unsupported_method", "allow_header_conformance", "ignored_auth"),
)
#: Settings of schemathesis. Answers with status 503, 504 or 507 are documented, so they are no defects.
CONFIG = """
hooks = "{hooks}"
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503", "504", "507"]
"""


@contextlib.contextmanager
def serving(root: Path, mode: str) -> Iterator[str]:
    """Run a nameserver that has a topic and a KV value; yield its HTTP address."""
    token = root / "token"
    token.touch(0o600)
    token.write_text(f"{TOKEN}\n")
    (raft,) = free_addresses(1)
    more = ("--mode", "raft", "--raft", raft, "--peers", raft) if mode == "raft" else ()
    with (
        server("nameserver", root, "--http-token-file", str(token), *more, http=True) as running,
        BlockingClient() as client,
    ):
        put = urllib.request.Request(
            f"http://{running.http}/v1/kv/N/k",
            data=b'{"value": "v"}',
            method="PUT",
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        with urllib.request.urlopen(put, timeout=WAIT_S) as answer:
            assert answer.status == 200
        request = registration("b", "127.0.0.1:1", ("T", "U"), counter=1)
        assert client.invoke(running.listen, request, timeout_s=WAIT_S).code == 0
        yield running.http


@pytest.mark.parametrize("mode", ["independent", "raft"])
def test_every_answer_is_documented_and_none_is_a_500(mode: str, tmp_path: Path) -> None:
    """Test all operations except ``/v1/watch``, whose answer never ends.

    schemathesis sends the same requests in every run, and no time limit ends the run early.
    """
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG.format(hooks=schemathesis_hooks.__file__))
    with serving(tmp_path, mode) as http:
        done = subprocess.run(
            [
                *(BIN / "schemathesis", "--config-file", config, "run", f"http://{http}/openapi.json"),
                *("--exclude-path", "/v1/watch", "--header", f"Authorization: Bearer {TOKEN}"),
                *("--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing"),
                *("--max-examples", "10", "--generation-deterministic", "--no-shrink"),
                *("--request-timeout", "20", "--no-color", "--continue-on-failure"),
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={name: text for name, text in os.environ.items() if "proxy" not in name.lower()},
            timeout=WAIT_S * 1.8,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = int(done.stdout.split(" generated, ")[1].split(" passed")[0])
    assert passed > 1000, done.stdout[-3000:]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """Yield the Python module of a client that openapi-python-client generated from the OpenAPI document."""
    root = tmp_path_factory.mktemp("generated")
    (root / "openapi.json").write_bytes(openapi.document())
    (root / "config.yml").write_text("post_hooks: []\n")
    done = subprocess.run(
        [
            *(BIN / "openapi-python-client", "generate", "--path", root / "openapi.json", "--meta", "none"),
            *("--output-path", root / "made_of_the_document", "--config", root / "config.yml"),
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "warning" not in done.stdout.lower(), done.stdout
    sys.path.insert(0, str(root))
    try:
        yield importlib.import_module("made_of_the_document")
    finally:
        sys.path.remove(str(root))
        for name in [name for name in sys.modules if name.startswith("made_of_the_document")]:
            del sys.modules[name]


@pytest.mark.parametrize("mode", ["independent", "raft"])
def test_generated_client_lists_reads_and_changes(mode: str, generated: ModuleType, tmp_path: Path) -> None:
    def call(operation: str, **arguments: Any) -> Any:
        """Call an operation through its generated module; return the decoded answer."""
        module = importlib.import_module(f"{generated.__name__}.api.default.{operation}")
        return module.sync_detailed(client=client, **arguments)

    models = importlib.import_module(f"{generated.__name__}.models")
    with (
        serving(tmp_path, mode) as http,
        generated.AuthenticatedClient(base_url=f"http://{http}", token=TOKEN) as client,
    ):
        first = call("list_topics", limit=1).parsed
        assert (first.topics, first.mode.value) == (["T"], mode)
        second = call("list_topics", limit=1, cursor=first.next_cursor).parsed
        assert second.topics == ["U"]
        (broker,) = call("list_brokers", cluster="C").parsed.brokers
        assert (broker.broker_name, broker.topics) == ("b", 2)
        assert [each.cluster for each in call("list_clusters").parsed.clusters] == ["C"]
        route = call("get_route", topic="T").parsed
        assert [data.broker_name for data in route.route.broker_datas] == ["b"]
        gone = call("get_route", topic="gone").parsed
        assert isinstance(gone, models.ProblemDetails)
        assert (gone.status, bool(gone.likely_causes)) == (404, True)

        before = call("get_kv_value", namespace="N", key="k")
        tag = before.headers["ETag"]
        assert call("get_kv_value", namespace="N", key="k", if_none_match=tag).status_code == 304
        new = models.NewValue(value="w")
        assert call("put_kv_value", namespace="N", key="k", body=new, if_match=tag).parsed.value == "w"
        lost = call("put_kv_value", namespace="N", key="k", body=new, if_match=tag).parsed
        assert lost.status == 412
        assert call("delete_kv_value", namespace="N", key="k").parsed.key == "k"
        assert call("list_kv_namespaces").parsed.namespaces == ["N"]
        assert json.loads(json.dumps(call("get_kv_namespace", namespace="N").parsed.to_dict()))["table"] == {}
