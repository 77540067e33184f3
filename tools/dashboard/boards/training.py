"""Trainings: what runs, what it measures, what it uses, and what it learnt from."""

from tools.dashboard.panels import Board, Panel, increase, mean, most, quantiles, rate, total

FIGURE = "ratchet_training_figure"
JOBS = Panel(
    title="Jobs",
    why="Jobs by state now. A queue that only grows needs another worker.",
    unit="short",
    shows=most("ratchet_jobs", "state"),
    console="training",
)


def _figure(*figures: str) -> dict[str, str]:
    return most(FIGURE, "role", "figure", where=f'figure=~"{"|".join(figures)}"')


TRAINING = Board(
    "rl-training",
    "RL Training",
    "Trainings: what runs, what it measures, what it uses, and what it learnt from.",
    {
        "Jobs": (
            JOBS,
            Panel(
                title="Attempts",
                why="Training attempts that ended in the chosen range, by status.",
                unit="short",
                shows=increase("agent_rl_training_jobs_total", "status"),
                kind="bargauge",
                console="training",
            ),
            Panel(
                title="Failures in a row",
                why="Newest jobs of a role that all failed, each after all its attempts.",
                unit="short",
                shows=most("ratchet_training_failures_in_a_row", "role"),
                warn=1,
                alarm=3,
                runbook="training-keeps-failing",
            ),
            Panel(
                title="Dispatches",
                why="Dispatched attempts in the chosen range: first ones, and those after a failure or a lost worker.",
                unit="short",
                shows=increase("ratchet_job_attempts_total", "kind"),
                kind="bargauge",
            ),
            Panel(
                title="Wait for a slot",
                why="95th percentile of the time from a job's creation to its first dispatch, in the chosen range.",
                unit="s",
                shows=quantiles("ratchet_job_queue_wait_seconds", shares=(0.95,), over="increase"),
                warn=900,
                alarm=3600,
            ),
            Panel(
                title="Busy slots",
                why="Trainings that run now.",
                unit="short",
                shows=total("ratchet_trainer_busy_slots", "service"),
            ),
        ),
        "What a training measures": (
            Panel(
                title="Reward",
                why="Mean reward of the batch that the running training learns from.",
                unit="short",
                shows=_figure("reward_mean"),
                console="training",
            ),
            Panel(
                title="Loss", why="Of the newest train step.", unit="short", shows=_figure("loss"), console="training"
            ),
            Panel(
                title="KL divergence",
                why="Per token, in nats: from the reference, and (`approx_kl`) from the policy at the start of the job."
                " A rise without end is a policy that drifts away.",
                unit="short",
                shows=_figure("kl_divergence", "approx_kl"),
            ),
            Panel(
                title="Entropy and effective sample",
                why="Mean entropy per token in nats, and the effective sample size as a share of the tokens. Entropy"
                " that falls to 0 is a policy that no longer tries anything.",
                unit="short",
                shows=_figure("policy_entropy", "ess"),
            ),
            Panel(
                title="Gradient",
                why="Norm of the gradient before it is clipped.",
                unit="short",
                shows=_figure("grad_norm"),
            ),
            Panel(
                title="Throughput",
                why="Tokens of rows that go through the model in a second, prompts included.",
                unit="cps",
                shows=_figure("tokens_per_second"),
            ),
        ),
        "What trainings use": (
            Panel(
                title="Duration",
                why="Median and 95th percentile of completed attempts in the chosen range.",
                unit="s",
                shows=quantiles("agent_rl_training_duration_seconds", over="increase"),
                warn=7200,
                alarm=14400,
            ),
            Panel(
                title="Memory",
                why="Most memory that the running training has used: of its GPUs, else of its process.",
                unit="bytes",
                shows=most("ratchet_training_memory_bytes", "role"),
            ),
            Panel(
                title="GPU hours",
                why="Hours of GPUs that attempts held in the chosen range.",
                unit="short",
                shows=increase("ratchet_training_gpu_hours_total", "role"),
                kind="bargauge",
                needs="a GPU",
            ),
            Panel(
                title="Cost",
                why="US dollars that attempts cost in the chosen range, at the price of their workers' hours.",
                unit="currencyUSD",
                shows=increase("ratchet_training_cost_usd_total", "role"),
                kind="bargauge",
                needs="a price of the worker's hour",
            ),
        ),
        "What they learn from": (
            Panel(
                title="Trajectories learnt from",
                why="Mean number of trajectories of a completed attempt in the chosen range.",
                unit="short",
                shows=mean("agent_rl_training_samples", over="increase"),
            ),
            Panel(
                title="Trajectories of snapshots",
                why="Trajectories that exports saw in the chosen range: exported, or why not.",
                unit="short",
                shows=increase("ratchet_snapshot_trajectories_total", "fate"),
                kind="bargauge",
            ),
            Panel(
                title="Time of a snapshot",
                why="Median and 95th percentile of the time that one export took, in the chosen range.",
                unit="s",
                shows=quantiles("ratchet_snapshot_seconds", over="increase"),
            ),
            Panel(
                title="Objects swept",
                why="Objects per second that nothing refers to any more and that a sweep set aside, by reason.",
                unit="cps",
                shows=rate("ratchet_swept_objects_total", "reason"),
                needs="objects that nothing refers to, for a day",
            ),
        ),
    },
)
