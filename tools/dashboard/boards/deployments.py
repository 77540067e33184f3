"""Rollouts: where they are, what the evidence says, what the gates let through, and what was taken back."""

from tools.dashboard.panels import Board, Panel, increase, most, ratio

DECIDED = "ratchet_rollout_decided_timestamp_seconds"
DECISIONS = "ratchet_rollout_decisions_total"
WHY = " The console has the reasons, and who asked."
TRAFFIC = Panel(
    title="Traffic",
    why="Share of new trajectories by policy.",
    unit="percent",
    shows=most("agent_rl_model_traffic_percentage", "model_version"),
    limits=(0, 100),
    console="rollouts",
)
CHANGES = Panel(
    title="Policies that changed",
    why="Policies registered, put on canary, promoted, rolled back and aborted in the chosen range.",
    unit="short",
    shows=increase("agent_rl_model_deployments_total", "status"),
    kind="bargauge",
)

DEPLOYMENTS = Board(
    "deployment-health",
    "Deployment Health",
    "Where rollouts are, what the evidence says, what gates let through, and what was taken back.",
    {
        "Stages": (
            TRAFFIC,
            Panel(
                title="Stage",
                why="Stage of the running rollout, from 1; 0 while there is none.",
                unit="short",
                shows=most("ratchet_rollout_stage", "role"),
                console="rollouts",
            ),
            Panel(
                title="Suspended",
                why="1 while a canary is suspended, and a person has to decide.",
                unit="short",
                shows=most("ratchet_rollout_suspended", "role"),
                alarm=1,
                limits=(0, 1),
                runbook="suspended",
                console="rollouts",
            ),
        ),
        "Evidence": (
            Panel(
                title="E-values",
                why="Combined e-values of the running rollout. Promotion and rollback each need 20.",
                unit="short",
                shows=most("ratchet_rollout_e_value", "role", "test"),
                warn=4,
                alarm=20,
                console="rollouts",
            ),
            Panel(
                title="Outcomes late",
                why="For how long the oldest report without a reward has waited, while a rollout has traffic.",
                unit="s",
                shows=most("ratchet_rollout_outcomes_behind_seconds", "role"),
                warn=60,
                alarm=300,
                runbook="outcomes-late",
            ),
            Panel(
                title="Lapsed leases",
                why="1 while gateways serve stable because the deployer does not renew the canary.",
                unit="short",
                shows=most("ratchet_gateway_lease_lapsed", "role"),
                alarm=1,
                limits=(0, 1),
            ),
        ),
        "Gates and decisions": (
            Panel(
                title="Gates passed",
                why="Share of the gates that ran in the chosen range and let the candidate through.",
                unit="percentunit",
                shows=ratio(
                    "ratchet_gate_results_total", "role", "gate", part='outcome=~"passed|waived"', over="increase"
                ),
                kind="bargauge",
                limits=(0, 1),
                runbook="validation-failed",
                console="rollouts",
            ),
            CHANGES,
            Panel(
                title="Decisions",
                why="Decisions in the chosen range: by the deployer (evidence, trip wires, deadlines), or by a request"
                f" (a person, the analyst).{WHY}",
                unit="short",
                shows=increase(DECISIONS, "role", "verdict", "actor"),
                kind="bargauge",
                console="rollouts",
            ),
        ),
        "Taken back": (
            Panel(
                title="Rollbacks",
                why=f"Policies taken back in the chosen range, by whether evidence or a request did it.{WHY}",
                unit="short",
                shows=increase(DECISIONS, "role", "verdict", "actor", where='verdict=~"roll_back|revert|withdraw"'),
                kind="bargauge",
                warn=1,
                runbook="rolled-back",
                console="rollouts",
            ),
            Panel(
                title="Last decisions against a policy",
                why=f"When a role's policy was last refused, suspended or taken back, and by whom.{WHY}",
                unit="dateTimeAsIso",
                shows=most(
                    DECIDED,
                    "role",
                    "verdict",
                    "actor",
                    where='verdict=~"roll_back|revert|withdraw|refuse|suspend"',
                    times="1000 * ",
                ),
                kind="table",
                console="rollouts",
            ),
            Panel(
                title="Leader",
                why="1 for the deployer that leads, 0 for a standby. Without one, canaries end with their leases.",
                unit="short",
                shows=most("ratchet_deployer_leading", "service"),
                warn=1,
                alarm=0.5,
                kind="stat",
                runbook="check-failing",
            ),
        ),
    },
)
