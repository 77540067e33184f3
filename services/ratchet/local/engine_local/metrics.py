"""What the engine counts."""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("ratchet_engine_requests_total", "Completions answered", ["policy", "outcome"])
LATENCY = Histogram(
    "ratchet_engine_request_seconds",
    "Time from request to answer",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
OPEN = Gauge("ratchet_engine_open_requests", "Completions waiting or being computed")
BUSY = Counter("ratchet_engine_busy_seconds_total", "Time in which the engine computed for a policy", ["policy"])
RUNNING = Gauge("ratchet_engine_running_rows", "Rows of a policy that are computed together", ["policy"])
WAITING = Gauge("ratchet_engine_waiting_rows", "Rows of a policy that wait for room in its batch", ["policy"])
TOKENS = Counter("ratchet_engine_tokens_total", "Tokens by kind: computed prompt, reused prompt, generated", ["kind"])
RESIDENT = Gauge("ratchet_engine_resident_policies", "Policies in memory")
LOADS = Counter("ratchet_engine_loads_total", "Policies asked for", ["outcome"])
LOAD_SECONDS = Histogram(
    "ratchet_engine_load_seconds",
    "Time from being asked for a policy until it was in memory and probed",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
GRAMMARS = Counter("ratchet_engine_grammars_total", "Grammars asked for: given, refused, busy", ["outcome"])
EVICTIONS = Counter("ratchet_engine_evictions_total", "Policies that left memory: for room, or unloaded", ["reason"])
BASES = Gauge("ratchet_engine_bases", "Base models in memory, each shared by all adapters on it")
BASE_LOADS = Counter("ratchet_engine_base_loads_total", "Base models read from disk")
