-- The tables and views of the history. Each statement makes what is missing and leaves the rest as it is.
--
-- Facts: one row per event, keyed by event id, so that storing an event twice changes nothing. `body` is the whole
-- message; the columns beside it are what queries filter and group by.
--   `generation`, `sequence`: where the row came from: the generation of the stream (see `stream_generations`) and the message's
--     place in it. With the event id they tell a redelivery from a duplicate.
--   `correlation_id`, `causation_id`: the first event of the causal chain, and the event that this one answers. The
--     streams carry both as headers, but keep some of their messages for days only.
--   `by_sequence` orders every part by the place of its rows, so that the audit reads a range of sequences and nothing
--     else. It lies inside the part: rows that vanish, vanish from it too.
--   `by_storing` orders them by when they were stored: the newest of a role, which a snapshot is chosen from, and what
--     fell silent.
-- What is acknowledged is on disk: an insert returns after its part and the part's directory were synced. The ages of
-- rows here are those of a table without a collector, which gives each the age in its settings (`clickhouse_retention`).

-- `superseded_by`: a trajectory that was assembled because its agent fell silent may be reported in full later. The row
-- is replaced and keeps the first report's sequence; this is the sequence of the message that replaced it.
-- `recorded_as`: the id under which its calls were recorded: its own, but for the further conversations of one run.
-- `by_ending`: lists and statistics take those of a time, and filter and group them by these columns (ADR 74). Rows that
-- were replaced stand here until their parts are merged: the newest `ingested_at` of a trajectory counts.
-- `by_parent` finds the sub-agents of a trajectory.
CREATE TABLE IF NOT EXISTS trajectories
(
    event_id             String,
    sequence             UInt64,
    generation          LowCardinality(String),
    trajectory_id        String,
    role                 LowCardinality(String),
    session_id           String,
    agent_id             String,
    subordinate_profile  LowCardinality(Nullable(String)),
    parent_trajectory_id Nullable(String),
    recorded_as          String DEFAULT trajectory_id,
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
    completion_percentage Nullable(Float64),
    score                Nullable(Float64),
    verified_by          LowCardinality(Nullable(String)),
    policy_version       Nullable(UInt32),
    policy_digest        Nullable(String),
    arm                  LowCardinality(Nullable(String)),
    started_at           DateTime64(3, 'UTC'),
    ended_at             DateTime64(3, 'UTC'),
    superseded_by        UInt64,
    body                 String CODEC(ZSTD(3)),
    ingested_at          DateTime64(3, 'UTC'),
    correlation_id       String,
    causation_id         Nullable(String),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1,
    PROJECTION by_sequence (SELECT generation, sequence ORDER BY generation, sequence),
    PROJECTION by_storing
    (
        SELECT role, ingested_at, sequence, trajectory_id, event_id, group_key, task_id, ended_at, source, domain,
        subordinate_profile, turn_count, arm, recorded_as
        ORDER BY role, ingested_at
    ),
    PROJECTION by_ending
    (
        SELECT role, ended_at, trajectory_id, recorded_as, agent_id, source, policy_version, arm, outcome, domain, model,
        subordinate_profile, ingested_at
        ORDER BY role, ended_at
    ),
    PROJECTION by_parent
    (
        SELECT coalesce(parent_trajectory_id, ''), role, trajectory_id, user_ref
        ORDER BY coalesce(parent_trajectory_id, '')
    )
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, trajectory_id, event_id)
TTL toDateTime(ingested_at) + toIntervalDay(1095)
SETTINGS non_replicated_deduplication_window = 1000, deduplicate_merge_projection_mode = 'rebuild',
    fsync_after_insert = 1, fsync_part_directory = 1;

