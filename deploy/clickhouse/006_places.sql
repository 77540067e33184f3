-- Where a row came from: the life of the stream (see `stream_lives`) and the sequence in it. A stream that was made anew,
-- or restored from an older copy, uses its sequences again; `incarnation` tells the lives apart.
-- What is acknowledged is on disk: an insert returns after its part and the part's directory were synced.
-- The age of rows is the default of RATCHET_COLLECTOR_FACTS_TTL_DAYS; the collector follows the setting.

ALTER TABLE trajectories
    (ADD COLUMN IF NOT EXISTS incarnation LowCardinality(String) DEFAULT ''),
    (MODIFY TTL toDateTime(ingested_at) + toIntervalDay(1095)),
    (MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild', fsync_after_insert = 1, fsync_part_directory = 1);

ALTER TABLE turns
    (ADD COLUMN IF NOT EXISTS incarnation LowCardinality(String) DEFAULT ''),
    (MODIFY TTL toDateTime(ingested_at) + toIntervalDay(1095)),
    (MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild', fsync_after_insert = 1, fsync_part_directory = 1);

ALTER TABLE rewards
    (ADD COLUMN IF NOT EXISTS incarnation LowCardinality(String) DEFAULT ''),
    (MODIFY TTL toDateTime(ingested_at) + toIntervalDay(1095)),
    (MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild', fsync_after_insert = 1, fsync_part_directory = 1);

ALTER TABLE feedback
    (ADD COLUMN IF NOT EXISTS incarnation LowCardinality(String) DEFAULT ''),
    (MODIFY TTL toDateTime(ingested_at) + toIntervalDay(1095)),
    (MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild', fsync_after_insert = 1, fsync_part_directory = 1);

ALTER TABLE preferences
    (ADD COLUMN IF NOT EXISTS incarnation LowCardinality(String) DEFAULT ''),
    (MODIFY TTL toDateTime(ingested_at) + toIntervalDay(1095)),
    (MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild', fsync_after_insert = 1, fsync_part_directory = 1);

ALTER TABLE training_statuses
    (ADD COLUMN IF NOT EXISTS incarnation LowCardinality(String) DEFAULT ''),
    (MODIFY TTL toDateTime(ingested_at) + toIntervalDay(1095)),
    (MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild', fsync_after_insert = 1, fsync_part_directory = 1);

ALTER TABLE deployments
    (ADD COLUMN IF NOT EXISTS incarnation LowCardinality(String) DEFAULT ''),
    (MODIFY TTL toDateTime(ingested_at) + toIntervalDay(1095)),
    (MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild', fsync_after_insert = 1, fsync_part_directory = 1);

ALTER TABLE rollouts
    (ADD COLUMN IF NOT EXISTS incarnation LowCardinality(String) DEFAULT ''),
    (MODIFY TTL toDateTime(ingested_at) + toIntervalDay(1095)),
    (MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild', fsync_after_insert = 1, fsync_part_directory = 1);

ALTER TABLE training_requests
    (ADD COLUMN IF NOT EXISTS incarnation LowCardinality(String) DEFAULT ''),
    (MODIFY TTL toDateTime(ingested_at) + toIntervalDay(1095)),
    (MODIFY SETTING deduplicate_merge_projection_mode = 'rebuild', fsync_after_insert = 1, fsync_part_directory = 1);

-- `by_sequence` orders every part by the place of its rows, so that the audit reads a range of sequences and nothing else.
-- It lies inside the part: rows that vanish, vanish from it too. `by_time` orders them by when they were stored: the
-- newest of a role, which a snapshot is chosen from, and what fell silent.

ALTER TABLE trajectories
    ADD PROJECTION IF NOT EXISTS by_sequence (SELECT incarnation, sequence ORDER BY incarnation, sequence),
    ADD PROJECTION IF NOT EXISTS by_time
    (
        SELECT role, ingested_at, sequence, trajectory_id, event_id, group_key, task_id, ended_at, source, domain,
        subordinate_profile, turn_count, arm
        ORDER BY role, ingested_at
    );

ALTER TABLE turns
    ADD PROJECTION IF NOT EXISTS by_sequence (SELECT incarnation, sequence ORDER BY incarnation, sequence),
    ADD PROJECTION IF NOT EXISTS by_time
    (
        SELECT role, ingested_at, sequence, trajectory_id, event_id, arm, trainable, at
        ORDER BY role, ingested_at
    );

ALTER TABLE rewards
    ADD PROJECTION IF NOT EXISTS by_sequence (SELECT incarnation, sequence ORDER BY incarnation, sequence),
    ADD PROJECTION IF NOT EXISTS by_time
    (
        SELECT role, ingested_at, sequence, trajectory_id, total, confidence, function_name, function_version, revision, at
        ORDER BY role, ingested_at
    );

ALTER TABLE feedback
    ADD PROJECTION IF NOT EXISTS by_sequence (SELECT incarnation, sequence ORDER BY incarnation, sequence);

ALTER TABLE preferences
    ADD PROJECTION IF NOT EXISTS by_sequence (SELECT incarnation, sequence ORDER BY incarnation, sequence);

ALTER TABLE training_statuses
    ADD PROJECTION IF NOT EXISTS by_sequence (SELECT incarnation, sequence ORDER BY incarnation, sequence);

ALTER TABLE deployments
    ADD PROJECTION IF NOT EXISTS by_sequence (SELECT incarnation, sequence ORDER BY incarnation, sequence);

ALTER TABLE rollouts
    ADD PROJECTION IF NOT EXISTS by_sequence (SELECT incarnation, sequence ORDER BY incarnation, sequence);

ALTER TABLE training_requests
    ADD PROJECTION IF NOT EXISTS by_sequence (SELECT incarnation, sequence ORDER BY incarnation, sequence);

-- Parts that were written before have them from the next merges on, or when these have run.
ALTER TABLE trajectories MATERIALIZE PROJECTION by_sequence, MATERIALIZE PROJECTION by_time;
ALTER TABLE turns MATERIALIZE PROJECTION by_sequence, MATERIALIZE PROJECTION by_time;
ALTER TABLE rewards MATERIALIZE PROJECTION by_sequence, MATERIALIZE PROJECTION by_time;
ALTER TABLE feedback MATERIALIZE PROJECTION by_sequence;
ALTER TABLE preferences MATERIALIZE PROJECTION by_sequence;
ALTER TABLE training_statuses MATERIALIZE PROJECTION by_sequence;
ALTER TABLE deployments MATERIALIZE PROJECTION by_sequence;
ALTER TABLE rollouts MATERIALIZE PROJECTION by_sequence;
ALTER TABLE training_requests MATERIALIZE PROJECTION by_sequence;
