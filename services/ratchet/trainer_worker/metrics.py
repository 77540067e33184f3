"""What the worker counts, under the names that operators already know."""

from prometheus_client import Counter, Gauge, Histogram

from ratchet.core.contract.state import ENDED

JOBS = Counter("agent_rl_training_jobs_total", "Training attempts that ended, by status.", ["status"])
DURATION = Histogram(
    "agent_rl_training_duration_seconds",
    "Wall time of attempts that completed.",
    buckets=(300, 600, 1800, 3600, 7200, 14400),
)
SAMPLES = Histogram(
    "agent_rl_training_samples",
    "Trajectories that completed attempts learnt from.",
    buckets=(1000, 5000, 10000, 50000, 100000),
)
# From 0 on, so that the first event already shows as an increase.
for _status in ENDED:
    JOBS.labels(_status)
BUSY = Gauge("ratchet_trainer_busy_slots", "Trainings that are running.")
STARTS = Counter(
    "ratchet_trainer_processes_total", "Training processes, by how they were started: forked or fresh.", ["start"]
)
