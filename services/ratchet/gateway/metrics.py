"""What the gateway counts."""

from prometheus_client import Counter, Gauge, Histogram

CALLS = Counter("ratchet_gateway_calls_total", "Chat calls, by policy, arm and status.", ["policy", "arm", "status"])
LATENCY = Histogram(
    "ratchet_gateway_call_seconds",
    "Time to the answer, the engine's included.",
    ["role"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
)
LAPSED = Gauge("ratchet_gateway_lease_lapsed", "1 while a role's canary lease has lapsed.", ["role"])
UNPUBLISHED = Counter("ratchet_gateway_unpublished_total", "Events not published, by reason.", ["reason"])
PENDING = Gauge("ratchet_gateway_pending", "Events that no stream has stored yet, spool included.")
OVERFLOWED = Gauge("ratchet_gateway_overflowed", "Events lost because queue or spool was full, since the start.")
