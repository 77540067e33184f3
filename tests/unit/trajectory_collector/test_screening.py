"""What no client or gateway has redacted is redacted before it is stored, or refused, and counted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ratchet.bus.consumer import Dead, Done, Outcome
from ratchet.bus.envelope import REDACTED_BY
from ratchet.bus.received import Received
from ratchet.core.contract import Message, ModelRollout, encode
from ratchet.core.contract.turn import PromptTokens, Trainable
from ratchet.core.rules.capture import Reason
from ratchet.core.rules.redaction import rules_digest
from ratchet.core.service.contracts import load_contracts
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.screening import Screen
from tests.support.contract_files import example
from tests.support.messages import AT, trajectory, turn

MAIL = "mia@example.com"
CONTRACTS = load_contracts()


def received(message: Message, sequence: int = 1, rules: str | None = None) -> Received[Any]:
    headers = {REDACTED_BY: rules} if rules else {}
    return Received(
        message=message,
        subject=message.subject,
        stream="S",
        sequence=sequence,
        delivered=1,
        event_id=message.event_id,
        time=AT,
        correlation_id=message.event_id,
        headers=headers,
        body=encode(message),
    )


class Stored:
    """A handler that keeps what it was given."""

    def __init__(self) -> None:
        self.batch: Sequence[Received[Any]] = ()

    async def __call__(self, batch: Sequence[Received[Any]]) -> Sequence[Outcome]:
        self.batch = batch
        return [Done() for _ in batch]


def screen(*, refuse: bool = False) -> Screen:
    return Screen(CONTRACTS, rules_digest(), refuse)


def counted(topic: str, by: str) -> float:
    return metrics.UNREDACTED.labels(topic, by)._value.get()


@pytest.mark.parametrize(("rules", "by"), [(None, "none"), ("0123456789abcdef", "other rules")])
async def test_what_names_no_rules_or_others_is_stored_without_secrets(rules: str | None, by: str) -> None:
    message, stored = trajectory(labels={"mail": MAIL}), Stored()
    before = counted(message.TOPIC, by)
    outcomes = await screen().handle([received(message, rules=rules)], stored)
    assert outcomes == [Done()]
    assert stored.batch[0].message.labels == {"mail": "[REDACTED:email]"}
    assert MAIL not in stored.batch[0].body.decode()
    assert counted(message.TOPIC, by) == before + 1


async def test_what_the_same_rules_have_redacted_is_taken_as_it_is() -> None:
    message, stored = trajectory(labels={"mail": MAIL}), Stored()
    given = received(message, rules=rules_digest())
    await screen().handle([given], stored)
    assert stored.batch[0] is given


async def test_a_refusing_collector_makes_unstamped_messages_dead_and_no_others() -> None:
    batch = [
        received(trajectory(), 1),
        received(trajectory(), 2, rules_digest()),
        received(trajectory(labels={"m": MAIL}), 3, "older"),
    ]
    stored = Stored()
    outcomes = await screen(refuse=True).handle(batch, stored)
    assert [type(outcome) for outcome in outcomes] == [Dead, Done, Done]
    assert [one.sequence for one in stored.batch] == [2, 3]
    assert MAIL not in stored.batch[1].body.decode()


async def test_a_turn_with_a_secret_loses_the_token_ids_that_spell_it() -> None:
    whole = turn(
        messages=[{"role": "user", "content": MAIL}],
        prompt_token_ids=PromptTokens(suffix=[1, 2]),
        output_token_ids=[3],
        behavior_logprobs=[-0.5],
        trainable=Trainable(ok=True),
    )
    stored = Stored()
    await screen().handle([received(whole)], stored)
    safe = json.loads(stored.batch[0].body)
    assert MAIL not in stored.batch[0].body.decode()
    assert {"prompt_token_ids", "output_token_ids", "behavior_logprobs"}.isdisjoint(safe)
    assert stored.batch[0].message.trainable == Trainable(ok=False, reason=Reason.REDACTED)


async def test_what_cannot_be_searched_is_dead_and_stops_no_neighbour() -> None:
    deep: Any = MAIL
    for _ in range(120):
        deep = [deep]
    outcomes = await screen().handle(
        [received(trajectory(labels={"deep": deep}), 1), received(trajectory(), 2)], Stored()
    )
    assert [type(outcome) for outcome in outcomes] == [Dead, Done]


async def test_messages_of_services_are_not_searched() -> None:
    message, stored = msgspec.convert(example("model.rollout.v1"), ModelRollout), Stored()
    given = received(message)
    await screen(refuse=True).handle([given], stored)
    assert stored.batch[0] is given


def test_topics_of_peoples_words_are_those_that_are_redacted() -> None:
    named = {name.removeprefix("agent.rl.") for name, topic in CONTRACTS.topics.items() if topic.redacted}
    assert named == {
        *("trajectory.v1", "trajectory.end.v1", "turn.v1", "spans.v1", "feedback.v1", "preference.v1"),
        "workflow.execution.v1",
    }
