-- Facts: one row per event, keyed by event id, so that storing an event twice changes nothing.
-- `body` is the whole message; the columns beside it are what queries filter and group by.
-- `sequence` is the message's place in its stream: with the event id it tells a redelivery from a duplicate.

CREATE TABLE IF NOT EXISTS trajectories
(
    event_id             String,
    sequence             UInt64,
    trajectory_id        String,
    role                 LowCardinality(String),
    session_id           String,
    agent_id             String,
    subordinate_profile  LowCardinality(Nullable(String)),
    parent_trajectory_id Nullable(String),
    user_ref             Nullable(String),
    task_id              String,
    group_key            Nullable(String),
    domain               LowCardinality(Nullable(String)),
    complexity_score     Nullable(Float64),
    model                LowCardinality(String),
    source               LowCardinality(String),
    temperature          Nullable(Float64),
    total_tokens         Nullable(UInt64),
    total_cost_usd       Nullable(Float64),
    turn_count           UInt32,
    outcome              LowCardinality(Nullable(String)),
    completion           Nullable(Float64),
    score                Nullable(Float64),
    verified_by          LowCardinality(Nullable(String)),
    policy_version       Nullable(UInt32),
    policy_digest        Nullable(String),
    arm                  LowCardinality(Nullable(String)),
    started_at           DateTime64(3, 'UTC'),
    ended_at             DateTime64(3, 'UTC'),
    body                 String CODEC(ZSTD(3)),
    ingested_at          DateTime64(3, 'UTC'),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, trajectory_id, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS turns
(
    event_id         String,
    sequence         UInt64,
    turn_id          String,
    trajectory_id    String,
    role             LowCardinality(String),
    turn_index       UInt32,
    attempt          UInt32,
    parent_turn_id   Nullable(String),
    policy_version   UInt32,
    policy_digest    String,
    arm              LowCardinality(String),
    weight           Float64,
    trainable        Bool,
    reason           LowCardinality(Nullable(String)),
    prompt_tokens    Nullable(UInt32),
    output_tokens    Nullable(UInt32),
    latency_ms       Nullable(Float64),
    finish_reason    LowCardinality(Nullable(String)),
    error            Nullable(String),
    at               DateTime64(3, 'UTC'),
    body             String CODEC(ZSTD(3)),
    ingested_at      DateTime64(3, 'UTC'),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, trajectory_id, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS rewards
(
    event_id         String,
    sequence         UInt64,
    reward_id        String,
    trajectory_id    String,
    role             LowCardinality(String),
    revision         UInt32,
    function_name    LowCardinality(String),
    function_version LowCardinality(String),
    total            Float64,
    components       Map(LowCardinality(String), Float64),
    confidence       Nullable(Float64),
    at               DateTime64(3, 'UTC'),
    body             String CODEC(ZSTD(3)),
    ingested_at      DateTime64(3, 'UTC'),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, trajectory_id, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS feedback
(
    event_id      String,
    sequence      UInt64,
    feedback_id   String,
    trajectory_id String,
    role          LowCardinality(String),
    kind          LowCardinality(String),
    rater         Nullable(String),
    source        LowCardinality(Nullable(String)),
    at            DateTime64(3, 'UTC'),
    body          String CODEC(ZSTD(3)),
    ingested_at   DateTime64(3, 'UTC'),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, trajectory_id, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS preferences
(
    event_id      String,
    sequence      UInt64,
    preference_id String,
    role          LowCardinality(String),
    source        LowCardinality(String),
    rater         Nullable(String),
    confidence    Nullable(Float64),
    domain        LowCardinality(Nullable(String)),
    body          String CODEC(ZSTD(3)),
    ingested_at   DateTime64(3, 'UTC'),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, preference_id, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS training_statuses
(
    event_id        String,
    sequence        UInt64,
    training_job_id String,
    role            LowCardinality(String),
    attempt         UInt32,
    status          LowCardinality(String),
    step            Nullable(UInt32),
    loss            Nullable(Float64),
    at              DateTime64(3, 'UTC'),
    body            String CODEC(ZSTD(3)),
    ingested_at     DateTime64(3, 'UTC'),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (training_job_id, at, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS deployments
(
    event_id        String,
    sequence        UInt64,
    deployment_id   String,
    training_job_id String,
    role            LowCardinality(String),
    state           LowCardinality(Nullable(String)),
    policy_version  Nullable(UInt32),
    traffic         Nullable(Float64),
    reason          Nullable(String),
    at              DateTime64(3, 'UTC'),
    body            String CODEC(ZSTD(3)),
    ingested_at     DateTime64(3, 'UTC'),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, at, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS rollouts
(
    event_id     String,
    sequence     UInt64,
    rollout_id   String,
    role         LowCardinality(String),
    decision     UInt32,
    from_version Nullable(UInt32),
    to_version   UInt32,
    stage        UInt32,
    weight       Float64,
    verdict      LowCardinality(String),
    reason       String,
    actor        String,
    at           DateTime64(3, 'UTC'),
    body         String CODEC(ZSTD(3)),
    ingested_at  DateTime64(3, 'UTC'),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, rollout_id, decision, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS training_requests
(
    event_id        String,
    sequence        UInt64,
    training_job_id String,
    role            LowCardinality(String),
    algorithm       LowCardinality(String),
    requester       String,
    trigger         LowCardinality(String),
    at              DateTime64(3, 'UTC'),
    body            String CODEC(ZSTD(3)),
    ingested_at     DateTime64(3, 'UTC'),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, training_job_id, event_id)
SETTINGS non_replicated_deduplication_window = 1000;
