"""Whether a process is ready, as it answers at /readyz: asked from outside, by supervisors, commands and pages."""

from __future__ import annotations

import urllib.error
import urllib.request

import msgspec

SILENCE = "no answer"
"""How the reason begins when nothing answered, not even with an error."""
NOTED_BYTES = 16_000
"""The most that is read of an answer at /readyz."""

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class _Unready(msgspec.Struct):
    reasons: dict[str, str]


class _Noting(msgspec.Struct):
    notes: dict[str, str] = {}


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
    return None if status == 200 else _reason(status, body), _noted(body)


def is_silent(url: str, timeout_s: float) -> bool:
    """Whether nothing at all answers at `url`."""
    return (not_ready(url, timeout_s) or "").startswith(SILENCE)


def _noted(body: bytes) -> dict[str, str]:
    """The notes that a service gives at /readyz; servers give none."""
    try:
        return msgspec.json.decode(body, type=_Noting).notes
    except msgspec.DecodeError:
        return {}


def _reason(status: int, body: bytes) -> str:
    """The reasons that a service gives at /readyz, else the answer as it is."""
    try:
        reasons = msgspec.json.decode(body, type=_Unready).reasons
    except (msgspec.DecodeError, UnicodeDecodeError):
        return f"{status} {body.decode(errors='replace').strip()}".strip()
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
