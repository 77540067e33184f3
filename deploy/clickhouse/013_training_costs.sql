-- What each training job used. A worker's statuses of an attempt say what it used so far, so that the last one counts, also
-- of an attempt whose worker vanished. `cost_usd` is NULL where no worker had a price (RATCHET_TRAINER_PRICE_PER_HOUR_USD).
CREATE OR REPLACE VIEW training_costs AS
SELECT
    role,
    training_job_id,
    min(first_at) AS first_at,
    max(last_at) AS last_at,
    count() AS attempts,
    sum(seconds) AS seconds,
    sum(gpu_hours) AS gpu_hours,
    max(peak_memory_gb) AS peak_memory_gb,
    sum(cost_usd) AS cost_usd
FROM
(
    SELECT
        s.role AS role,
        s.training_job_id AS training_job_id,
        s.attempt AS attempt,
        min(s.at) AS first_at,
        max(s.at) AS last_at,
        max(JSONExtract(s.body, 'resource_usage', 'total_training_time_seconds', 'Nullable(Float64)')) AS seconds,
        max(JSONExtract(s.body, 'resource_usage', 'gpu_hours', 'Nullable(Float64)')) AS gpu_hours,
        max(JSONExtract(s.body, 'resource_usage', 'peak_memory_gb', 'Nullable(Float64)')) AS peak_memory_gb,
        max(JSONExtract(s.body, 'resource_usage', 'cost_usd', 'Nullable(Float64)')) AS cost_usd
    FROM training_statuses AS s FINAL
    WHERE JSONHas(s.body, 'resource_usage')
    GROUP BY s.role, s.training_job_id, s.attempt
)
GROUP BY role, training_job_id;
