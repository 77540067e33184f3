"""What rewards look like, under the names that operators already know."""

from prometheus_client import Counter, Histogram

REWARD = Histogram(
    "agent_rl_trajectory_reward", "Total reward per trajectory, revision 0.", buckets=(0, 0.2, 0.4, 0.6, 0.8, 1)
)
REVISIONS = Counter("ratchet_reward_revisions_total", "Rewards revised after late feedback.")
JUDGEMENTS = Counter(
    "ratchet_judgements_total", "Trajectories that a judge was to judge, by what came of it.", ["outcome"]
)
SCORES = Counter(
    "ratchet_reward_model_scores_total",
    "Trajectories that a reward model was to score, by what came of it.",
    ["outcome"],
)
