"""What the worker counts, under the names that operators already know."""

from prometheus_client import Counter, Gauge, Histogram

from ratchet.core.contract import TrainingStatus
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
FIGURES = (
    "loss",
    "reward_mean",
    "kl_divergence",
    "approx_kl",
    "policy_entropy",
    "ess",
    "grad_norm",
    "tokens_per_second",
)
FIGURE = Gauge("ratchet_training_figure", "What the running training of a role measures.", ["role", "figure"])
MEMORY = Gauge(
    "ratchet_training_memory_bytes", "Most memory that it has used: of the GPU, or of the process.", ["role"]
)
COST = Counter("ratchet_training_cost_usd_total", "Cost of attempts, where the worker's hour has a price.", ["role"])
GPU_HOURS = Counter("ratchet_training_gpu_hours_total", "Hours of GPUs that attempts held.", ["role"])
BUSY = Gauge("ratchet_trainer_busy_slots", "Trainings that are running.")
STARTS = Counter(
    "ratchet_trainer_processes_total", "Training processes, by how they were started: forked or fresh.", ["start"]
)


def show(status: TrainingStatus) -> None:
    """Show what a running attempt measures."""
    current = status.metrics.current if status.metrics is not None else None
    for figure in FIGURES:
        value: float | None = getattr(current, figure, None)
        if value is not None:
            FIGURE.labels(status.role, figure).set(value)
    if status.resource_usage is not None and status.resource_usage.peak_memory_gb:
        MEMORY.labels(status.role).set(status.resource_usage.peak_memory_gb * 1e9)


def stop_showing(role: str) -> None:
    """Show nothing of a role: its attempt measures nothing any more."""
    for gauge in (FIGURE, MEMORY):
        gauge.remove_by_labels({"role": role})


def count_ended(status: TrainingStatus) -> None:
    """Count an attempt that ended."""
    JOBS.labels(status.status).inc()
    if status.resource_usage is None:
        return
    for counter, used in ((COST, status.resource_usage.cost_usd), (GPU_HOURS, status.resource_usage.gpu_hours)):
        if used:
            counter.labels(status.role).inc(used)
