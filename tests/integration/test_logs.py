"""Logs say what failed and where, and nothing of what was at hand: no secret, no prompt, no personal data."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.leaky_service import SECRETS
from tests.support.servers import RunningServer

SCENES = [
    "periodic",
    "component",
    "consumer",
    "projection",
    "outbox",
    "http",
    "forgotten",
    "said",
    "thread",
    "uncaught",
]


def test_whatever_fails_wherever_no_log_line_holds_what_was_at_hand(nats: RunningServer) -> None:
    command = [sys.executable, "-m", "tests.support.leaky_service", nats.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == SCENES, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    told = {line["event"] for line in lines}
    assert told >= {
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
    assert "leaky_service.py" in done.stderr, "nothing says where it failed"
    assert "ValueError" in done.stderr
