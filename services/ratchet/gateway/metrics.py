"""What the gateway counts, and whether calls fail by what it has counted lately."""

import time
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar, cast

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.samples import Sample

from ratchet.core.rules.recent_share import RecentShare

M = TypeVar("M", Counter, Gauge, Histogram)

CALLS = Counter("ratchet_gateway_calls_total", "Completions, by policy, arm and status.", ["policy", "arm", "status"])
LATENCY = Histogram(
    "ratchet_gateway_call_seconds",
    "Time to the end of the answer, the engine's included.",
    ["role", "policy"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
)
CAPTURED = Counter(
    "ratchet_gateway_captured_turns_total",
    "Recorded calls by whether a learner may use them, and why not.",
    ["role", "trainable", "reason"],
)
TOKEN_KINDS = ("prompt", "cached", "completion", "reasoning")
TOKENS = Counter(
    "ratchet_gateway_tokens_total",
    "Tokens of recorded calls as the engines count them; cached ones are among the prompt's, reasoning among the"
    " completion's. `key` is the key's id, never the key.",
    ["policy", "key", "kind"],
)
COST = Counter(
    "ratchet_gateway_cost_usd_total", "Cost of recorded calls at the prices that are set.", ["policy", "key"]
)
SPANS = Counter("ratchet_gateway_spans_total", "Spans and events of OTLP, by what became of them.", ["outcome"])
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
OUTSTANDING = Gauge("ratchet_gateway_replica_calls", "Open calls of a replica of an engine.", ["engine", "replica"])
AWAY = Gauge(
    "ratchet_gateway_replica_away", "1 while a replica of an engine gets no calls: it fails.", ["engine", "replica"]
)
REPLICA_FAILURES = Counter(
    "ratchet_gateway_replica_failures_total", "Calls that failed by a replica's fault.", ["engine", "replica"]
)
REPEATED = Counter("ratchet_gateway_repeated_calls_total", "Calls sent to another replica of their engine.", ["engine"])
FILTERED = Counter(
    "ratchet_gateway_filtered_total",
    "Verdicts of filters around calls; `failed`: a filter gave none.",
    ["role", "filter", "action"],
)
CACHE_LOOKUPS = Counter("ratchet_gateway_cache_lookups_total", "Calls that the answer cache may serve.", ["outcome"])
CACHE_BYTES = Gauge("ratchet_gateway_cache_bytes", "Bytes of the answers in the cache.")
EMBEDDINGS = Counter("ratchet_gateway_embeddings_total", "Calls for embeddings.", ["upstream", "status"])
EMBEDDING_TOKENS = Counter("ratchet_gateway_embedding_tokens_total", "Tokens of their inputs.", ["upstream"])
STREAMS = Gauge("ratchet_gateway_open_streams", "Open streams of answers.")
UNSENT_NOTES = Counter(
    "ratchet_gateway_unsent_notes_total",
    "Messages to other gateways that were not sent: the broker was away, or took nothing.",
)
UNREADABLE_NOTES = Counter(
    "ratchet_gateway_unreadable_notes_total", "Messages of other gateways that break their contract."
)


def unpublished() -> float:
    """Ends and feedback that were not published."""
    return sum(sample.value for sample in _totals(UNPUBLISHED))


def answered() -> tuple[float, float]:
    """Completions that were answered, and those that failed by the gateway's or an engine's fault."""
    calls = _totals(CALLS)
    failed = sum(sample.value for sample in calls if sample.labels["status"] >= "500")
    return sum(sample.value for sample in calls) - failed, failed


def _totals(counter: Counter) -> list[Sample]:
    """Of all series of a counter."""
    return [sample for metric in counter.collect() for sample in metric.samples if sample.name.endswith("_total")]


@lru_cache(maxsize=4096)
def _series(metric: Counter | Gauge | Histogram, *labels: str) -> Counter | Gauge | Histogram:
    return metric.labels(*labels)


def series(metric: M, *labels: str) -> M:
    """The metric's series with these labels. To look one up takes prometheus_client several times as long as to count
    in it."""
    return cast("M", _series(metric, *labels))


LOOK_S = 5.0
"""How often it looks at the counts."""


class FailingCalls:
    """The share of the calls of the last five minutes that got an answer of 500 or above."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._share = RecentShare(300.0, monotonic)

    async def observe(self) -> None:
        """Take note of the counts; to be called every `LOOK_S`."""
        self._share.observe(*answered())

    async def check(self) -> str | None:
        """A note: the share, where it is more than a tenth."""
        failed = self._share.too_large
        return f"{failed:.0%} of the calls of the last five minutes failed" if failed is not None else None
