-- How a call was made and recognised, and what it cost: per policy version, per key and over time.
ALTER TABLE turns
    ADD COLUMN IF NOT EXISTS api LowCardinality(String) DEFAULT '',
    ADD COLUMN IF NOT EXISTS trajectory_by LowCardinality(String) DEFAULT '',
    ADD COLUMN IF NOT EXISTS key_id LowCardinality(String) DEFAULT '',
    ADD COLUMN IF NOT EXISTS trace_id String DEFAULT '',
    ADD COLUMN IF NOT EXISTS provider_model LowCardinality(String) DEFAULT '',
    ADD COLUMN IF NOT EXISTS cached_tokens Nullable(UInt32),
    ADD COLUMN IF NOT EXISTS reasoning_tokens Nullable(UInt32),
    ADD COLUMN IF NOT EXISTS cost_usd Nullable(Float64),
    ADD COLUMN IF NOT EXISTS first_token_ms Nullable(Float64);

-- The id under which a trajectory's calls were recorded: its own, but for the further conversations of one run.
ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS recorded_as String DEFAULT trajectory_id;

-- `by_time` again, with the column by which a query joins a trajectory with its calls.
ALTER TABLE trajectories DROP PROJECTION IF EXISTS by_time;
ALTER TABLE trajectories
    ADD PROJECTION IF NOT EXISTS by_storing
    (
        SELECT role, ingested_at, sequence, trajectory_id, event_id, group_key, task_id, ended_at, source, domain,
        subordinate_profile, turn_count, arm, recorded_as
        ORDER BY role, ingested_at
    );
ALTER TABLE trajectories MATERIALIZE PROJECTION by_storing;
