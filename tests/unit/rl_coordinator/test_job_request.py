"""A body of the HTTP API becomes exactly the message of the contract, and no member of it is quietly ignored."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from ratchet.bus.message import named_id
from ratchet.core.contract.http.jobs import JobOut
from ratchet.core.contract.state import Job
from ratchet.core.contract.training import (
    Checkpointing,
    Compute,
    Dataset,
    DatasetFilter,
    DateRange,
    Evaluation,
    Hyperparameters,
    Lora,
    RequestMetadata,
    ResourceUsage,
    SnapshotRef,
    TrainingConfig,
    TrainingRequest,
)
from ratchet.core.errors import Rejected
from ratchet.core.rules.job_facts import job_out
from ratchet.core.service.contracts import load_contracts
from ratchet.rl_coordinator.http.job_request import job_body, training_request
from tests.support.training import NOON, after, job

FRESH = named_id("fresh")
BODY = job_body()


def request_of(body: dict[str, Any]) -> TrainingRequest:
    """The request that a body stands for."""
    return training_request(BODY.read(msgspec.json.encode(body)), FRESH, NOON)


def test_every_setting_reaches_the_request() -> None:
    body = {
        "algorithm": "ppo",
        "role": "support",
        "base_model": "s3://b/policies/x.json",
        "dataset": {
            "source": "clickhouse",
            "sample_size": 100,
            "filter": {
                "min_reward": 0.5,
                "max_trajectory_length": 20,
                "date_range": {"start": NOON.isoformat(), "end": after(9).isoformat()},
                "task_domains": ["coding"],
                "exclude_subordinate_profiles": ["hacker"],
                "sources": ["assembled"],
            },
            "reward_transform": "negate",
        },
        "hyperparameters": {
            "learning_rate": 1e-5,
            "batch_size": 8,
            "clip_epsilon": 0.2,
            "lora": {"r": 8, "alpha": 16},
            "rejection_window": [0.9, 1.1],
            "seed": 7,
        },
        "compute": {"threads": 1, "gpu_count": 0},
        "checkpointing": {"save_interval": 10},
        "evaluation": {"enabled": True, "holdout_size": 0.1},
        "priority": "high",
        "requester": "mia",
        "notes": "weekly",
        "deadline": after(60).isoformat(),
        "start_hours": "22-6",
        "offer": False,
    }
    made = request_of(body)
    load_contracts().check_strict(made)
    assert made == TrainingRequest(
        training_job_id=FRESH,
        timestamp=NOON,
        requester="mia",
        trigger_reason="manual",
        role="support",
        priority="high",
        deadline=after(60),
        start_hours="22-6",
        offer=False,
        evaluation=Evaluation(enabled=True, holdout_size=0.1),
        metadata=RequestMetadata(notes="weekly"),
        training_config=TrainingConfig(
            algorithm="ppo",
            base_model="s3://b/policies/x.json",
            dataset=Dataset(
                source="clickhouse",
                sample_size=100,
                filter=DatasetFilter(
                    min_reward=0.5,
                    max_trajectory_length=20,
                    date_range=DateRange(start=NOON, end=after(9)),
                    task_domains=["coding"],
                    exclude_subordinate_profiles=["hacker"],
                    sources=["assembled"],
                ),
                reward_transform="negate",
            ),
            hyperparameters=Hyperparameters(
                learning_rate=1e-5,
                batch_size=8,
                clip_epsilon=0.2,
                lora=Lora(r=8, alpha=16),
                rejection_window=[0.9, 1.1],
                seed=7,
            ),
            compute=Compute(threads=1, gpu_count=0),
            checkpointing=Checkpointing(save_interval=10),
        ),
    )


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("HyperparametersIn", Hyperparameters),
        ("LoraIn", Lora),
        ("ComputeIn", Compute),
        ("CheckpointingIn", Checkpointing),
        ("EvaluationIn", Evaluation),
        ("DatasetIn", Dataset),
        ("FilterIn", DatasetFilter),
        ("DateRangeIn", DateRange),
        ("SnapshotIn", SnapshotRef),
    ],
)
def test_the_api_knows_every_member_of_the_message(model: str, kind: Any) -> None:
    assert set(BODY.schemas()[model]["properties"]) == set(kind.__struct_fields__)


def test_answer_has_every_member_of_a_job_but_coordinators_own_bookkeeping() -> None:
    hidden = {"rewarded", "preferences", "announced", "spent", "instance", "forgiven"}
    derived = {"queue_wait_s"}
    assert set(JobOut.__struct_fields__) - derived == set(Job.__struct_fields__) - hidden
    assert job_out(job(), after(3)).training_job_id == job().training_job_id


def test_an_answer_has_how_long_a_job_waited_and_what_it_cost() -> None:
    assert job_out(job(), after(90)).queue_wait_s == 90
    begun = job(state="running", dispatched_at=after(5), resource_usage=ResourceUsage(cost_usd=2.0))
    shown = job_out(begun, after(90))
    assert (shown.queue_wait_s, shown.resource_usage) == (5, ResourceUsage(cost_usd=2.0))


def test_bare_request_means_the_stable_policy_and_the_algorithms_defaults() -> None:
    made = request_of({"algorithm": "sft"})
    assert made.training_config == TrainingConfig(
        algorithm="sft",
        base_model="stable",
        dataset=Dataset(source="clickhouse", sample_size=5000),
        hyperparameters=Hyperparameters(),
    )
    assert (made.role, made.requester) == ("default", "api")


def test_the_id_is_the_given_one_or_follows_from_the_key_or_is_fresh() -> None:
    given = named_id("given")
    keyed = {"algorithm": "sft", "idempotency_key": "nightly"}
    first, again = (request_of(keyed) for _ in range(2))
    other_role = request_of({**keyed, "role": "sales"})
    assert request_of({**keyed, "training_job_id": given}).training_job_id == given
    assert first.training_job_id == again.training_job_id != other_role.training_job_id
    assert FRESH not in {first.training_job_id, other_role.training_job_id}


@pytest.mark.parametrize(
    "body",
    [
        {"algorithm": "rloo", "learning_rate": 1e-5},
        {"algorithm": "rloo", "hyperparameters": {"learning_rate": "1e-5"}},
        {"algorithm": "rloo", "hyperparameters": {"learning_rate": 0}},
        {"algorithm": "rloo", "hyperparameters": {"batch_size": True}},
        {"algorithm": "rloo", "hyperparameters": {"batch_size": 1.5}},
        {"algorithm": "rloo", "hyperparameters": {"lora": {"rank": 8}}},
        {"algorithm": "rloo", "dataset": {"sample_size": 0}},
        {"algorithm": "rloo", "dataset": {"source": "everywhere"}},
        {"algorithm": "rloo", "role": "Support Desk"},
        {"algorithm": "rloo", "priority": "now"},
        {"algorithm": "rloo", "training_job_id": "7"},
        {"algorithm": "rloo", "base_model": ""},
        {"algorithm": "rloo", "deadline": "2026-05-01T10:00:00"},
        {"algorithm": "rloo", "hyperparameters": {"seed": -1}},
        {"algorithm": "rloo", "hyperparameters": {"seed": 1e300}},
        {"algorithm": "rloo", "hyperparameters": {"label_smoothing": 0.5}},
        {},
    ],
)
def test_a_body_that_breaks_the_schema_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(Rejected):
        request_of(body)


def test_body_of_many_values_is_refused_before_it_is_checked() -> None:
    began = time.process_time()
    with pytest.raises(Rejected, match="more than 5000 values"):
        BODY.read(b'{"dataset":{"filter":{"sources":[' + b"{}," * 85_000 + b"{}]}}}")
    assert time.process_time() - began < 0.2


def test_every_member_at_fault_is_named_and_the_first_is_the_param() -> None:
    body = {"algorithm": "rloo", "rank": 8, "hyperparameters": {"epochs": 0, "lora": {"alpha": "x"}}}
    with pytest.raises(Rejected) as refused:
        request_of(body)
    assert {part.partition(":")[0] for part in str(refused.value).split("; ")} == {
        "rank",
        "hyperparameters.epochs",
        "hyperparameters.lora.alpha",
    }
    assert refused.value.param == str(refused.value).partition(":")[0]


def test_null_means_absent() -> None:
    body = {"algorithm": "sft", "compute": None, "dataset": {"filter": {"min_reward": None}}, "deadline": None}
    assert request_of(body) == request_of({"algorithm": "sft", "dataset": {"filter": {}}})


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b"[" * 5000, b'{"a": "\xff"}', b'{"seed": 1e400}'])
def test_a_body_that_is_not_a_json_object_is_refused(content: bytes) -> None:
    with pytest.raises(Rejected):
        BODY.read(content)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            {"hyperparameters": {"learning_rat": 1}},
            "hyperparameters.learning_rat: there is no such setting; did you mean learning_rate?",
        ),
        ({"algoritm": "sft"}, "algoritm: there is no such setting; did you mean algorithm?"),
        (
            {"hyperparameters": {"qqq": 1}},
            f"hyperparameters.qqq: there is no such setting, only {', '.join(Hyperparameters.__struct_fields__)}",
        ),
        ({"start_hours": "22:00"}, "start_hours: must be two hours of the day in UTC, such as 22-6, not '22:00'"),
        ({"priority": "extreme"}, "priority: must be one of low, normal, high, urgent, not 'extreme'"),
    ],
)
def test_misspelt_setting_leads_to_the_nearest_one_and_a_wrong_word_to_all(body: dict[str, Any], reason: str) -> None:
    with pytest.raises(Rejected) as error:
        BODY.read(msgspec.json.encode({"algorithm": "sft", **body}))
    assert str(error.value) == reason
