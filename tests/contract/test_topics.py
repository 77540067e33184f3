"""`topics.json`: subjects, streams and buckets, and how a subject finds its topic."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from ratchet.bus.contracts import Contracts
from ratchet.bus.registry import BucketSpec
from ratchet.core.contract import MESSAGES, state
from ratchet.core.contract.snapshot import ROWS
from ratchet.core.errors import NotFound, UnknownSubject
from ratchet.core.resources import resource_dir
from tests.support.contract_files import ALL_SCHEMAS, CONTRACTS, ROOT, SCHEMAS, STORED, examples


def overlap(one: str, other: str) -> bool:
    """Whether a subject exists that both filters take; `*` stands for one token."""
    pairs = list(itertools.zip_longest(one.split("."), other.split(".")))
    return all(left and right and (left == right or "*" in {left, right}) for left, right in pairs)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("a.b", "a.b", True), ("a.*", "a.b", True), ("a.*", "*.b", True), ("a", "a.*", False), ("a.b", "a.c", False)],
)
def test_overlap_of_filters(one: str, other: str, expected: bool) -> None:
    assert overlap(one, other) is expected


def test_no_two_subjects_of_streams_overlap() -> None:
    subjects = [subject for stream in CONTRACTS.streams.values() for subject in stream.subjects]
    assert [pair for pair in itertools.combinations(subjects, 2) if overlap(*pair)] == []


def test_streams_list_exactly_the_subjects_of_their_topics() -> None:
    for stream in CONTRACTS.streams.values():
        topics = [topic.name for topic in CONTRACTS.topics.values() if topic.stream == stream.name]
        assert set(stream.subjects) == {listed(subject) for topic in topics for subject in CONTRACTS.subjects(topic)}


def listed(subject: str) -> str:
    """A subject as its stream has it, never a literal one: the broker would push there what any reader asks for."""
    return subject if "*" in subject else subject.replace("agent.rl.", "agent.*.", 1)


def test_every_topic_has_a_message_type_a_schema_and_a_stream() -> None:
    assert set(CONTRACTS.topics) == set(MESSAGES)
    for topic in CONTRACTS.topics.values():
        assert topic.name == MESSAGES[topic.name].TOPIC
        assert topic.schema in SCHEMAS or topic.producers == topic.consumers == ("gateway",)
        assert topic.stream in CONTRACTS.streams
        assert topic.producers
        assert topic.consumers


def test_the_order_of_turns_and_their_end_is_kept_by_one_stream() -> None:
    assert CONTRACTS.topics["agent.rl.trajectory.end.v1"].stream == CONTRACTS.topics["agent.rl.turn.v1"].stream


@pytest.mark.parametrize(
    ("stream", "days", "messages"),
    [("RL_TRAJECTORIES", 30, 1_000_000), ("RL_REWARDS", 30, 500_000), ("RL_TRAINING", 7, 10_000)],
)
def test_streams_keep_messages_for_days_and_up_to_a_number(stream: str, days: int, messages: int) -> None:
    spec = CONTRACTS.streams[stream]
    assert (spec.max_age_s, spec.max_msgs, spec.retention) == (days * 86_400, messages, "limits")


@pytest.mark.parametrize("stream", ["RL_JOBS", "RL_OPT_OUTS"])
def test_work_queues_have_no_age(stream: str) -> None:
    queue = CONTRACTS.streams[stream]
    assert (queue.retention, queue.max_age_s) == ("workqueue", None)


REFUSING = ("TRAJECTORIES", "STARTS", "TURNS", "SPANS", "FEEDBACK", "WORKFLOWS", "OPT_OUTS", "AUDIT")


def test_full_streams_of_runs_refuse_new_messages_and_drop_no_old_ones() -> None:
    refusing = [s.name for s in CONTRACTS.streams.values() if s.discard == "new"]
    assert refusing == [f"RL_{name}" for name in REFUSING]


@pytest.mark.parametrize("stream", [f"RL_{name}" for name in REFUSING] + ["RL_DEADLETTERS"])
def test_streams_of_large_messages_are_bounded_in_bytes(stream: str) -> None:
    assert CONTRACTS.streams[stream].max_bytes


def test_every_bucket_that_state_is_kept_in_exists() -> None:
    kept = {state.POLICIES, state.ROLLOUTS, state.JOBS, state.BASELINES}
    assert kept <= set(CONTRACTS.buckets)


@pytest.mark.parametrize("bucket", list(CONTRACTS.buckets.values()), ids=lambda bucket: bucket.name)
def test_every_bucket_has_a_writer(bucket: BucketSpec) -> None:
    assert bucket.writers, "a bucket without a writer is not used"


def test_the_cursor_of_every_projection_is_described() -> None:
    places = {kind.where for kind in STORED}
    for projection in CONTRACTS.projections.values():
        assert f"bucket {projection.bucket}, key cursor-<projection>" in places


def test_rows_are_described_by_their_format() -> None:
    formats = {one.where.rpartition(" ")[2] for one in STORED if "rows of" in one.where}
    assert formats == set(ROWS)


def test_stored_values_are_described_that_another_service_reads() -> None:
    kept = [kind for kind in STORED if not kind.where.startswith("webhook ")]  # those are read elsewhere
    assert [kind.where for kind in kept if set(kind.readers) <= set(kind.writers)] == []


@pytest.mark.parametrize(
    ("subject", "topic"),
    [
        ("agent.rl.trajectory.v1", "agent.rl.trajectory.v1"),
        ("agent.rl.trajectory.v1.help-desk_2", "agent.rl.trajectory.v1"),
        ("agent.rl.trajectory.end.v1.helpdesk", "agent.rl.trajectory.end.v1"),
        ("agent.rl.training.dispatch.v1.gpu", "agent.rl.training.dispatch.v1"),
        ("agent.rl.deadletter.v1.RL_TURNS.invalid", "agent.rl.deadletter.v1"),
        ("agent.rl.alert.v1", "agent.rl.alert.v1"),
    ],
)
def test_a_subject_finds_its_topic(subject: str, topic: str) -> None:
    assert CONTRACTS.topic_of(subject).name == topic


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "agent.rl.trajectory",
        "agent.rl.trajectory.v2",
        "agent.rl.trajectory.v1.",
        "agent.rl.trajectory.v1.Help",
        "agent.rl.trajectory.v1.a.b",
        "agent.rl.trajectory.v1.a\n",
        "agent.rl.trajectory.v1." + "a" * 65,
        "agent.rl.trajectory.v1.*",
        "agent.rl.training.dispatch.v1",
        "agent.rl.alert.v1.helpdesk",
        "agentXrl.trajectory.v1",
    ],
)
def test_an_unregistered_subject_is_an_error(subject: str) -> None:
    with pytest.raises(UnknownSubject):
        CONTRACTS.topic_of(subject)


def test_filters_of_a_topic_name_the_bare_subject_and_the_template() -> None:
    assert CONTRACTS.subjects("agent.rl.turn.v1") == ["agent.rl.turn.v1", "agent.rl.turn.v1.*"]
    assert CONTRACTS.subjects("agent.rl.alert.v1") == ["agent.rl.alert.v1"]
    assert CONTRACTS.subjects("agent.rl.deadletter.v1") == ["agent.rl.deadletter.v1.*.*"]


def test_an_unknown_topic_is_an_error() -> None:
    with pytest.raises(UnknownSubject, match="nonsense"):
        CONTRACTS.subjects("nonsense")
    with pytest.raises(UnknownSubject, match="nonsense"):
        CONTRACTS.check_strict_json("nonsense", b"{}")


def test_a_checkout_reads_its_own_contracts() -> None:
    assert Path(__file__).parents[2] / "contracts" == ROOT


def test_a_missing_resource_is_one_clear_line() -> None:
    with pytest.raises(NotFound, match="installation is incomplete"):
        resource_dir("no-such-directory")


def test_every_schema_has_examples_and_every_directory_of_examples_schema() -> None:
    assert {directory.name for directory in (ROOT / "examples").iterdir()} == set(ALL_SCHEMAS)
    assert {example.schema for example in examples("invalid")} == set(ALL_SCHEMAS)


def test_contracts_load_from_any_directory() -> None:
    assert set(Contracts.load(ROOT, MESSAGES).topics) == set(MESSAGES)
