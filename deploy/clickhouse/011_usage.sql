-- Usage per hour. The text of this view is that of `ratchet.core.stores.usage.hourly`, of which `ratchet usage` asks a part.
-- Quantiles are states: `quantilesTDigestMerge(0.5, 0.95, 0.99)(latency)` gives those of any group of rows.
CREATE OR REPLACE VIEW hourly_usage AS
SELECT
    toStartOfHour(u.at) AS hour,
    u.role AS role,
    u.policy_version AS policy_version,
    u.arm AS arm,
    u.api AS api,
    u.key_id AS key_id,
    u.provider_model AS model,
    count() AS calls,
    countIf(u.error IS NOT NULL) AS errors,
    countIf(ifNull(u.finish_reason, '') = 'cancelled') AS cancelled,
    sum(ifNull(u.prompt_tokens, 0)) AS prompt_tokens,
    sum(ifNull(u.cached_tokens, 0)) AS cached_tokens,
    sum(ifNull(u.output_tokens, 0)) AS completion_tokens,
    sum(ifNull(u.reasoning_tokens, 0)) AS reasoning_tokens,
    sum(ifNull(u.cost_usd, 0)) AS cost_usd,
    countIf(u.cost_usd IS NULL) AS unpriced,
    quantilesTDigestStateIf(0.5, 0.95, 0.99)(assumeNotNull(u.latency_ms), u.latency_ms IS NOT NULL AND u.error IS NULL AND ifNull(u.finish_reason, '') != 'cancelled') AS latency,
    quantilesTDigestStateIf(0.5, 0.95, 0.99)(assumeNotNull(u.first_token_ms), u.first_token_ms IS NOT NULL) AS first_token
FROM turns AS u FINAL
GROUP BY hour, role, policy_version, arm, api, key_id, model;
