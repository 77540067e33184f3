"""Answers in which an engine refuses the gateway: its key, its URL. What it says may hold the key, or a prompt."""

from __future__ import annotations

import structlog

from ratchet.gateway.engines.base import EngineFailed, Reply

log = structlog.get_logger()

WRONG_KEY = frozenset({401, 403})
"""An engine that does not let the gateway in."""


def refused(name: str, reply: Reply) -> EngineFailed:
    """What agent, turn and log are told: that it refuses, with which status. None of its own words."""
    log.error("the engine refuses the gateway", engine=name, status=reply.status)
    return EngineFailed(502, f"{name} refuses the gateway", code="engine_refused")