-- `trajectory_name`: the name that an agent gave the run, so that lists show it; empty where it gave none.
-- `answered`: whether the call was answered. One that failed was not, and neither was one whose agent went away before
-- the answer, which has no error: silent trajectories, and runs that nothing came of, are known by this.
-- `by_ingested`: idle trajectories are looked for among the turns of the last days.
CREATE TABLE IF NOT EXISTS turns
(
    event_id         String,
    sequence         UInt64,
    generation      LowCardinality(String),
    turn_id          String,
    trajectory_id    String,
    trajectory_name  String,
    trajectory_by    LowCardinality(String),
    role             LowCardinality(String),
    turn_index       UInt32,
    attempt          UInt32,
    api              LowCardinality(String),
    key_id           LowCardinality(String),
    parent_turn_id   Nullable(String),
    trace_id         String,
    policy_version   UInt32,
    policy_digest    String,
    arm              LowCardinality(String),
    weight           Float64,
    provider_model   LowCardinality(String),
    trainable        Bool,
    reason           LowCardinality(Nullable(String)),
    prompt_tokens    Nullable(UInt32),
    cached_tokens    Nullable(UInt32),
    completion_tokens    Nullable(UInt32),
    reasoning_tokens Nullable(UInt32),
    cost_usd         Nullable(Float64),
    latency_ms       Nullable(Float64),
    first_token_ms   Nullable(Float64),
    finish_reason    LowCardinality(Nullable(String)),
    error            Nullable(String),
    at               DateTime64(3, 'UTC'),
    answered         Bool MATERIALIZED JSONType(body, 'response') = 'Object',
    body             String CODEC(ZSTD(3)),
    ingested_at      DateTime64(3, 'UTC'),
    correlation_id   String,
    causation_id     Nullable(String),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1,
    INDEX by_ingested ingested_at TYPE minmax GRANULARITY 1,
    PROJECTION by_sequence (SELECT generation, sequence ORDER BY generation, sequence),
    PROJECTION by_storing
    (
        SELECT role, ingested_at, sequence, trajectory_id, event_id, arm, trainable, at, policy_version
        ORDER BY role, ingested_at
    )
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, trajectory_id, event_id)
TTL toDateTime(ingested_at) + toIntervalDay(1095)
SETTINGS non_replicated_deduplication_window = 1000, deduplicate_merge_projection_mode = 'rebuild',
    fsync_after_insert = 1, fsync_part_directory = 1;

-- Telemetry on its way to trajectories, a row for the spans of one trace that one request brought. What they became is in
-- `turns` and `trajectories`, so that rows are kept for 30 days alone.
-- `has_root`, `has_entry`: a span without a parent, or with one of another service, has ended: see when a trace is over.
CREATE TABLE IF NOT EXISTS spans
(
    event_id         String,
    sequence         UInt64,
    generation      LowCardinality(String),
    trace_id         String,
    role             LowCardinality(String),
    service          LowCardinality(String),
    key_id           LowCardinality(String),
    span_count       UInt32,
    call_count       UInt32,
    evaluation_count UInt32,
    has_root         Bool,
    has_entry        Bool,
    body             String CODEC(ZSTD(3)),
    ingested_at      DateTime64(3, 'UTC'),
    correlation_id   String,
    causation_id     Nullable(String),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1,
    PROJECTION by_sequence (SELECT generation, sequence ORDER BY generation, sequence),
    PROJECTION by_storing
    (
        SELECT role, trace_id, ingested_at, event_id, span_count, has_root, has_entry, call_count, evaluation_count
        ORDER BY ingested_at, event_id
    )
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, trace_id, event_id)
TTL toDateTime(ingested_at) + toIntervalDay(30)
SETTINGS non_replicated_deduplication_window = 1000, deduplicate_merge_projection_mode = 'rebuild',
    fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS starts
(
    event_id         String,
    sequence         UInt64,
    generation      LowCardinality(String),
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
    PROJECTION by_sequence (SELECT generation, sequence ORDER BY generation, sequence)
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
    generation    LowCardinality(String),
    trajectory_id  String,
    role           LowCardinality(String),
    turn_count     Nullable(UInt32),
    outcome        LowCardinality(Nullable(String)),
    at             DateTime64(3, 'UTC'),
    body           String CODEC(ZSTD(3)),
    ingested_at    DateTime64(3, 'UTC'),
    correlation_id String,
    causation_id   Nullable(String),
    PROJECTION by_sequence (SELECT generation, sequence ORDER BY generation, sequence)
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, trajectory_id, event_id)
TTL toDateTime(ingested_at) + toIntervalDay(1095)
SETTINGS non_replicated_deduplication_window = 1000, deduplicate_merge_projection_mode = 'rebuild',
    fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS rewards
