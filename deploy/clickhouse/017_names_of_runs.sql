-- The name that an agent gave a run, so that lists show it; empty where it gave none.
ALTER TABLE turns ADD COLUMN IF NOT EXISTS trajectory_name String DEFAULT '';
