"""Whether a process is ready, as it answers at /readyz: asked from outside, by supervisors, commands and pages."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping

import msgspec

SILENCE = "no answer"
"""How the reason begins when nothing answered, not even with an error."""
NOTED_BYTES = 16_000
"""The most that is read of an answer at /readyz."""

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class _State(msgspec.Struct):
    """What a service answers at /readyz; other servers answer anything."""

    reasons: dict[str, str] | None = None
    notes: dict[str, str] = {}
    error: str | None = None
    """What nats-server says."""


def not_ready(url: str, timeout_s: float = 4.0) -> str | None:
    """None when `url` answers 200, else the reason in one line. A service gives each of its checks two seconds."""
    return readiness(url, timeout_s)[0]


def readiness(url: str, timeout_s: float = 4.0) -> tuple[str | None, dict[str, str]]:
    """Why `url` is not ready, None when it is; and what a service notes that does not keep it from its work."""
    try:
        with _DIRECT.open(url, timeout=timeout_s) as answer:
            return readiness_of(200, answer.read(NOTED_BYTES))
    except urllib.error.HTTPError as error:
        return readiness_of(error.code, error.read(NOTED_BYTES))
    except OSError as error:
        return f"{SILENCE} ({getattr(error, 'reason', error)})", {}


def readiness_of(status: int, body: bytes) -> tuple[str | None, dict[str, str]]:
    """The same of an answer that has come."""
    reasons, notes = state_of(status, body)
    return in_one_line(reasons), notes


def state_of(status: int, body: bytes) -> tuple[dict[str, str], dict[str, str]]:
    """By check, why the server that gave this answer is not ready, and what it notes; another server's words stand
    below an empty name."""
    try:
        state = msgspec.json.decode(body, type=_State)
    except (msgspec.DecodeError, UnicodeDecodeError):
        state = _State()
    if status == 200:
        return {}, state.notes
    if not state.reasons:
        return {"": state.error or f"{status} {body.decode(errors='replace').strip()}".strip()}, state.notes
    return state.reasons, state.notes


def in_one_line(reasons: Mapping[str, str]) -> str | None:
    """The reasons, each behind the name of its check; None where there are none."""
    return "; ".join(f"{name}: {reason}" if name else reason for name, reason in reasons.items()) or None


def is_silent(url: str, timeout_s: float) -> bool:
    """Whether nothing at all answers at `url`."""
    return (not_ready(url, timeout_s) or "").startswith(SILENCE)
