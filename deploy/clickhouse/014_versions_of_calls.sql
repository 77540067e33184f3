-- `by_time` again, with the version that answered a call: a snapshot leaves out what is too old for its lineage.
ALTER TABLE turns DROP PROJECTION IF EXISTS by_time;
ALTER TABLE turns
    ADD PROJECTION IF NOT EXISTS by_storing
    (
        SELECT role, ingested_at, sequence, trajectory_id, event_id, arm, trainable, at, policy_version
        ORDER BY role, ingested_at
    );
ALTER TABLE turns MATERIALIZE PROJECTION by_storing;
