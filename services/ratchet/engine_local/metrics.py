"""What the engine counts."""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("ratchet_engine_requests_total", "Completions answered", ["policy", "outcome"])
LATENCY = Histogram(
    "ratchet_engine_request_seconds",
    "Time from request to answer",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
OPEN = Gauge("ratchet_engine_open_requests", "Completions waiting or being computed")
TOKENS = Counter("ratchet_engine_tokens_total", "Tokens by kind: computed prompt, reused prompt, generated", ["kind"])
RESIDENT = Gauge("ratchet_engine_resident_policies", "Policies in memory")
LOADS = Counter("ratchet_engine_loads_total", "Policies asked for", ["outcome"])
