"""Rewards are scored by a reward model beside the plane: once per text, and never held up by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from ratchet.bus.consumer import Done, Outcome, Retry
from ratchet.bus.message import JsonObject
from ratchet.core.contract import Feedback
from ratchet.core.contract.reward import JUDGEMENT
from ratchet.core.errors import ConfigError, Unavailable
from ratchet.core.evaluation.reward_scores import RewardScores, reward_model_digest
from ratchet.core.preferences.rules.base import Try
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.http_client import Peer, Reply, error_of
from ratchet.reward_computer.components import Evidence
from ratchet.reward_computer.domain.reward import Circumstances, RewardSpec, reward_of
from ratchet.reward_computer.model_notes import ModelNotes
from ratchet.reward_computer.scoring import Scoring
from ratchet.reward_computer.settings import Settings, spec_of
from tests.support.messages import AT, trajectory
from tests.support.rewards import FUNCTION, Settled, StoredFacts, received

DIGEST, OTHER = "ab" * 32, "cd" * 32
SPEC = RewardSpec(
    function=FUNCTION,
    weights={"support": {"task_completion": 0.5, "reward_model": 0.5}},
    reward_models={"default": DIGEST},
)
WORDS = [{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "It arrives today."}]


class Engine:
    """Answers `/classify` as an engine does, or with an error."""

    peer = Peer("the engine", "http://127.0.0.1:1")

    def __init__(self, answer: float | int | Exception) -> None:
        """A share is a score, a whole number a status."""
        self.answer = answer
        self.asked: list[JsonObject] = []

    async def exchange(self, method: str, path: str, *, body: JsonObject, headers: object = None) -> Reply:
        assert (method, path) == ("POST", "/classify")
        self.asked.append(body)
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, int):
            return Reply(self.answer, b'{"error": {"message": "no"}}', {})
        return Reply(200, msgspec.json.encode({"data": [{"index": 0, "probs": [self.answer]}]}), {})

    def content_of(self, reply: Reply) -> bytes:
        if reply.status != 200:
            raise error_of(self.peer, reply)
        return reply.content


def tried(**changes: Any) -> Try:
    plain: dict[str, Any] = {"trajectory_id": trajectory().trajectory_id, "role": "support", "task_key": "task"}
    return Try(**(plain | {"messages": WORDS} | changes))


def scoring(engine: Engine, *tries: Try, facts: Any = None, after: timedelta = timedelta(0)) -> Scoring:
    async def texts(_: object) -> dict[tuple[str, str], Try]:
        return {(one.role, one.trajectory_id): one for one in tries}

    return Scoring(
        Settled(SPEC),
        partial(RewardScores, engine),
        facts or StoredFacts(),
        texts,
        lambda: AT + after,
        timedelta(hours=1),
        ModelNotes(lambda: AT + after),
    )


async def outcome_of(made: Scoring, spec: RewardSpec = SPEC) -> Outcome:
    reward = reward_of(spec, Evidence(trajectory()), Circumstances(AT))
    (outcome,) = await made.scores([received(reward)])
    return outcome


def published(outcome: Outcome) -> Feedback:
    assert isinstance(outcome, Done)
    (event,) = outcome.events
    assert isinstance(event, Feedback)
    load_contracts().check_strict(event)
    return event


async def test_score_is_feedback_that_names_the_reward_model() -> None:
    engine = Engine(0.75)
    score = published(await outcome_of(scoring(engine, tried(user_ref="u1", tools=[{"type": "function"}]))))
    assert (score.kind, score.value, score.user_ref) == (JUDGEMENT, 0.75, "u1")
    assert score.judge is not None
    assert (score.judge.digest, score.judge.model) == (DIGEST, "reward_model-abababab")
    assert engine.asked == [{"model": DIGEST, "messages": WORDS, "tools": [{"type": "function"}]}]


async def test_score_becomes_the_component_of_the_next_revision() -> None:
    score = published(await outcome_of(scoring(Engine(0.75), tried())))
    first = reward_of(SPEC, Evidence(trajectory()), Circumstances(AT))
    next_one = reward_of(SPEC, Evidence(trajectory(), [score]), Circumstances(AT, 1, scored=["task_completion"]))
    assert not first.reward_components["reward_model"].applicable
    part = next_one.reward_components["reward_model"]
    assert (part.score, part.weight, next_one.first_scored) == (0.75, 0.5, ["reward_model"])
    assert (next_one.metadata.digests or {})["reward_model"] == DIGEST
    assert next_one.total_reward == pytest.approx(0.875)


async def test_score_of_another_reward_model_does_not_count() -> None:
    score = published(await outcome_of(scoring(Engine(0.75), tried())))
    renewed = msgspec.structs.replace(SPEC.function, version="2")
    spec = RewardSpec(function=renewed, weights=SPEC.weights, reward_models={"default": OTHER})
    assert (
        not reward_of(spec, Evidence(trajectory(), [score]), Circumstances(AT))
        .reward_components["reward_model"]
        .applicable
    )
    assert spec.digest != SPEC.digest


async def test_trajectory_is_scored_once_and_again_when_there_is_more_in_it() -> None:
    facts, engine = StoredFacts(), Engine(0.75)
    facts.store(published(await outcome_of(scoring(engine, tried(), facts=facts))))
    assert await outcome_of(scoring(engine, tried(), facts=facts)) == Done()
    fuller = tried(messages=[*WORDS, {"role": "user", "content": "And?"}, {"role": "assistant", "content": "At 5."}])
    assert published(await outcome_of(scoring(engine, fuller, facts=facts))).value == 0.75
    assert len(engine.asked) == 2


@pytest.mark.parametrize("arm", ["pinned", "mixed"])
async def test_evaluation_traffic_and_mixed_trajectories_are_not_scored(arm: str) -> None:
    engine = Engine(0.75)
    assert await outcome_of(scoring(engine, tried(arms=frozenset({arm})))) == Done()
    assert engine.asked == []


async def test_role_without_the_component_asks_nothing() -> None:
    engine, spec = Engine(0.75), RewardSpec(function=FUNCTION, reward_models={"default": DIGEST})
    made = replace(scoring(engine, tried()), functions=Settled(spec))
    assert await outcome_of(made) == Done()
    assert engine.asked == []


@pytest.mark.parametrize("answer", [Unavailable("it does not answer"), 404, 424, 429, 503])
async def test_engine_that_is_away_is_asked_again_for_a_while_and_noted(answer: Exception | int) -> None:
    made = scoring(Engine(answer), tried())
    outcome = await outcome_of(made)
    assert isinstance(outcome, Retry)
    assert outcome.away
    assert "reward_model-abababab gives no score" in (await made.notes.check() or "")
    late = scoring(Engine(answer), tried(), after=timedelta(hours=2))
    assert await outcome_of(late) == Done()


async def test_note_ends_with_the_next_score() -> None:
    engine = Engine(503)
    made = scoring(engine, tried())
    await outcome_of(made)
    engine.answer = 0.5
    await outcome_of(made)
    assert await made.notes.check() is None


async def test_conversation_that_cannot_be_read_stays_without_a_score_at_once() -> None:
    assert await outcome_of(scoring(Engine(400), tried())) == Done()
    assert isinstance(await outcome_of(scoring(Engine(0.5))), Retry)  # its turns are not stored yet


def configured(**settings: Any) -> Callable[[], RewardSpec]:
    weights = {"support": {"task_completion": 1.0, "reward_model": 0.0}}
    return lambda: spec_of(Settings(**{"weights": weights, **settings}))


def test_reward_model_is_named_by_its_digest_or_the_uri_of_its_manifest() -> None:
    uri = f"s3://ratchet/policies/{DIGEST}.json"
    assert configured(models={"support": uri})().reward_model_of("support") == DIGEST
    assert configured(models={"default": DIGEST})().reward_model_of("support") == DIGEST
    assert reward_model_digest(DIGEST) == DIGEST


@pytest.mark.parametrize("models", [{}, {"other": DIGEST}, {"support": "support@3"}, {"support": "s3://b/x.json"}])
def test_weight_without_a_reward_model_that_has_a_digest_is_refused(models: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="RATCHET_REWARD_MODELS"):
        configured(models=models)()
