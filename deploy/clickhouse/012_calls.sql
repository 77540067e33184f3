-- The calls that usage is read from: of each turn what is added up, in the order in which it is asked for. The collector
-- writes a call before its turn; a row that is written again replaces itself. `call_fills` says since when the calls of
-- older turns are here: the collector adds them, newest first. TRUNCATE TABLE call_fills makes it add them all again.
CREATE TABLE IF NOT EXISTS calls
(
    event_id          String,
    role              LowCardinality(String),
    at                DateTime64(3, 'UTC'),
    policy_version    UInt32,
    arm               LowCardinality(String),
    api               LowCardinality(String),
    key_id            LowCardinality(String),
    model             LowCardinality(String),
    failed            Bool,
    cancelled         Bool,
    prompt_tokens     UInt32,
    cached_tokens     UInt32,
    completion_tokens UInt32,
    reasoning_tokens  UInt32,
    cost_usd          Nullable(Float64),
    latency_ms        Nullable(Float64),
    first_token_ms    Nullable(Float64),
    ingested_at       DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, toStartOfHour(at), event_id)
TTL toDateTime(ingested_at) + toIntervalDay(1095)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS call_fills
(
    filled_since DateTime64(3, 'UTC'),
    at           DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(at)
ORDER BY filled_since;

-- The text of this view is that of `ratchet.core.stores.usage.hourly`, of which `ratchet usage` asks a part.
-- Quantiles are states: `quantilesTDigestMerge(0.5, 0.95, 0.99)(latency)` gives those of any group of rows.
CREATE OR REPLACE VIEW hourly_usage AS
SELECT
    toStartOfHour(c.at) AS hour,
    c.role AS role,
    c.policy_version AS policy_version,
    c.arm AS arm,
    c.api AS api,
    c.key_id AS key_id,
    c.model AS model,
    count() AS calls,
    countIf(c.failed) AS errors,
    countIf(c.cancelled) AS cancelled,
    sum(c.prompt_tokens) AS prompt_tokens,
    sum(c.cached_tokens) AS cached_tokens,
    sum(c.completion_tokens) AS completion_tokens,
    sum(c.reasoning_tokens) AS reasoning_tokens,
    sum(ifNull(c.cost_usd, 0)) AS cost_usd,
    countIf(c.cost_usd IS NULL) AS unpriced,
    quantilesTDigestStateIf(0.5, 0.95, 0.99)(
        assumeNotNull(c.latency_ms), c.latency_ms IS NOT NULL AND NOT c.failed AND NOT c.cancelled
    ) AS latency,
    quantilesTDigestStateIf(0.5, 0.95, 0.99)(assumeNotNull(c.first_token_ms), c.first_token_ms IS NOT NULL) AS first_token
FROM calls AS c FINAL
GROUP BY hour, role, policy_version, arm, api, key_id, model;
