-- The ledger: what became of every message of a stream, per consumer. One row per sequence of one life of the stream,
-- so that overlap cannot be written down and a redelivery cannot be counted twice. `stored` means: a row in a fact table.
CREATE TABLE IF NOT EXISTS ledger_entries
(
    stream      LowCardinality(String),
    consumer    LowCardinality(String),
    incarnation LowCardinality(String),
    sequence    UInt64 CODEC(DoubleDelta, ZSTD(1)),
    outcome     Enum8('stored' = 1, 'dead' = 2, 'duplicate' = 3, 'erased' = 4, 'lost' = 5),
    sent_at     Nullable(DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
    at          DateTime64(3, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(at)
ORDER BY (stream, consumer, incarnation, sequence)
TTL toDateTime(at) + toIntervalDay(400)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- The ledger folded: one row per window of sequences, written by the audit whenever it has compared the window's entries
-- with the rows in the fact tables. `missing`: sequences without an entry; `absent`: entries `stored` without a row.
CREATE TABLE IF NOT EXISTS ledger_windows
(
    stream      LowCardinality(String),
    consumer    LowCardinality(String),
    incarnation LowCardinality(String),
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
ORDER BY (stream, consumer, incarnation, window);

-- The lives of a stream: it is made anew (another `created`), or restored from an older copy (the next `life`).
CREATE TABLE IF NOT EXISTS stream_lives
(
    stream         LowCardinality(String),
    created        String,
    life           UInt32,
    first_sequence UInt64,
    at             DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(at)
ORDER BY (stream, created, life)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- As of the last audit. Balanced when `missing` and `absent` are 0; `lost` balances, and says what can never come back.
CREATE OR REPLACE VIEW ledger_balance AS
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
