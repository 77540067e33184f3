-- Where an event stands in its causal chain: the first event of the chain, and the event that this one answers. The
-- streams carry both as headers, but keep some of their messages for days only.

ALTER TABLE trajectories
    ADD COLUMN IF NOT EXISTS correlation_id String DEFAULT '',
    ADD COLUMN IF NOT EXISTS causation_id Nullable(String);

ALTER TABLE turns
    ADD COLUMN IF NOT EXISTS correlation_id String DEFAULT '',
    ADD COLUMN IF NOT EXISTS causation_id Nullable(String);

ALTER TABLE rewards
    ADD COLUMN IF NOT EXISTS correlation_id String DEFAULT '',
    ADD COLUMN IF NOT EXISTS causation_id Nullable(String);

ALTER TABLE feedback
    ADD COLUMN IF NOT EXISTS correlation_id String DEFAULT '',
    ADD COLUMN IF NOT EXISTS causation_id Nullable(String);

ALTER TABLE preferences
    ADD COLUMN IF NOT EXISTS correlation_id String DEFAULT '',
    ADD COLUMN IF NOT EXISTS causation_id Nullable(String);

ALTER TABLE training_statuses
    ADD COLUMN IF NOT EXISTS correlation_id String DEFAULT '',
    ADD COLUMN IF NOT EXISTS causation_id Nullable(String);

ALTER TABLE deployments
    ADD COLUMN IF NOT EXISTS correlation_id String DEFAULT '',
    ADD COLUMN IF NOT EXISTS causation_id Nullable(String);

ALTER TABLE rollouts
    ADD COLUMN IF NOT EXISTS correlation_id String DEFAULT '',
    ADD COLUMN IF NOT EXISTS causation_id Nullable(String);

ALTER TABLE training_requests
    ADD COLUMN IF NOT EXISTS correlation_id String DEFAULT '',
    ADD COLUMN IF NOT EXISTS causation_id Nullable(String);
