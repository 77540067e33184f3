"""Errors in the shape that clients of the Messages API understand."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.dialects.requests import Body

_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""By status; any other is `invalid_request_error` below 500, and `api_error` from there on."""
TOO_LONG = "prompt is too long: "
"""Begins Anthropic's error for a prompt that exceeds the context: agents look for it, and then compact."""


def error_body(
    status: int, message: str, *, code: str | None = None, param: str | None = None, request_id: str | None = None
) -> Body:
    """The error as JSON; its code and the member at fault are details, as Anthropic's own codes are."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    if code == "context_length_exceeded" and not message.startswith(TOO_LONG):
        message = TOO_LONG + message
    error: Body = {"type": kind, "message": message}
    if details := {name: value for name, value in (("error_code", code), ("param", param)) if value}:
        error["details"] = details
    return {"type": "error", "error": error, "request_id": request_id}
