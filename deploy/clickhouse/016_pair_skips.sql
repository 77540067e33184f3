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
