"""Playing tasks: what is the policy's fault, what is the engine's, and which draws are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from ratchet.bus.message import JsonObject
from ratchet.core.contract.evaluation_task import Expected, PartsExpected, Task
from ratchet.core.errors import BadRequest, NotFound, Unavailable
from ratchet.core.evaluation.graders import build_grader
from ratchet.core.evaluation.graders.base import Grade
from ratchet.core.evaluation.playing import (
    BEST,
    FAULTS_IN_A_ROW,
    MOST_MESSAGES,
    Answer,
    Plan,
    Try,
    best_by_reward,
    play,
)
from ratchet.core.evaluation.task_files import GradedTask

Answering = Callable[[Task, float, int], Answer]


class FakePlayer:
    """Answers by a function, and remembers the draws that it was asked for."""

    def __init__(self, answering: Answering) -> None:
        self.answering = answering
        self.draws: list[tuple[str, float, int]] = []

    async def answer(self, task: Task, temperature: float, seed: int, trajectory_id: str) -> Answer:
        self.draws.append((task.id, temperature, seed))
        return self.answering(task, temperature, seed)


def tasks(number: int) -> list[GradedTask]:
    expect = Expected(contains=PartsExpected(all_of=["yes"]))
    made = [
        Task(id=f"t{n}", messages=[{"role": "user", "content": "?"}], expect=expect, seed=10) for n in range(number)
    ]
    return [GradedTask(task, build_grader(task.expect)) for task in made]


async def played(answering: Answering, number: int, plan: Plan = Plan()) -> tuple[list[Try], FakePlayer]:  # noqa: B008
    player = FakePlayer(answering)
    return await play(player, tasks(number), plan, clock=lambda: 0.0, pauses_s=(0.0,)), player


def reply(text: str) -> Answer:
    return Answer(message={"role": "assistant", "content": text}, prompt_tokens=3, completion_tokens=2)


async def test_each_task_is_asked_greedily_and_sampled_with_own_seeds() -> None:
    tries, player = await played(lambda *_: reply("yes"), 2, Plan(samples=2, temperature=0.7, at_once=1))
    assert player.draws == [(f"t{n}", *draw) for n in range(2) for draw in ((0.0, 10), (0.7, 10), (0.7, 11))]
    assert [(one.task, one.mode, one.number, one.success) for one in tries[:3]] == [
        ("t0", "greedy", 0, True),
        ("t0", "sampled", 0, True),
        ("t0", "sampled", 1, True),
    ]


async def test_a_wrong_answer_and_a_refused_request_are_the_policys() -> None:
    tries, _ = await played(lambda task, *_: reply("no") if task.id == "t0" else Answer(refused="too long"), 2)
    assert [(one.success, one.refused, one.fault) for one in tries] == [(False, False, None), (False, True, None)]
    assert (tries[0].why, tries[1].why) == ("contains: the text lacks 'yes'", "refused: too long")


async def test_a_fault_is_tried_again_and_else_counted_apart() -> None:
    seen: Counter[str] = Counter()

    def answering(task: Task, *_: object) -> Answer:
        seen[task.id] += 1
        if task.id == "t0" or seen[task.id] == 1:
            raise Unavailable("the engine is away")
        return reply("yes")

    tries, _ = await played(answering, 2)
    assert [(one.success, one.fault) for one in tries] == [(False, "the engine is away"), (True, None)]
    assert seen == {"t0": 2, "t1": 2}


async def test_an_engine_that_is_away_ends_the_play() -> None:
    def answering(*_: object) -> Answer:
        raise Unavailable("the engine is away")

    player = FakePlayer(answering)
    with pytest.raises(Unavailable, match="the engine is away"):
        await play(player, tasks(1000), Plan(at_once=1), clock=lambda: 0.0, pauses_s=())
    assert len(player.draws) == FAULTS_IN_A_ROW


async def test_a_policy_that_is_not_there_ends_the_play() -> None:
    def answering(*_: object) -> Answer:
        raise NotFound("no such policy")

    with pytest.raises(NotFound):
        await played(answering, 5)


class Countdown:
    """A conversation that asks for so many messages more, and is content with them."""

    def __init__(self, messages: int) -> None:
        self.left = messages

    def reply(self, message: JsonObject) -> Sequence[JsonObject]:
        self.left -= 1
        return [{"role": "user", "content": f"{self.left} more"}] if self.left else []

    def grade(self) -> Grade:
        return Grade(float(not self.left), "right" if not self.left else "left open", calls=3, valid_calls=2)


async def conversed(answering: Answering, messages: int) -> Try:
    (graded,) = tasks(1)
    several = GradedTask(graded.task, lambda: Countdown(messages))
    (done,) = await play(FakePlayer(answering), [several], Plan(), clock=lambda: 0.0, pauses_s=(0.0,))
    return done


async def test_play_goes_on_for_as_long_as_a_conversation_replies() -> None:
    seen: list[list[object]] = []

    def answering(task: Task, *_: object) -> Answer:
        seen.append([message["content"] for message in task.messages])
        return reply("yes")

    done = await conversed(answering, 3)
    assert seen == [["?"], ["?", "yes", "2 more"], ["?", "yes", "2 more", "yes", "1 more"]]
    assert (done.success, done.prompt_tokens, done.completion_tokens) == (True, 9, 6)
    assert (done.calls, done.valid_calls) == (3, 2)


async def test_play_takes_a_refusal_of_a_later_message_as_the_conversations_end() -> None:
    def answering(task: Task, *_: object) -> Answer:
        return reply("yes") if len(task.messages) < 4 else Answer(refused="too long")

    done = await conversed(answering, 3)
    assert (done.success, done.refused, done.why) == (False, False, "left open")


async def test_play_ends_a_conversation_that_does_not_end() -> None:
    done = await conversed(lambda *_: reply("yes"), MOST_MESSAGES + 1)
    assert (done.success, done.why) == (False, "left open")


LIKED = {"no": 0.2, "yes": 0.9, "yes yes": 0.9}
"""What a reward model says of answers; it cannot read any other."""


async def liked(messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> float:
    assert [message["role"] for message in messages] == ["user", "assistant"]
    if messages[-1]["content"] not in LIKED:
        raise BadRequest("too long")
    return LIKED[messages[-1]["content"]]


async def test_best_try_is_the_sample_that_the_reward_model_likes_most() -> None:
    answers = {(0.0, 10): "yes", (1.0, 10): "no", (1.0, 11): "yes", (1.0, 12): "yes yes"}
    plan = Plan(samples=3, at_once=1, scorer=liked)
    tries, _ = await played(lambda _, temperature, seed: reply(answers[temperature, seed]), 1, plan)
    assert [tried.reward for tried in tries] == [None, 0.2, 0.9, 0.9]
    (best,) = best_by_reward(tries)
    assert (best.mode, best.number, best.success) == (BEST, 1, True)


async def test_best_try_of_a_task_that_no_reward_model_can_read_is_a_fault() -> None:
    tries, _ = await played(lambda *_: reply("something else"), 1, Plan(samples=2, scorer=liked))
    (best,) = best_by_reward(tries)
    assert best.fault == "the reward model can read no try of it"


async def test_best_try_of_a_refused_task_is_refused() -> None:
    tries, _ = await played(lambda *_: Answer(refused="too long"), 1, Plan(samples=2, scorer=liked))
    (best,) = best_by_reward(tries)
    assert (best.mode, best.refused, best.fault) == (BEST, True, None)


async def test_reward_model_that_is_away_ends_the_play() -> None:
    async def away(*_: object) -> float:
        raise Unavailable("the reward model is away")

    player = FakePlayer(lambda *_: reply("yes"))
    with pytest.raises(Unavailable, match="the reward model is away"):
        await play(player, tasks(20), Plan(greedy=False, samples=1, at_once=1, scorer=away), clock=lambda: 0.0)
