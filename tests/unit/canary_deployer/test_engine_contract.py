"""What every engine has to do for the gates: the same for the reference in memory and for vLLM's API over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import httpx
import pytest

from ratchet.canary_deployer.http_engines import HttpReplica
from ratchet.canary_deployer.replicas import Replica
from ratchet.core.errors import Rejected
from ratchet.core.service.engine_list import EngineSettings
from tests.support.canary_world import policy
from tests.support.memory_engine import MemoryReplica
from tests.support.scoring_engine import OUTPUT, PROMPT, ScoringEngine, logprobs, probe

IDS = [*PROMPT, *OUTPUT]


@dataclass(frozen=True)
class Subject:
    """A replica under test, and what a test does to it from behind."""

    replica: Replica
    spoil: Callable[[str], None]
    """Make the files of a policy fail to verify."""


@pytest.fixture(params=["memory", "http"])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "memory":
        memory = MemoryReplica()
        return Subject(memory, memory.broken.add)
    engine = ScoringEngine()
    settings = EngineSettings(name="small", kind="engine_local", urls=("http://engine",), roles=("*",))
    replica = HttpReplica(settings, "http://engine", 5, httpx.ASGITransport(engine.app))
    return Subject(replica, engine.broken.add)


async def test_a_policy_answers_to_its_name_and_stays_beside_others(subject: Subject) -> None:
    for version in (1, 2, 1):
        answer = await subject.replica.ask(policy(version).name, "hello there")
        assert all(value is not None and value <= 0 for value in answer)
    assert await subject.replica.models() == [policy(1).name, policy(2).name]


async def test_a_prompt_is_scored_with_its_candidates(subject: Subject) -> None:
    scored = await subject.replica.score(policy(1).name, IDS, 3)
    assert scored is not None
    assert [one.logprob for one in scored[-len(OUTPUT) :]] == pytest.approx(probe().logprobs)
    assert all(len(one.candidates) == 3 for one in scored)


async def test_candidates_of_a_drawn_token_are_of_its_distribution(subject: Subject) -> None:
    drawn = await subject.replica.candidates(policy(1).name, PROMPT, 2.0, 4)
    expected = logprobs(0, PROMPT, 2.0)
    assert len(drawn) == 4
    assert all(drawn[token] == pytest.approx(expected[token]) for token in drawn)


async def test_a_policy_that_does_not_verify_is_refused_in_words_and_not_held(subject: Subject) -> None:
    name = policy(3).name
    subject.spoil(name)
    with pytest.raises(Rejected, match=f"^sha256 of the files of {name} differs$"):
        await subject.replica.ask(name, "hello")
    with pytest.raises(Rejected):
        await subject.replica.score(name, IDS, 0)
    assert await subject.replica.models() == []


async def test_an_unloaded_policy_is_gone_and_can_be_unloaded_again(subject: Subject) -> None:
    await subject.replica.ask(policy(1).name, "hello")
    for _ in range(2):
        await subject.replica.unload(policy(1).name)
        assert await subject.replica.models() == []
