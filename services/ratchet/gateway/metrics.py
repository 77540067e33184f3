"""What the gateway counts."""

from prometheus_client import Counter, Gauge, Histogram

CALLS = Counter("ratchet_gateway_calls_total", "Completions, by policy, arm and status.", ["policy", "arm", "status"])
LATENCY = Histogram(
    "ratchet_gateway_call_seconds",
    "Time to the answer, the engine's included.",
    ["role"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
)
LAPSED = Gauge("ratchet_gateway_lease_lapsed", "1 while a role's canary lease has lapsed.", ["role"])
UNPUBLISHED = Counter("ratchet_gateway_unpublished_total", "Ends and feedback not published, by reason.", ["reason"])
INCOMPLETE = Counter(
    "ratchet_gateway_incomplete_turns_total",
    "Turns published without tokens, or without texts, by reason.",
    ["reason"],
)
HELD_BYTES = Gauge("ratchet_gateway_held_bytes", "Bytes of calls, ends and feedback that wait for their record.")
RECORDER_DEATHS = Counter("ratchet_gateway_recorder_deaths_total", "Recorder processes that ended while they had work.")
PENDING = Gauge("ratchet_gateway_pending", "Events that no stream has stored yet, spool included.")
OVERFLOWED = Gauge("ratchet_gateway_overflowed", "Events lost because queue or spool was full, since the start.")
FALLBACKS = Counter(
    "ratchet_gateway_fallbacks_total",
    "Failed calls that fell back, by the engine asked next.",
    ["role", "to"],
)
CACHE_LOOKUPS = Counter("ratchet_gateway_cache_lookups_total", "Calls that the answer cache may serve.", ["outcome"])
CACHE_BYTES = Gauge("ratchet_gateway_cache_bytes", "Bytes of the answers in the cache.")
STREAMS = Gauge("ratchet_gateway_open_streams", "Open streams of answers.")
