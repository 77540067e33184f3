"""Training jobs and their curves, as the console's pages show them in tests and in the documentation's pictures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ratchet.core.contract.http.console import (
    AttemptOut,
    CardOut,
    CurveOut,
    CurvesOut,
    LogOut,
    RangeOut,
    RowOut,
    RowsOut,
)
from ratchet.core.contract.http.jobs import JobOut, JobsOut, PlanOut, PreviewOut, ShapeOut
from ratchet.core.contract.http.status import DpoRoleOut, DpoStatusOut, JobBrief, SlotsOut, TrainingStatusOut
from ratchet.core.contract.schema_report import Dropped, DroppedRecord, InputFile, SchemaReport, Splits
from ratchet.core.contract.snapshot import RewardGroups
from ratchet.core.contract.training import (
    Artifacts,
    CurrentMetrics,
    Dataset,
    EvaluationResults,
    HealthStop,
    Hyperparameters,
    Progress,
    ResourceUsage,
    SnapshotRef,
    TrainingConfig,
    TrainingError,
    TrainingRequest,
)

if TYPE_CHECKING:
    from tests.support.fake_console import Posted

DPO, RLOO, SFT, FAILED, QUEUED, REWARD_MODEL, NEW = (f"019a3c5e-6a00-7a4{n:x}-9d3f-7c2e1a0b{n:04x}" for n in range(7))
BUCKET = "s3://ratchet/"
REPORT = SchemaReport(
    total=200,
    valid=186,
    valid_ratio=0.93,
    dropped=Dropped(malformed=2, unjudged=0, empty=0, identical=4, too_short=0, too_long=0, duplicate=8),
    splits=Splits(train=167, eval=9, test=10),
    parameters={"format": "trl"},
    seed=42,
    input=InputFile(name="records.jsonl", sha256="ab" * 32, size=4096),
    redacted={"mail": 3},
    first_dropped={"identical": [DroppedRecord(number=7, problem="both are <b>the same</b>")]},
)
"""Of an export that dropped some records."""
REQUEST: Mapping[str, Any] = {"trigger_reason": "1,000 new rewards", "requester": "ada (k1)"}


def training_scene(now: datetime) -> dict[str, Any]:
    """By `METHOD path`: the answers."""
    jobs = all_jobs(now)
    scene: dict[str, Any] = {
        "GET /coordinator/v1/jobs": listed,
        "POST /coordinator/v1/jobs": job(NEW, "sft", "queued", now),
        "POST /coordinator/v1/jobs/preview": preview(),
        "GET /coordinator/v1/plan": plan(),
        "GET /coordinator/v1/status/training": status(),
        "GET /coordinator/v1/status/dpo": dpo_status(),
        f"GET /coordinator/v1/jobs/{NEW}": job(NEW, "sft", "queued", now),
        f"GET /v1/jobs/{NEW}/curves": CurvesOut(training_job_id=NEW, attempts=[], curves=[]),
    }
    for place, one in enumerate(jobs):
        scene[f"GET /coordinator/v1/jobs/{one.training_job_id}"] = _reporting(place)
        scene[f"GET /v1/jobs/{one.training_job_id}/curves"] = curves(one, place, now)
        scene[f"GET /v1/jobs/{one.training_job_id}/rows"] = rows(one)
        scene[f"GET /v1/jobs/{one.training_job_id}/card"] = card()
        scene[f"GET /v1/jobs/{one.training_job_id}/log"] = log()
    return scene


def _reporting(place: int) -> Callable[[object], JobOut]:
    """Its worker reports all the time."""

    def now(_: object) -> JobOut:
        return all_jobs(datetime.now(UTC))[place]

    return now


def listed(posted: Posted) -> JobsOut:
    """Those that the query names."""
    jobs = all_jobs(datetime.now(UTC))
    names = [name for name in ("role", "state", "algorithm") if posted.query.get(name)]
    kept = [one for one in jobs if all(getattr(one, name) == posted.query[name] for name in names)]
    return JobsOut(jobs=kept, total=len(kept))


def all_jobs(now: datetime) -> list[JobOut]:
    """Newest first: one waits, two run, others have ended in each way."""
    return [
        job(QUEUED, "kto", "queued", now),
        job(
            DPO,
            "dpo",
            "running",
            now,
            worker="trainer-1",
            attempt=2,
            started_at=now - timedelta(minutes=4),
            heartbeat_at=now,
            progress=Progress(current_step=61, total_steps=100, percent_complete=61.0, eta_seconds=155.0),
            metrics=CurrentMetrics(loss=0.432, accuracy=0.74, margin=0.41),
            artifacts=Artifacts(checkpoint=f"{BUCKET}checkpoints/{DPO}/2-50.json"),
        ),
        job(
            RLOO,
            "rloo",
            "completed",
            now,
            minutes=130,
            attempt=1,
            worker="trainer-1",
            started_at=now - timedelta(minutes=128),
            finished_at=now - timedelta(minutes=119),
            progress=Progress(current_step=88, total_steps=120, percent_complete=100.0),
            metrics=CurrentMetrics(loss=-0.01, reward_mean=0.68),
            health_stop=HealthStop(
                figure="ess",
                step=88,
                value=0.07,
                limit=0.1,
                kept_step=80,
                message="The effective sample size fell: the policy has gone too far from the one that answered.",
            ),
            artifacts=artifacts(),
            evaluation_results=EvaluationResults(holdout_reward=0.69, benchmark_scores={"held_out_loss": 0.31}),
            resource_usage=ResourceUsage(gpu_hours=0.15, total_training_time_seconds=540.0, peak_memory_gb=3.1),
            hyperparameters=Hyperparameters(learning_rate=2e-5, batch_size=8, kl_beta=0.02),
        ),
        job(
            SFT,
            "sft",
            "completed",
            now,
            minutes=400,
            attempt=1,
            worker="trainer-2",
            started_at=now - timedelta(minutes=398),
            finished_at=now - timedelta(minutes=391),
            progress=Progress(current_step=96, total_steps=96, percent_complete=100.0),
            metrics=CurrentMetrics(loss=0.81),
            artifacts=artifacts(),
            hyperparameters=Hyperparameters(learning_rate=1e-4, epochs=3),
        ),
        job(
            FAILED,
            "rloo",
            "failed",
            now,
            minutes=700,
            attempt=3,
            worker="trainer-2",
            started_at=now - timedelta(minutes=690),
            finished_at=now - timedelta(minutes=640),
            progress=Progress(current_step=12, total_steps=120, percent_complete=10.0),
            artifacts=Artifacts(checkpoint=f"{BUCKET}checkpoints/{FAILED}/3-10.json"),
            error=TrainingError(code="OOM", message="A pass of 512 tokens does not fit: 11.2 of 11.0 GB."),
        ),
        job(
            REWARD_MODEL,
            "reward_model",
            "cancelled",
            now,
            minutes=900,
            attempt=1,
            worker="trainer-1",
            started_at=now - timedelta(minutes=899),
            finished_at=now - timedelta(minutes=897),
            heartbeat_at=now - timedelta(minutes=897),
            cancel_requested=True,
            cancelled_by="ada (k1)",
        ),
    ]


def job_counts(now: datetime) -> dict[str, int]:
    """How many there are, by state."""
    return dict(Counter(one.state for one in all_jobs(now)))


def job(
    id_: str,
    algorithm: str,
    state: str,
    now: datetime,
    *,
    minutes: int = 6,
    hyperparameters: Hyperparameters | None = None,
    **members: Any,
) -> JobOut:
    """A job of the role `support`."""
    name = "8e21" if algorithm in ("dpo", "reward_model") else "5f0c"
    snapshot = None if state == "queued" else SnapshotRef(uri=f"{BUCKET}snapshots/{name}.json", digest=name * 16)
    config = TrainingConfig(
        algorithm=algorithm,
        base_model="stable",
        dataset=Dataset(source="clickhouse", sample_size=5000, snapshot=snapshot),
        hyperparameters=hyperparameters or Hyperparameters(),
    )
    created = now - timedelta(minutes=minutes)
    return JobOut(
        training_job_id=id_,
        role="support",
        algorithm=algorithm,
        state=state,
        priority="normal",
        created_at=created,
        updated_at=now,
        request=TrainingRequest(
            training_job_id=id_, timestamp=created, training_config=config, role="support", **REQUEST
        ),
        parent=None if state == "queued" else "support@6-1f0c77aa",
        snapshot=snapshot,
        trajectories=None if state == "queued" else 401 if algorithm in ("dpo", "reward_model") else 412,
        **members,
    )


def artifacts() -> Artifacts:
    """Of a job that has made a policy."""
    return Artifacts(
        final_checkpoint=f"{BUCKET}policies/9be2d410.json",
        digest="9be2d410" * 8,
        kind="adapter",
        model_card=f"{BUCKET}policies/9be2d410.md",
        training_curves=f"{BUCKET}curves/9be2d410.parquet",
        checkpoint=f"{BUCKET}checkpoints/last.json",
    )


def curves(one: JobOut, place: int, now: datetime) -> CurvesOut:
    """Figures that wander as trainings do; the effective sample size leaves its range."""
    last = one.progress.current_step if one.progress else None
    steps = range(1, (last or 0) + 1)

    def curve(name: str, meaning: str, good: RangeOut | None, value: Callable[[int], float]) -> CurveOut:
        return CurveOut(name=name, meaning=meaning, good=good, points=[(step, value(step)) for step in steps])

    pairs = one.algorithm in ("dpo", "reward_model")
    loss = curve(
        "loss",
        "What is minimised, averaged over a train step.",
        RangeOut(low=None, high=0.69, meaning="Good: falling; bad: rises for long.") if pairs else None,
        lambda step: round(0.75 * math.exp(-step / 60) + 0.2 + 0.04 * math.sin(step * 1.3 + place), 4),
    )
    gradient = curve(
        "grad_norm",
        "Length of the gradient before it is clipped.",
        RangeOut(low=None, high=2.0, meaning="Good: steady; bad: single rows pull hard."),
        lambda step: round(0.8 + 0.3 * math.sin((step + 7 * place) / 5) ** 2, 4),
    )
    of_pairs = [
        curve(
            "accuracy",
            "Share of the pairs whose chosen answer the policy prefers.",
            RangeOut(low=0.5, high=1.0, meaning="Good: rising; bad: below a half, where it learns the opposite."),
            lambda step: round(0.76 - 0.22 * math.exp(-step / 25) + 0.03 * math.sin(step * 0.7), 4),
        ),
        curve(
            "margin",
            "By how much it prefers them, in nats.",
            RangeOut(low=0.0, high=None, meaning="Good: rising; bad: falls below 0."),
            lambda step: round(0.45 * (1 - math.exp(-step / 30)) + 0.02 * math.sin(step), 4),
        ),
    ]
    of_rewards = [
        curve(
            "reward_mean",
            "Mean reward of the rows of a train step.",
            None,
            lambda step: round(0.5 + 0.2 * (1 - math.exp(-step / 40)) + 0.03 * math.sin(step * 0.9 + place), 4),
        ),
        curve(
            "ess",
            "Effective sample size, as a share of the tokens.",
            RangeOut(low=0.3, high=1.0, meaning="Good: near 1; bad: a few tokens decide."),
            lambda step: round(max(0.07, 0.95 - 0.01 * step - 0.05 * math.sin(step)), 4),
        ),
    ]
    known = [loss, *(of_pairs if pairs else of_rewards), gradient]
    attempts = [] if one.started_at is None else _attempts(one, now)
    return CurvesOut(training_job_id=one.training_job_id, attempts=attempts, curves=known if last else [])


def _attempts(one: JobOut, now: datetime) -> list[AttemptOut]:
    began = one.started_at or now
    states = ["failed"] * (one.attempt - 1) + [one.state]
    return [
        AttemptOut(
            number=number,
            state=state,
            worker=one.worker or "trainer-1",
            began_at=began,
            last_at=one.finished_at or now,
            last_step=(one.progress.current_step or 0) if one.progress and number == one.attempt else 12,
            error=None if state != "failed" else "OOM: a pass of 512 tokens does not fit.",
            gpu_hours=0.05,
            peak_memory_gb=3.1,
        )
        for number, state in enumerate(states, 1)
    ]


def card() -> CardOut:
    """As the trainer writes it, with markup in a note."""
    text = "# support@7\n\nAn adapter for SmolLM2-135M-Instruct.\n\n- notes: <img src=x onerror=alert(1)>\n"
    return CardOut(uri=f"{BUCKET}policies/9be2d410.md", text=text, is_whole=True)


def log() -> LogOut:
    """The end of a long one."""
    text = "train.py:12: UserWarning: <b>a long row was cut</b>\n"
    return LogOut(uri=f"{BUCKET}blobs/9be2d410", text=text, is_whole=False)


def rows(one: JobOut) -> RowsOut:
    """The first rows of a snapshot."""
    return RowsOut(
        uri=f"{BUCKET}snapshots/5f0c.json",
        digest="5f0c" * 16,
        format="trajectories",
        total=one.trajectories or 0,
        offset=0,
        rows=[
            RowOut(
                index=n,
                trajectory_id=f"019a3c5e-7d10-7a4{n % 16:x}-8c2e-5b1f0d9e{n:04x}",
                task="refund of order 4471" if n % 2 else "missing parcel",
                reward=round(0.5 + 0.4 * math.sin(n), 3),
                group=f"task-{n // 4}",
                text="I am sorry about the lamp. I have refunded 39.90 for order 4471.",
                why=f"reward {0.5 + 0.4 * math.sin(n):.3g}, at least 0.1; version 3 answered",
            )
            for n in range(20)
        ],
        conditions=[
            "among the newest groups of tries, at most 512 rows",
            "no evaluation, and one policy from the first call to the last",
            "the reward has evidence, and a call has what this algorithm learns from",
            "this line of policies has not learned from it",
            "answered by policies at most 8 generations away, or of unknown age",
        ],
        left_out={"no call that policy gradients may learn from": 61, "no reward yet": 12, "learnt from before": 1410},
    )


def plan() -> PlanOut:
    """What is proposed for the role."""
    return PlanOut(
        role="support",
        algorithm="rloo",
        why="96 tasks have tries with different rewards, and 412 trajectories have token ids.",
        filter=None,
        rejected={"sft": "The policy has imitated already.", "dpo": "A job learns from its pairs now."},
        shape=ShapeOut(
            rewarded=1883,
            successes=1290,
            new_successes=64,
            success_share=0.685,
            trainable=412,
            groups=120,
            mixed_groups=96,
            singletons=44,
            old_share=0.02,
            pairs=401,
            thumbs_up=64,
            thumbs_down=18,
            ess=0.61,
            has_imitated=True,
            held_out_tasks=0,
        ),
    )


def preview() -> PreviewOut:
    """The data that a job would take."""
    return PreviewOut(
        format="trajectories",
        rows=412,
        left_out={"no call that policy gradients may learn from": 61, "learnt from before": 1410},
        waiting=12,
        sources={"client": 412},
        watermarks={"AGENT_EVENTS": 182_331},
        reward_function="standard 2",
        refused=None,
        reward_groups=RewardGroups(groups=120, mixed_groups=96, singletons=44),
        planned=None,
    )


def status() -> TrainingStatusOut:
    """One slot of two is used."""
    return TrainingStatusOut(
        training_enabled=True,
        algorithms=["sft", "rloo", "dpo", "kto", "reward_model"],
        slots={"default": SlotsOut(used=1, total=2)},
        jobs=job_counts(datetime.now(UTC)),
        active=[
            JobBrief(
                training_job_id=DPO, role="support", algorithm="dpo", state="running", created_at=datetime.now(UTC)
            )
        ],
        waiting=[
            JobBrief(
                training_job_id=QUEUED, role="support", algorithm="kto", state="queued", created_at=datetime.now(UTC)
            )
        ],
        longest_wait_s=0.0,
        last={},
    )


def dpo_status() -> DpoStatusOut:
    """The preferences of both roles."""
    return DpoStatusOut(
        roles={
            "support": DpoRoleOut(
                pairs={"human": 161, "derived": 240},
                total=401,
                since_last_dpo=61,
                threshold=100,
                would_fire=False,
                why="39 preferences are missing.",
                newest_policy=None,
            ),
            "triage": DpoRoleOut(pairs={"human": 12}, total=12, since_last_dpo=12, would_fire=False),
        }
    )
