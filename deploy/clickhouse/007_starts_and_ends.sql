-- Starts and ends of trajectories, as facts of their own.
CREATE TABLE IF NOT EXISTS starts
(
    event_id         String,
    sequence         UInt64,
    incarnation      LowCardinality(String),
    trajectory_id    String,
    role             LowCardinality(String),
    rollout_id       Nullable(String),
    policy_version   UInt32,
    policy_digest    String,
    arm              LowCardinality(String),
    weight           Float64,
    latency_scale_ms Nullable(Float64),
    at               DateTime64(3, 'UTC'),
    body             String CODEC(ZSTD(3)),
    ingested_at      DateTime64(3, 'UTC'),
    correlation_id   String,
    causation_id     Nullable(String),
    PROJECTION by_sequence (SELECT incarnation, sequence ORDER BY incarnation, sequence)
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, trajectory_id, event_id)
TTL toDateTime(ingested_at) + toIntervalDay(1095)
SETTINGS non_replicated_deduplication_window = 1000, deduplicate_merge_projection_mode = 'rebuild',
    fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS trajectory_ends
(
    event_id       String,
    sequence       UInt64,
    incarnation    LowCardinality(String),
    trajectory_id  String,
    role           LowCardinality(String),
    turn_count     Nullable(UInt32),
    outcome        LowCardinality(Nullable(String)),
    at             DateTime64(3, 'UTC'),
    body           String CODEC(ZSTD(3)),
    ingested_at    DateTime64(3, 'UTC'),
    correlation_id String,
    causation_id   Nullable(String),
    PROJECTION by_sequence (SELECT incarnation, sequence ORDER BY incarnation, sequence)
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, trajectory_id, event_id)
TTL toDateTime(ingested_at) + toIntervalDay(1095)
SETTINGS non_replicated_deduplication_window = 1000, deduplicate_merge_projection_mode = 'rebuild',
    fsync_after_insert = 1, fsync_part_directory = 1;
