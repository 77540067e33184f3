-- A trajectory that was assembled because its agent fell silent may be told in full later: the row is replaced and
-- keeps the first telling's sequence; `retold_by` is the sequence of the message that replaced it.
ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS retold_by UInt64 DEFAULT 0;

-- Idle trajectories are looked for among the turns of the last days.
ALTER TABLE turns ADD INDEX IF NOT EXISTS by_ingested ingested_at TYPE minmax GRANULARITY 1;
