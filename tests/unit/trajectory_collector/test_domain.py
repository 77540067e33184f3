"""Assembling trajectories from turns."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ratchet.contract import MESSAGES, Message, Outcome
from ratchet.contract.trajectory import Quality, TaskContext
from ratchet.reward_computer.components.user_feedback import score_of
from ratchet.rules.chat import chat_messages
from ratchet.service.contracts import load_contracts
from ratchet.trajectory_collector.app import collected
from ratchet.trajectory_collector.domain import (
    Report,
    assemble,
    assemble_idle,
    assembly_id,
    is_complete,
    is_fuller,
    report_of,
    update_of,
)
from ratchet.trajectory_collector.rows import TABLES
from tests.support.contract_files import CONTRACTS
from tests.support.messages import trajectory, trajectory_end, turn


def test_the_assembled_trajectory_holds_the_chat_of_its_turns() -> None:
    turns = [turn("ride", n) for n in range(3)]
    assembled = assemble(trajectory_end("ride"), turns)
    contents = [message["content"] for message in chat_messages(assembled)]
    assert contents == ["Be helpful.", "question 0", "answer 0", "question 1", "answer 1", "question 2", "answer 2"]
    assert [entry.turn_ref for entry in assembled.turns] == [one.turn_id for one in turns]
    assert assembled.metadata.total_tokens == 45


def test_the_policy_is_a_fact_from_the_turns_and_mixed_when_the_arm_changed_in_flight() -> None:
    first, second = turn("ride", 0), turn("ride", 1)
    assert assemble(trajectory_end("ride"), [first, second]).policy == first.policy
    other = msgspec.structs.replace(second, policy=msgspec.structs.replace(second.policy, arm="canary", version=2))
    policy = assemble(trajectory_end("ride"), [first, other]).policy
    assert policy is not None
    assert (policy.arm, policy.version) == ("mixed", 1)


def test_instructions_and_tools_are_the_ones_the_model_saw() -> None:
    tools = [{"type": "function", "function": {"name": "lookup"}}]
    assembled = assemble(trajectory_end("ride"), [turn("ride", 0, tools=tools, tools_digest="1" * 64)])
    assert assembled.task_context.instructions == "Be helpful."
    assert assembled.task_context.tools == tools
    assert assembled.task_context.group_key == "group-ride"


def test_an_end_without_a_task_is_a_task_of_its_own() -> None:
    assembled = assemble(trajectory_end("ride", task_context=None), [turn("ride")])
    assert assembled.task_context == TaskContext(task_id=assembled.trajectory_id, instructions="Be helpful.")


@pytest.mark.parametrize(
    ("seen", "stored", "complete"), [(None, 0, False), (None, 1, True), (2, 1, False), (2, 2, True), (0, 0, False)]
)
def test_a_trajectory_is_complete_when_the_turns_that_the_gateway_saw_are_stored(
    seen: int | None, stored: int, complete: bool
) -> None:
    assert is_complete(trajectory_end(turns=seen), [turn("one", n) for n in range(stored)]) is complete


def test_every_message_of_a_collected_stream_has_a_handler() -> None:
    contracts = load_contracts()
    streams = collected(contracts)
    assert {name for name, topic in contracts.topics.items() if topic.stream in streams} == set(TABLES)
    kinds: list[type[Message]] = [MESSAGES[topic] for topic in TABLES]
    assert len(kinds) == len({table.name for table in TABLES.values()})


def test_a_silent_trajectory_claims_nothing_and_is_the_same_from_every_collector() -> None:
    turns = [turn("ride", n) for n in range(2)]
    assembled = assemble_idle("support", turns[0].trajectory_id, turns)
    assert assembled == assemble_idle("support", turns[0].trajectory_id, turns)
    assert (assembled.outcome, assembled.end_timestamp) == (None, turns[1].timestamp)
    assert assembled.event_id == assemble(trajectory_end("ride"), turns).event_id


def test_each_set_of_turns_is_a_report_of_its_own_of_one_event() -> None:
    short, long = (
        assemble_idle("support", turn("ride").trajectory_id, [turn("ride", n) for n in range(count)])
        for count in (1, 2)
    )
    assert short.event_id == long.event_id
    assert len({assembly_id(short), assembly_id(long), short.event_id}) == 3


def test_only_a_provisional_report_is_replaced_and_only_by_a_fuller_one() -> None:
    turns = [turn("ride", n) for n in range(2)]
    short, long = (assemble_idle("support", turns[0].trajectory_id, turns[:count]) for count in (1, 2))
    ended = assemble(trajectory_end("ride"), turns)
    client = trajectory("ride")
    reports = (short, long, ended, client)
    fuller = [(reports.index(a), reports.index(b)) for a in reports for b in reports if is_fuller(a, report_of(b))]
    assert fuller == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert not Report("assembled", 1, has_outcome=True).is_provisional


def test_late_claims_of_an_agent_ask_for_a_revision_and_are_no_opinion() -> None:
    """An outcome, a quality or a label alone is enough; equal claims ask once, other claims again."""
    silent = trajectory("ride", outcome=None)
    assert update_of(silent) is None
    claiming = [
        trajectory("ride", outcome=Outcome(status="failure")),
        trajectory("ride", outcome=None, quality=Quality(lint_score=9.0)),
        trajectory("ride", outcome=None, labels={"scores": {"safety": 0.0}}),
    ]
    updates = [update_of(one) for one in claiming]
    assert [update.kind for update in updates if update] == ["update"] * 3
    assert all(score_of(update) is None for update in updates if update)
    assert len({update.feedback_id for update in updates if update}) == 3
    assert update_of(claiming[0]) == updates[0]
    CONTRACTS.check_strict(updates[0] or claiming[0])


@pytest.mark.parametrize("adds", [{"quality": Quality(lint_score=9.0)}, {"labels": {"scores": {"safety": 0.0}}}])
def test_a_report_without_an_outcome_that_adds_quality_or_labels_is_fuller(adds: dict[str, Any]) -> None:
    turns = [turn("ride", n) for n in range(2)]
    silent = assemble_idle("support", turns[0].trajectory_id, turns)
    ended = assemble(trajectory_end("ride", outcome=None, **adds), turns)
    assert is_fuller(ended, report_of(silent))
    assert not is_fuller(ended, report_of(ended))
    assert not is_fuller(silent, report_of(ended))


def test_a_trajectory_in_two_roles_is_two_events_and_two_reports() -> None:
    turns = [turn("ride", n) for n in range(2)]
    one, other = (assemble_idle(role, turns[0].trajectory_id, turns) for role in ("planner", "support"))
    assert one.event_id != other.event_id
    assert assembly_id(one) != assembly_id(other)
    assert trajectory_end("ride").event_id != trajectory_end("ride", role="planner").event_id
