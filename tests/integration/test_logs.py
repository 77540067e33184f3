"""Logs name each failure and its place, and show no local value: no secret, no prompt, no personal data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.leaky_service import SECRETS
from tests.support.servers import Broker

SCENES = [
    "periodic",
    "component",
    "consumer",
    "projection",
    "outbox",
    "http",
    "forgotten",
    "log_lines",
    "thread",
    "uncaught",
]


FULL = """
import logging, sys, structlog
from ratchet.core.service.logs import configure_logs
configure_logs("full", "info")
for number in range(100):
    structlog.get_logger().error("no room", what="x" * 1000)
    logging.getLogger("any.library").error("no room")
sys.stdout.write("went on")
"""


def test_a_full_disk_for_the_log_stops_no_program() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", FULL], stdout=subprocess.PIPE, stderr=full, timeout=60, check=False
        )
    assert done.stdout == b"went on"


def test_no_log_line_of_a_failure_holds_a_secret_that_was_in_scope(nats: Broker) -> None:
    command = [sys.executable, "-m", "tests.support.leaky_service", nats.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == SCENES, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    events = {line["event"] for line in lines}
    assert events >= {
        "tick failed unexpectedly",
        "component ended",
        "handler failed",
        "dead letter",
        "cannot be folded",
        "publishing failed, will try again",
        "Task exception was never retrieved",
        "cannot read",
        "uncaught exception",
    }
    assert {line.get("logger") for line in lines} >= {"asyncio", "uvicorn.error", "any.library"}
    assert {kind: secret for kind, secret in SECRETS.items() if secret in done.stderr} == {}
    assert "leaky_service.py" in done.stderr, "no line names the place of the failure"
    assert "ValueError" in done.stderr
