"""The console's rollouts on the real ClickHouse, and its curves and rows with the real object store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest

from ratchet.bus.kv import Entry
from ratchet.console.http_api import Subjects, console_api
from ratchet.console.training import TEXT, Training
from ratchet.core.contract import ModelRollout, Outcome, PolicyClaim, Reward, TrainingStatus, named_id
from ratchet.core.contract.deployment import RolloutStage
from ratchet.core.contract.reward import RewardComponent, RewardMetadata
from ratchet.core.contract.snapshot import LABELS, LabelRow, PairRow, Row, SnapshotHeader, TrajectoryRow
from ratchet.core.contract.state import Job, JobState
from ratchet.core.contract.training import (
    Artifacts,
    CurrentMetrics,
    Metrics,
    Progress,
    ResourceUsage,
    SnapshotRef,
    StatusMetadata,
)
from ratchet.core.datasets.domain.executions import execution_row
from ratchet.core.datasets.domain.rows import RowOrigin, SnapshotRow
from ratchet.core.datasets.s3_snapshots import SnapshotWriter
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse
from tests.support.callers import called_by
from tests.support.console_data import console, store
from tests.support.executions import execution
from tests.support.messages import AT, trajectory
from tests.support.running import prepared_objects, prepared_warehouse
from tests.support.training import request

JOB = named_id("test", "console")
UNUSED: Any = None


@pytest.fixture
async def warehouse(shared_settings: SharedSettings) -> AsyncIterator[Warehouse]:
    async with prepared_warehouse(shared_settings) as made:
        yield made


def decision(number: int, verdict: str, rollout: str = "one", **changes: Any) -> ModelRollout:
    evidence = {
        "arms": {
            "stable": {
                "trajectories": 10,
                "failures": 1,
                "failure_rate": 0.1,
                "reward_mean": "no rewards",
                "unscored": 2,
            },
            "canary": {"trajectories": 5, "x": True},
            "mixed": 0,
        },
        "differences": {"failure": {"difference": 0.02, "margin": 0.05}, "odd": "text", "half": {"margin": 1}},
    }
    plain = ModelRollout(
        rollout_id=named_id("rollout", rollout),
        sequence=number,
        timestamp=AT + timedelta(minutes=number),
        role="support",
        from_version=1,
        to_version=2,
        stage=RolloutStage(index=number, weight=0.1 * number),
        verdict=verdict,
        reason=f"reason {number} <b>",
        actor="ada",
        e_values={"rollback": {"failure": 1.5}},
        evidence=evidence,
    )
    return msgspec.structs.replace(plain, **changes)


def ended(name: str, arm: str, after_s: float, total: float | None, status: str = "success") -> Sequence[Any]:
    claim = PolicyClaim(role="support", version=1, digest="a" * 64, arm=arm, weight=0.1)
    at = AT + timedelta(seconds=after_s)
    one = trajectory(name, policy=claim, end_timestamp=at, outcome=Outcome(status=status))
    reward = Reward(
        reward_id=named_id("reward", name),
        trajectory_id=one.trajectory_id,
        session_id="s",
        timestamp=at,
        reward_components={"a": RewardComponent(score=total or 0, weight=1, source="outcome")},
        total_reward=total or 0,
        reward_type="outcome",
        metadata=RewardMetadata(evaluator="standard", evaluation_method="weighted"),
        role="support",
    )
    return [one, reward] if total is not None else [one]


async def test_rollouts_show_their_decisions_their_evidence_and_what_went_worst(warehouse: Warehouse) -> None:
    facts = [
        decision(0, "start"),
        decision(1, "advance"),
        decision(2, "roll_back"),
        decision(0, "start", "later", timestamp=AT + timedelta(days=1), from_version=None, evidence=None),
        *ended("good", "stable", 10, 0.9),
        *ended("bad", "stable", 20, 0.1),
        *ended("failed", "canary", 30, None, "failure"),
        *ended("fine", "canary", 40, 0.8),
        *ended("unknown", "canary", 50, None),
        *ended("before", "canary", -7200, 0.0),
    ]
    await store(warehouse, *facts)
    async with console(warehouse) as http:
        past = (await http.get("/v1/rollouts/support/past")).json()["rollouts"]
        assert [(one["rollout_id"], one["verdict"], one["decisions"]) for one in past] == [
            (named_id("rollout", "later"), "start", 1),
            (named_id("rollout", "one"), "roll_back", 3),
        ]
        one = {"rollout_id": named_id("rollout", "one")}
        history = (await http.get("/v1/rollouts/support/history", params=one)).json()
        assert [point["verdict"] for point in history["decisions"]] == ["start", "advance", "roll_back"]
        assert (history["from_version"], history["to_version"]) == (1, 2)
        last = history["decisions"][-1]
        unknown = {"low": None, "high": None, "by_share": []}  # a decision of an earlier version has no interval
        assert last["differences"] == {"failure": {"difference": 0.02, "margin": 0.05, **unknown}}
        assert last["counts"] == {
            "stable": {"trajectories": 10, "failures": 1, "failure_rate": 0.1, "unscored": 2},
            "canary": {"trajectories": 5},
        }
        assert last["e_values"] == {"rollback": {"failure": 1.5}}
        newest = (await http.get("/v1/rollouts/support/history")).json()
        assert (newest["rollout_id"], newest["decisions"][0]["counts"]) == (named_id("rollout", "later"), {})
        failures = (await http.get("/v1/rollouts/support/failures", params=one)).json()
        assert [t["trajectory_id"] for t in failures["stable"]] == [
            named_id("trajectory", name) for name in ("bad", "good")
        ]
        assert [t["trajectory_id"] for t in failures["canary"]] == [
            named_id("trajectory", name) for name in ("failed", "fine")
        ]
        for path in ("history?rollout_id=x", "failures?rollout_id=x"):
            missing = await http.get(f"/v1/rollouts/support/{path}")
            assert missing.status_code == 404
            assert "no decision of a rollout x of support is stored" in missing.json()["error"]["message"]
        assert (await http.get("/v1/rollouts/none/past")).json() == {"rollouts": []}


class OneJob:
    """A bucket that holds one job."""

    def __init__(self, snapshot: SnapshotRef | None, artifacts: Artifacts | None = None) -> None:
        asked = request(training_job_id=JOB)
        self._job = Job(
            training_job_id=JOB,
            role="support",
            algorithm="dpo",
            state=JobState.RUNNING,
            priority="normal",
            created_at=AT,
            updated_at=AT,
            request=asked,
            snapshot=snapshot,
            artifacts=artifacts,
        )

    async def get(self, key: str) -> Entry[Job] | None:
        return Entry(self._job, 1) if key == JOB else None


async def answers(training: Training, *paths: str) -> list[Any]:
    others: dict[str, Any] = dict.fromkeys(Subjects.__dataclass_fields__)
    subjects = Subjects(**{**others, "training": training})
    transport = httpx.ASGITransport(called_by(console_api(subjects)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        return [await http.get(path) for path in paths]


def header(rows: int) -> SnapshotHeader:
    return SnapshotHeader(
        kind="snapshot",
        role="support",
        training_job_id=JOB,
        algorithm="dpo",
        created_at=AT,
        filters={},
        sample_size=rows,
        reward_function="standard 1",
        reward_transform="identity",
        watermarks={},
        parent_policy=None,
    )


def written(objects: Objects, form: str, rows: Sequence[Row], chunk: int) -> SnapshotRef:
    with SnapshotWriter(objects, form) as writer:
        for start in range(0, len(rows), chunk):
            writer.add([SnapshotRow(row, RowOrigin(("t",), "human")) for row in rows[start : start + chunk]])
        return writer.publish(header(len(rows)), {"consumed_by_lineage": 7})


def chat(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]


async def test_rows_of_a_snapshot_are_read_where_they_lie(shared_settings: SharedSettings) -> None:
    objects = prepared_objects(shared_settings)
    hostile = "<script>\x00\x1b[31m" + "long " * 1000
    labels = [
        LabelRow(
            trajectory_id=f"t{n}", prompt=[], completion=chat(f"{n} {hostile}"), label=n % 2 == 0, tools=[], source="h"
        )
        for n in range(1000)
    ]
    training = Training(UNUSED, objects, OneJob(written(objects, LABELS, labels, 250)).get)
    paths = [f"/v1/jobs/{JOB}/rows{query}" for query in ("", "?offset=740&limit=20", "?offset=5000", "?limit=101")]
    first, middle, beyond, refused = await answers(training, *paths)
    assert (first.json()["total"], len(first.json()["rows"])) == (1000, 50)
    assert first.json()["left_out"] == {"consumed by lineage": 7}
    assert [row["index"] for row in middle.json()["rows"]] == [*range(740, 760)]
    assert [row["trajectory_id"] for row in middle.json()["rows"]] == [f"t{n}" for n in range(740, 760)]
    assert middle.json()["rows"][0]["reward"] == 1.0
    assert [row["why"] for row in middle.json()["rows"][:2]] == [
        "thumbs up by most raters",
        "thumbs down by most raters",
    ]
    assert middle.json()["rows"][0]["text"].startswith("740 <script>")
    assert len(middle.json()["rows"][0]["text"]) == 300
    assert beyond.json()["rows"] == []
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "limit")


async def test_rows_of_every_format_are_shown(shared_settings: SharedSettings) -> None:
    objects = prepared_objects(shared_settings)
    pair = PairRow(
        preference_id="p", prompt=[], chosen=chat("good"), rejected=chat("bad"), tools=[], source="human", group_key="g"
    )
    tried = TrajectoryRow(
        trajectory_id="t",
        task_key="k",
        reward=0.5,
        raw_reward=0.5,
        baseline=0.2,
        policy_version=3,
        source="client",
        messages=chat("answer"),
        tools=[],
        calls=[],
    )
    planned = execution_row(execution(1), 0.5)
    judged, scored = "a person preferred it", "reward 0.5; 0.3 above the 0.2 expected of its task; version 3 answered"
    for form, row, expected in (
        (
            "pairs",
            pair,
            {"trajectory_id": None, "task": None, "reward": None, "group": "g", "text": "good", "why": judged},
        ),
        (
            "trajectories",
            tried,
            {"trajectory_id": "t", "task": "k", "reward": 0.5, "group": "k", "text": "answer", "why": scored},
        ),
        (
            "executions",
            planned,
            {
                "trajectory_id": planned.workflow_id,
                "task": None,
                "reward": 0.5,
                "group": None,
                "text": planned.instruction,
                "why": "it succeeded; version 1 planned",
            },
        ),
    ):
        training = Training(UNUSED, objects, OneJob(written(objects, form, [row], 10)).get)
        (answer,) = await answers(training, f"/v1/jobs/{JOB}/rows")
        assert answer.json()["rows"] == [{"index": 0, **expected}]
        assert "at most 1 " in answer.json()["conditions"][0]


@pytest.mark.parametrize(("letters", "whole"), [(1_000, True), (200_000, False)])
async def test_card_of_the_trainer_is_read_in_place_and_cut_where_it_is_long(
    shared_settings: SharedSettings, letters: int, whole: bool
) -> None:
    objects = prepared_objects(shared_settings)
    made = objects.put(b"x" * letters, "cards", ".md")
    (answer,) = await answers(
        Training(UNUSED, objects, OneJob(None, Artifacts(model_card=made.uri)).get), f"/v1/jobs/{JOB}/card"
    )
    card = answer.json()
    assert (card["uri"], len(card["text"]), card["is_whole"]) == (made.uri, min(letters, TEXT), whole)
    (without,) = await answers(Training(UNUSED, objects, OneJob(None).get), f"/v1/jobs/{JOB}/card")
    assert without.status_code == 404


async def test_curves_of_a_running_job_come_from_its_heartbeats(warehouse: Warehouse) -> None:
    statuses = [
        TrainingStatus(
            training_job_id=JOB,
            timestamp=AT + timedelta(seconds=step),
            status="running",
            attempt=1,
            progress=Progress(current_step=step),
            metrics=Metrics(current=CurrentMetrics(loss=1 / step, ess=0.2)),
            resource_usage=ResourceUsage(gpu_hours=0.5),
            metadata=StatusMetadata(worker="w1"),
        )
        for step in range(1, 2501)
    ]
    await store(warehouse, *statuses)
    other = named_id("test", "other")
    paths = (f"/v1/jobs/{JOB}/curves", f"/v1/jobs/{other}/curves", f"/v1/jobs/{JOB}/rows", "/v1/jobs/..%2f/curves")
    shown, missing, no_rows, wrong = await answers(Training(warehouse, UNUSED, OneJob(None).get), *paths)
    curves = {curve["name"]: curve for curve in shown.json()["curves"]}
    assert 500 <= len(curves["loss"]["points"]) <= 1000
    assert curves["loss"]["points"][-1][0] >= 2499
    assert curves["ess"]["good"]["low"] == 0.3
    assert curves["loss"]["meaning"].startswith("What training minimises")
    assert [(attempt["number"], attempt["worker"], attempt["gpu_hours"]) for attempt in shown.json()["attempts"]] == [
        (1, "w1", 0.5)
    ]
    assert missing.json()["error"]["message"] == f"there is no job {other}"
    assert no_rows.json()["error"]["message"] == f"job {JOB} has no snapshot yet: it is running"
    assert wrong.status_code in (404, 422)
