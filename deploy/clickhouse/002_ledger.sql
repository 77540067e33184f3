-- The ledger: what became of every message of a stream, per consumer. One row per stream sequence, so that
-- overlap cannot be written down and a redelivery cannot be counted twice.
CREATE TABLE IF NOT EXISTS ledger
(
    stream   LowCardinality(String),
    consumer LowCardinality(String),
    sequence UInt64 CODEC(DoubleDelta, ZSTD(1)),
    outcome  Enum8('stored' = 1, 'dead' = 2, 'duplicate' = 3, 'erased' = 4),
    at       DateTime64(3, 'UTC') CODEC(DoubleDelta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(at)
ORDER BY (stream, consumer, sequence)
SETTINGS non_replicated_deduplication_window = 1000;

-- Balanced when `missing` is 0: the sequences cover 1..watermark, each with exactly one outcome.
CREATE VIEW IF NOT EXISTS ledger_balance AS
SELECT
    stream,
    consumer,
    max(sequence) AS watermark,
    count() AS accounted,
    countIf(outcome = 'stored') AS stored,
    countIf(outcome = 'dead') AS dead,
    countIf(outcome = 'duplicate') AS duplicate,
    countIf(outcome = 'erased') AS erased,
    max(sequence) - count() AS missing
FROM ledger FINAL
GROUP BY stream, consumer;
