"""The gateway: how it answers, what that costs, which engines are behind it, and what waits for the broker."""

from tools.dashboard.panels import Board, Panel, increase, most, quantiles, rate, total

CALLS, TOKENS, COST = "ratchet_gateway_calls_total", "ratchet_gateway_tokens_total", "ratchet_gateway_cost_usd_total"

GATEWAY = Board(
    "gateway",
    "Gateway",
    "How the gateway answers, what that costs, which engines are behind it, and what waits for the broker.",
    {
        "Calls": (
            Panel(
                title="Latency",
                why="Median, 95th and 99th percentile of the time to the end of the answer, the engine's included.",
                unit="s",
                shows=quantiles("ratchet_gateway_call_seconds", "role", shares=(0.5, 0.95, 0.99)),
                warn=5,
                alarm=60,
                runbook="gateway-slow",
            ),
            Panel(
                title="Calls",
                why="Calls per second, by policy, arm and status; version 0 is an upstream's model.",
                unit="cps",
                shows=rate(CALLS, "policy", "arm", "status"),
                runbook="gateway-errors",
            ),
            Panel(
                title="Open streams",
                why="Answers that are being streamed.",
                unit="short",
                shows=total("ratchet_gateway_open_streams", "service"),
            ),
            Panel(
                title="Filters",
                why="Verdicts per second of filters around calls; `failed`: a filter gave none.",
                unit="cps",
                shows=rate("ratchet_gateway_filtered_total", "role", "filter", "action"),
                needs="filters",
            ),
            Panel(
                title="Cache of answers",
                why="Look-ups per second, by outcome.",
                unit="cps",
                shows=rate("ratchet_gateway_cache_lookups_total", "outcome"),
                needs="the cache switched on",
            ),
            Panel(
                title="Embeddings",
                why="Calls for embeddings per second, by upstream and status; and tokens of their inputs.",
                unit="cps",
                shows={
                    **rate("ratchet_gateway_embeddings_total", "upstream", "status"),
                    **rate("ratchet_gateway_embedding_tokens_total", "upstream", name="tokens"),
                },
                needs="an upstream for embeddings",
            ),
        ),
        "Tokens and cost": (
            Panel(
                title="Tokens by policy",
                why="Tokens per second, by kind. Cached ones are part of the prompt, reasoning of the completion.",
                unit="cps",
                shows=rate(TOKENS, "policy", "kind"),
            ),
            Panel(
                title="Tokens by key",
                why="Tokens per second, by the id of the key and kind.",
                unit="cps",
                shows=rate(TOKENS, "key", "kind"),
            ),
            Panel(
                title="Cost by policy",
                why="US dollars in the chosen range, at the prices that are set.",
                unit="currencyUSD",
                shows=increase(COST, "policy"),
                kind="bargauge",
                needs="prices",
                runbook="spend-high",
            ),
            Panel(
                title="Cost by key",
                why="US dollars in the chosen range, by the id of the key.",
                unit="currencyUSD",
                shows=increase(COST, "key"),
                kind="bargauge",
                needs="prices",
                runbook="spend-high",
            ),
        ),
        "Engines": (
            Panel(
                title="Open calls by replica",
                why="Calls that replicas of engines have not answered to the end.",
                unit="short",
                shows=total("ratchet_gateway_replica_calls", "engine", "replica"),
            ),
            Panel(
                title="Replicas away",
                why="1 while a replica of an engine gets no calls: it fails.",
                unit="short",
                shows=most("ratchet_gateway_replica_away", "engine", "replica"),
                warn=1,
                limits=(0, 1),
                runbook="replica-away",
            ),
            Panel(
                title="Failures by replica",
                why="Calls per second that failed by the fault of a replica, that another one answered instead, and"
                " that fell back to another engine.",
                unit="cps",
                shows={
                    **rate("ratchet_gateway_replica_failures_total", "engine", "replica"),
                    **rate("ratchet_gateway_repeated_calls_total", "engine", name="sent elsewhere"),
                    **rate("ratchet_gateway_fallbacks_total", "role", "to", name="fell back"),
                },
                needs="an engine that fails",
                runbook="replica-away",
            ),
        ),
        "The local engine": (
            Panel(
                title="Engine's time by policy",
                why="Share of its time in which the local engine computes, by policy; together at most 1.",
                unit="percentunit",
                shows=rate("ratchet_engine_busy_seconds_total", "policy"),
                warn=0.8,
                limits=(0, 1),
            ),
            Panel(
                title="Engine's rows by policy",
                why="Answers that the local engine computes, and those that wait for room, by policy.",
                unit="short",
                shows={
                    **total("ratchet_engine_running_rows", "policy", name="computed"),
                    **total("ratchet_engine_waiting_rows", "policy", name="waiting"),
                },
            ),
            Panel(
                title="Engine's tokens",
                why="Tokens per second: prompts that were computed or reused, and answers.",
                unit="cps",
                shows=rate("ratchet_engine_tokens_total", "kind"),
            ),
            Panel(
                title="Engine's answers",
                why="Completions per second, by policy and outcome.",
                unit="cps",
                shows=rate("ratchet_engine_requests_total", "policy", "outcome"),
            ),
            Panel(
                title="Policies in memory",
                why="Policies that the local engine holds; and those that it loaded, and those that left, per second.",
                unit="short",
                shows={
                    **total("ratchet_engine_resident_policies", name="in memory"),
                    **rate("ratchet_engine_loads_total", "outcome", name="loaded"),
                    **rate("ratchet_engine_evictions_total", "reason", name="left"),
                },
            ),
            Panel(
                title="Time to load a policy",
                why="Median and 95th percentile until a policy was in memory and probed, in the chosen range.",
                unit="s",
                shows=quantiles("ratchet_engine_load_seconds", over="increase"),
            ),
        ),
        "Recording": (
            Panel(
                title="Events that wait",
                why="Events that no stream has stored yet, and those lost because there was no room.",
                unit="short",
                shows={
                    **total("ratchet_gateway_pending", name="waiting"),
                    **total("ratchet_gateway_overflowed", name="lost"),
                },
                warn=1000,
                alarm=10000,
                runbook="collection-errors",
            ),
            Panel(
                title="Recorder processes that ended",
                why="In the chosen range, while they had work.",
                unit="short",
                shows=increase("ratchet_gateway_recorder_deaths_total", name="ended"),
                kind="stat",
                warn=1,
            ),
            Panel(
                title="Not recorded whole",
                why="Per second, by reason: turns without tokens or texts, ends and feedback that were not published.",
                unit="cps",
                shows={
                    **rate("ratchet_gateway_incomplete_turns_total", "reason", name="without tokens or texts"),
                    **rate("ratchet_gateway_unpublished_total", "reason", name="not published"),
                },
                needs="calls that could not be recorded",
                runbook="collection-errors",
            ),
            Panel(
                title="OTLP",
                why="Spans and events that agents sent, per second, by what became of them.",
                unit="cps",
                shows=rate("ratchet_gateway_spans_total", "outcome"),
                needs="agents that send OpenTelemetry",
            ),
            Panel(
                title="Messages between gateways",
                why="Messages per second that were not sent to other gateways, or that broke their contract.",
                unit="cps",
                shows={
                    **rate("ratchet_gateway_unsent_notes_total", name="not sent"),
                    **rate("ratchet_gateway_unreadable_notes_total", name="unreadable"),
                },
            ),
        ),
    },
)
