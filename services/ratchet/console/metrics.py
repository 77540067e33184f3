"""What the console counts."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

REQUESTS = Counter(
    "ratchet_console_requests_total",
    "Requests by what they ask: pages, api, or the service that they are passed on to.",
    ["part", "status"],
)
LISTENERS = Gauge("ratchet_console_listeners", "Pages that follow the console's events.")
