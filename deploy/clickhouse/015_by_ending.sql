-- `by_ending` orders trajectories by when they ended: the console lists the newest, and filters them by these columns
-- (ADR 74). Rows that were replaced stand here until their parts are merged; the list looks each row of a page up.
ALTER TABLE trajectories
    ADD PROJECTION IF NOT EXISTS by_ending
    (
        SELECT role, ended_at, trajectory_id, recorded_as, agent_id, source, policy_version, arm, outcome
        ORDER BY role, ended_at
    );
ALTER TABLE trajectories MATERIALIZE PROJECTION by_ending;
