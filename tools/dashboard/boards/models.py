"""Policies: how each version does, how a canary compares with stable, and what people say."""

from tools.dashboard.panels import Board, Panel, most, quantiles, rate

MODELS = Board(
    "model-performance",
    "Model Performance",
    "How each version of a policy does, how a canary compares with stable, and what people say of them.",
    {
        "By version": (
            Panel(
                title="Reward by policy",
                why="Mean reward during the rollout, by policy.",
                unit="percentunit",
                shows=most("agent_rl_model_reward_mean", "model_version"),
                limits=(0, 1),
                console="policies",
            ),
            Panel(
                title="Held-out score",
                why="Mean score on held-out tasks, and on safety suites, before traffic, by policy.",
                unit="percentunit",
                shows=most("agent_rl_model_benchmark_score", "model_version", "task_type"),
                limits=(0, 1),
                console="policies",
            ),
            Panel(
                title="Error rate by policy",
                why="Share of calls that ended in an error during the rollout, by policy.",
                unit="percentunit",
                shows=most("agent_rl_model_error_rate", "model_version"),
                warn=0.02,
                alarm=0.05,
                limits=(0, 1),
            ),
            Panel(
                title="Errors by policy",
                why="Calls per second of the rollout that ended in an error, by policy.",
                unit="cps",
                shows=rate("agent_rl_model_errors_total", "model_version"),
            ),
            Panel(
                title="Latency by policy",
                why="95th percentile of the time to the end of the answer; version 0 is an upstream's model.",
                unit="s",
                shows=quantiles("ratchet_gateway_call_seconds", "policy", shares=(0.95,)),
                warn=5,
                alarm=30,
            ),
            Panel(
                title="Cost of a trajectory",
                why="Mean cost in US dollars during the rollout, by policy.",
                unit="currencyUSD",
                shows=most("agent_rl_model_cost_usd", "model_version"),
                needs="prices",
                runbook="dearer-on-purpose",
            ),
        ),
        "A and B": (
            Panel(
                title="Difference of failures",
                why="How much more often the canary of the running rollout, or the last, fails than stable, with bounds"
                " that hold at every moment at once: 0 is equal, below 0 is better. Promotion needs the upper one under"
                " the margin.",
                unit="percentunit",
                shows=most("ratchet_rollout_difference", "role", "bound", where='measure="failure"'),
                console="rollouts",
            ),
            Panel(
                title="Differences by measure",
                why="How much more harm the canary does by each measure that decides, at most (the upper bounds).",
                unit="percentunit",
                shows=most("ratchet_rollout_difference", "role", "measure", where='bound="high"'),
                console="rollouts",
            ),
            Panel(
                title="Faults of engines",
                why="Trajectories of the running rollout of which an engine failed a call, by arm: not by a policy.",
                unit="short",
                shows=most("ratchet_rollout_engine_faults", "role", "arm"),
            ),
        ),
        "What people say": (
            Panel(
                title="Complaints by policy",
                why="Share of the trajectories with feedback whose user complained during the rollout, by policy.",
                unit="percentunit",
                shows=most("agent_rl_model_complaint_rate", "model_version"),
                limits=(0, 1),
                needs="feedback on the trajectories of a rollout",
                runbook="complained-of",
                console="trajectories",
            ),
            Panel(
                title="Feedback",
                why="Feedback and preferences of people stored per second, by what became of them.",
                unit="cps",
                shows=rate(
                    "ratchet_ledger_outcomes_total", "stream", "outcome", where='stream=~"RL_FEEDBACK|RL_PREFERENCES"'
                ),
                console="annotation",
            ),
        ),
    },
)
