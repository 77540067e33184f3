-- Whether a call was answered. One that failed was not, and neither was one whose agent went away before the answer,
-- which has no error: silent trajectories, and runs that nothing came of, are told by this.
ALTER TABLE turns ADD COLUMN IF NOT EXISTS answered Bool MATERIALIZED JSONType(body, 'response') = 'Object';