(
    event_id         String,
    sequence         UInt64,
    generation      LowCardinality(String),
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
    correlation_id   String,
    causation_id     Nullable(String),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1,
    PROJECTION by_sequence (SELECT generation, sequence ORDER BY generation, sequence),
    PROJECTION by_storing
    (
        SELECT role, ingested_at, sequence, trajectory_id, total, confidence, function_name, function_version,
        revision, at, components
        ORDER BY role, ingested_at
    )
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, trajectory_id, event_id)
TTL toDateTime(ingested_at) + toIntervalDay(1095)
SETTINGS non_replicated_deduplication_window = 1000, deduplicate_merge_projection_mode = 'rebuild',
    fsync_after_insert = 1, fsync_part_directory = 1;

-- What history would be worth under another reward function, beside `rewards`, until people accept it (`ratchet rewards`).
-- `number`: the order in which it was computed; `total_before`: of the reward that counted then.
CREATE TABLE IF NOT EXISTS proposed_rewards
(
    role             LowCardinality(String),
    trajectory_id    String,
    function_name    LowCardinality(String),
    function_version LowCardinality(String),
    digest           LowCardinality(String),
    number           UInt64,
    revision         UInt32,
    total            Float64,
    total_before     Float64,
    components       Map(LowCardinality(String), Float64),
    confidence       Nullable(Float64),
    at               DateTime64(3, 'UTC'),
    body             String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree(at)
ORDER BY (function_name, function_version, role, trajectory_id)
TTL toDateTime(at) + toIntervalDay(90)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS feedback
(
    event_id       String,
    sequence       UInt64,
    generation    LowCardinality(String),
    feedback_id    String,
    trajectory_id  String,
    role           LowCardinality(String),
    kind           LowCardinality(String),
    rater          Nullable(String),
    source         LowCardinality(Nullable(String)),
    at             DateTime64(3, 'UTC'),
    body           String CODEC(ZSTD(3)),
    ingested_at    DateTime64(3, 'UTC'),
    correlation_id String,
    causation_id   Nullable(String),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1,
    PROJECTION by_sequence (SELECT generation, sequence ORDER BY generation, sequence)
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, trajectory_id, event_id)
TTL toDateTime(ingested_at) + toIntervalDay(1095)
SETTINGS non_replicated_deduplication_window = 1000, deduplicate_merge_projection_mode = 'rebuild',
    fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS preferences
(
    event_id       String,
    sequence       UInt64,
    generation    LowCardinality(String),
    preference_id  String,
    role           LowCardinality(String),
    source         LowCardinality(String),
    rater          Nullable(String),
    confidence     Nullable(Float64),
    domain         LowCardinality(Nullable(String)),
    body           String CODEC(ZSTD(3)),
    ingested_at    DateTime64(3, 'UTC'),
    correlation_id String,
    causation_id   Nullable(String),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1,
    PROJECTION by_sequence (SELECT generation, sequence ORDER BY generation, sequence)
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, preference_id, event_id)
TTL toDateTime(ingested_at) + toIntervalDay(1095)
SETTINGS non_replicated_deduplication_window = 1000, deduplicate_merge_projection_mode = 'rebuild',
    fsync_after_insert = 1, fsync_part_directory = 1;

-- Workflows that ended. What planners learn from and are judged by: plans and chances stand in `body`.
CREATE TABLE IF NOT EXISTS workflow_executions
(
    event_id       String,
    sequence       UInt64,
    generation    LowCardinality(String),
    workflow_id    String,
    role           LowCardinality(String),
    policy_version UInt32,
    policy_digest  String,
    arm            LowCardinality(String),
    status         LowCardinality(String),
    success        Bool,
    cost_usd       Float64,
    latency_ms     Float64,
    started_at     DateTime64(3, 'UTC'),
    at             DateTime64(3, 'UTC'),
    body           String CODEC(ZSTD(3)),
    ingested_at    DateTime64(3, 'UTC'),
    correlation_id String,
    causation_id   Nullable(String),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1,
    PROJECTION by_sequence (SELECT generation, sequence ORDER BY generation, sequence)
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, workflow_id, event_id)
TTL toDateTime(ingested_at) + toIntervalDay(1095)
SETTINGS non_replicated_deduplication_window = 1000, deduplicate_merge_projection_mode = 'rebuild',
    fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS training_requests
(
    event_id        String,
    sequence        UInt64,
    generation     LowCardinality(String),
    training_job_id String,
    role            LowCardinality(String),
    algorithm       LowCardinality(String),
    requester       String,
    trigger_reason  LowCardinality(String),
    at              DateTime64(3, 'UTC'),
    body            String CODEC(ZSTD(3)),
    ingested_at     DateTime64(3, 'UTC'),
    correlation_id  String,
    causation_id    Nullable(String),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1,
    PROJECTION by_sequence (SELECT generation, sequence ORDER BY generation, sequence)
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, training_job_id, event_id)
TTL toDateTime(ingested_at) + toIntervalDay(1095)
SETTINGS non_replicated_deduplication_window = 1000, deduplicate_merge_projection_mode = 'rebuild',
    fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS training_statuses
(
    event_id        String,
    sequence        UInt64,
    generation     LowCardinality(String),
    training_job_id String,
    role            LowCardinality(String),
    attempt         UInt32,
    status          LowCardinality(String),
    step            Nullable(UInt32),
    loss            Nullable(Float64),
    at              DateTime64(3, 'UTC'),
    body            String CODEC(ZSTD(3)),
    ingested_at     DateTime64(3, 'UTC'),
    correlation_id  String,
    causation_id    Nullable(String),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1,
    PROJECTION by_sequence (SELECT generation, sequence ORDER BY generation, sequence)
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (training_job_id, at, event_id)
TTL toDateTime(ingested_at) + toIntervalDay(1095)
SETTINGS non_replicated_deduplication_window = 1000, deduplicate_merge_projection_mode = 'rebuild',
    fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS deployments
(
    event_id        String,
    sequence        UInt64,
    generation     LowCardinality(String),
    deployment_id   String,
    training_job_id String,
    role            LowCardinality(String),
    state           LowCardinality(Nullable(String)),
    policy_version  Nullable(UInt32),
    traffic_percentage Nullable(Float64),
    reason          Nullable(String),
    at              DateTime64(3, 'UTC'),
    body            String CODEC(ZSTD(3)),
    ingested_at     DateTime64(3, 'UTC'),
    correlation_id  String,
    causation_id    Nullable(String),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1,
    PROJECTION by_sequence (SELECT generation, sequence ORDER BY generation, sequence)
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, at, event_id)
TTL toDateTime(ingested_at) + toIntervalDay(1095)
SETTINGS non_replicated_deduplication_window = 1000, deduplicate_merge_projection_mode = 'rebuild',
    fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS rollouts
(
    event_id       String,
    sequence       UInt64,
    generation    LowCardinality(String),
    rollout_id     String,
    role           LowCardinality(String),
    decision       UInt32,
    from_version   Nullable(UInt32),
    to_version     UInt32,
    stage          UInt32,
    weight         Float64,
    verdict        LowCardinality(String),
    reason         String,
    actor          String,
    at             DateTime64(3, 'UTC'),
    body           String CODEC(ZSTD(3)),
    ingested_at    DateTime64(3, 'UTC'),
    correlation_id String,
    causation_id   Nullable(String),
    INDEX by_event event_id TYPE bloom_filter GRANULARITY 1,
    PROJECTION by_sequence (SELECT generation, sequence ORDER BY generation, sequence)
)
ENGINE = ReplacingMergeTree(ingested_at)
ORDER BY (role, rollout_id, decision, event_id)
TTL toDateTime(ingested_at) + toIntervalDay(1095)
SETTINGS non_replicated_deduplication_window = 1000, deduplicate_merge_projection_mode = 'rebuild',
    fsync_after_insert = 1, fsync_part_directory = 1;

-- The ledger: what became of every message of a stream, per consumer. One row per sequence of one generation of the stream,
-- so that overlap cannot be written down and a redelivery cannot be counted twice. `stored` means: a row in a fact table.
CREATE TABLE IF NOT EXISTS ledger_entries
(
    stream      LowCardinality(String),
    consumer    LowCardinality(String),
    generation LowCardinality(String),
    sequence    UInt64 CODEC(DoubleDelta, ZSTD(1)),
    outcome     Enum8('stored' = 1, 'dead' = 2, 'duplicate' = 3, 'erased' = 4, 'lost' = 5),
    sent_at     Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
    at          DateTime64(3, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(at)
ORDER BY (stream, consumer, generation, sequence)
TTL toDateTime(at) + toIntervalDay(400)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- The ledger folded: one row per window of sequences, written by the audit whenever it has compared the window's entries
-- with the rows in the fact tables. `missing`: sequences without an entry; `absent`: entries `stored` without a row.
CREATE TABLE IF NOT EXISTS ledger_windows
(
    stream      LowCardinality(String),
    consumer    LowCardinality(String),
    generation LowCardinality(String),
    window      UInt64,
    up_to       UInt64,
    stored      UInt64,
    dead        UInt64,
    duplicate   UInt64,
    erased      UInt64,
    lost        UInt64,
    missing     UInt64,
    absent      UInt64,
    at          DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(up_to)
ORDER BY (stream, consumer, generation, window);

-- The generations of a stream: it is made anew (another `created`), or restored from an older copy (the next `number`).
CREATE TABLE IF NOT EXISTS stream_generations
(
    stream         LowCardinality(String),
    created        String,
    number         UInt32,
    first_sequence UInt64,
    at             DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(at)
ORDER BY (stream, created, number)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Rows of a table that were stored before `since` may have expired or gone to the archive, whatever the settings are now:
-- the audit does not look for them.
CREATE TABLE IF NOT EXISTS kept_since
(
    name  LowCardinality(String),
    since DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(since)
ORDER BY name
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- As of the last audit. Balanced when `missing` and `absent` are 0; `lost` balances, and says what can never come back.
CREATE VIEW IF NOT EXISTS ledger_balance AS
SELECT
    stream,
    consumer,
    argMax(up_to, (at, up_to)) AS watermark,
    sum(w.stored + w.dead + w.duplicate + w.erased + w.lost) AS accounted,
    sum(w.stored) AS stored,
    sum(w.dead) AS dead,
    sum(w.duplicate) AS duplicate,
    sum(w.erased) AS erased,
    sum(w.lost) AS lost,
    sum(w.missing) AS missing,
    sum(w.absent) AS absent
FROM ledger_windows AS w FINAL
GROUP BY stream, consumer;

-- The calls that statistics add up: of each turn what counts, in the order in which it is asked for. The collector
-- writes a call before its turn; a row that is written again replaces itself. `trajectory_id`: the run that it belongs
-- to, by which `trajectories.recorded_as` finds it.
CREATE TABLE IF NOT EXISTS calls
(
    event_id          String,
    trajectory_id     String,
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

-- The reward of every trajectory that has one: the newest, whichever function computed it. The text of this view is
-- that of `ratchet.core.stores.history.latest_rewards`, of which services join a part.
CREATE VIEW IF NOT EXISTS latest_rewards AS
SELECT
        w.role AS role,
        w.trajectory_id AS trajectory_id,
        argMax(w.event_id, (w.at, w.revision)) AS event_id,
        argMax(concat(w.function_name, ' ', w.function_version), (w.at, w.revision)) AS function,
        argMax(w.revision, (w.at, w.revision)) AS revision,
        argMax(w.total, (w.at, w.revision)) AS total,
        argMax(w.components, (w.at, w.revision)) AS components,
        argMax(coalesce(w.confidence, 1), (w.at, w.revision)) AS confidence,
        argMax(w.at, (w.at, w.revision)) AS at,
        argMax(w.body, (w.at, w.revision)) AS body
    FROM rewards AS w
    GROUP BY w.role, w.trajectory_id;

-- What each training job used. A worker's statuses of an attempt say what it used so far, so that the last one counts, also
-- of an attempt whose worker vanished. `cost_usd` is NULL where no worker had a price (RATCHET_TRAINER_PRICE_PER_HOUR_USD).
CREATE VIEW IF NOT EXISTS training_costs AS
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

-- The pairs of answers that a rater skipped (`neither`): the console does not show them to this rater again. It alone
-- writes and reads them; nothing is learnt from them, and no message says so.
CREATE TABLE IF NOT EXISTS pair_skips
(
    role  LowCardinality(String),
    rater String,
    one   String,
    other String,
    at    DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(at)
ORDER BY (role, rater, one, other)
TTL toDateTime(at) + toIntervalDay(400)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- The tombstones of erasures: every id that one covers, of trajectories and of what stands for a part of one (traces,
-- preferences, pieces of feedback). It keeps them for ever: what comes late with one of them is dropped.
CREATE TABLE IF NOT EXISTS erased
(
    erasure_id String,
    role       LowCardinality(String),
    id         String,
    at         DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(at)
ORDER BY (id, role, erasure_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
