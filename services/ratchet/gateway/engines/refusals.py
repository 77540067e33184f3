"""Answers in which an engine refuses the gateway itself: its key, its URL. What it says may hold the key."""

from __future__ import annotations

import structlog

from ratchet.gateway.engines.base import EngineFailed, Reply
from ratchet.kernel.errors import RatchetError
from ratchet.kernel.redaction import Redactor

log = structlog.get_logger()

WRONG_KEY = frozenset({401, 403})
"""An engine that does not let the gateway in."""


def refused(name: str, reply: Reply) -> EngineFailed:
    """What agent and turn are told; the engine's own words are for the log alone, and redacted there."""
    log.error("the engine refuses the gateway", engine=name, status=reply.status, reason=_redacted(reply.reason))
    return EngineFailed(502, f"{name} refuses the gateway", code="engine_refused")


def _redacted(reason: str) -> object:
    try:
        return Redactor().redact(reason).value
    except RatchetError as error:
        return f"cannot be shown: {type(error).__name__}"
