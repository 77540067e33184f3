-- The reward of every trajectory that has one: the newest, whichever function computed it. The text of this view is
-- that of `ratchet.core.stores.history.latest_rewards`, of which services join a part.
CREATE OR REPLACE VIEW latest_rewards AS
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
