"""Every Python example of docs/client.md runs unchanged with our nameserver and broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
