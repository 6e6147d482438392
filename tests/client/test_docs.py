"""Every Python example of docs/client.md runs unchanged with our nameserver and broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from routekeeper import Admin, Client, Credentials, Message
from routekeeper.client.errors import NotApplied
from routekeeper.remoting.errors import RemotingError, ResponseError

from .conftest import Process

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

pytestmark = pytest.mark.faults  # these tests run real processes


@pytest.fixture(scope="module")
def topics(nameserver: Any, broker: Any) -> None:
    """Create the page's topic. A reader who tries the examples in their order has this topic, too."""
    program = """
from routekeeper import Admin, Client, Message, TopicConfig

with Client() as client:
    Admin(client).create_topic_in_cluster("DefaultCluster", TopicConfig(topic_name="Orders"))
    client.producer("page").send(Message(topic="Orders", body=b"first"), timeout_s=30)
"""
    run(program, nameserver)


def run(program: str, nameserver: Any) -> str:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", program],
        env={**os.environ, "NAMESRV_ADDR": nameserver.addr},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 7


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_each_example_runs_as_written(number: int, topics: None, nameserver: Any) -> None:
    example = EXAMPLES[number]
    assert "127.0.0.1:9876" in example
    output = run(example.replace("127.0.0.1:9876", nameserver.addr), nameserver)
    assert output or "error" in example, "two of them print failures only"
    assert not re.search("send it again|look, or|mend|not delivered", output)


def test_a_request_that_the_keys_do_not_allow_raises_an_exception_that_the_page_names(tmp_path: Path) -> None:
    sentence = re.search(
        r"A request that the keys do not allow raises [^.]*\.", " ".join(PAGE.read_text().split())
    )
    assert sentence is not None
    named = set(re.findall(r"`(\w+)`", sentence[0]))
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts:\n- accessKey: operator\n  secretKey: 12345678\n  admin: true\n")
    accounts.chmod(0o600)
    server = Process(
        "routekeeper.nameserver",
        *("--listen", "127.0.0.1:0", "--http", "off", "--data", str(tmp_path / "data")),
        *("--acl", "all", "--acl-file", str(accounts)),
        log=tmp_path / "log",
    )
    wrong = Credentials(access_key="operator", secret_key="87654321")
    try:
        with Client(server.addr, credentials=wrong) as client:
            with pytest.raises(RemotingError, match="Check signature failed") as sent:
                client.producer("page").send(Message(topic="Orders", body=b"first"), timeout_s=30)
            with pytest.raises(RemotingError, match="Check signature failed") as asked:
                Admin(client).topic_list()
    finally:
        server.stop()
    assert {type(sent.value).__name__, type(asked.value).__name__} <= named
    assert isinstance(sent.value, NotApplied)
    assert isinstance(asked.value, ResponseError)
