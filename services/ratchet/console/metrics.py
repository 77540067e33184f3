"""What the console counts."""

from __future__ import annotations

from prometheus_client import Counter

REQUESTS = Counter(
    "ratchet_console_requests_total",
    "Requests by what they ask: pages, api, or the service that they are passed on to.",
    ["part", "status"],
)
