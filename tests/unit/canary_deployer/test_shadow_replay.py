"""Shadow replay: the answers and their judgement, the cases without a comparison, and the decision that follows."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.gating import REPLAY, first_stage
from ratchet.canary_deployer.domain.operators import Act, Order
from ratchet.canary_deployer.domain.paired import Played, compare
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, NOT_RUN, PASSED, GateResult
from ratchet.canary_deployer.domain.rollout_statistics import Statistics
from ratchet.canary_deployer.domain.rules import Stage
from ratchet.canary_deployer.gates import GATES
from ratchet.canary_deployer.gates.base import GateTools, HeldoutRun, LoggedPrompt, LoggedPrompts, ReplayTools
from ratchet.canary_deployer.gates.shadow_replay import CONFIDENCE, FEWEST, MARGIN, PROMPTS
from ratchet.canary_deployer.subprocess_judge import SubprocessJudge
from ratchet.core.contract import Alert, ModelDeployed, ModelRollout
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import RatchetError, Rejected, Unavailable
from tests.support.canary_world import CanaryWorld, FakeGate, policy, quick_rules, served

CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "refund", "arguments": "{}"}}]}


def prompts(count: int) -> LoggedPrompts:
    return LoggedPrompts(
        prompts=[
            LoggedPrompt(
                turn_id=f"turn {n}",
                trajectory_id=f"trajectory {n}",
                messages=[{"role": "user", "content": f"question {n}"}],
                tools=[{"type": "function", "function": {"name": "refund"}}],
                sampling={"temperature": 0.7},
            )
            for n in range(count)
        ],
        left_out={"group_of_lineage": 3},
    )


@dataclass
class FakeLog:
    """The coordinator."""

    logged: LoggedPrompts
    fault: RatchetError | None = None

    async def prompts(self, candidate: PolicyVersion, limit: int) -> LoggedPrompts:
        if self.fault is not None:
            raise self.fault
        return self.logged


@dataclass
class FakePlayer:
    """Answers with the version's number; `mute` versions do not answer."""

    mute: set[int] = field(default_factory=set)
    asked: list[tuple[int, str]] = field(default_factory=list)
    answer: JsonObject = field(default_factory=dict)

    async def complete(self, one: PolicyVersion, prompt: LoggedPrompt) -> JsonObject:
        self.asked.append((one.version, prompt.turn_id))
        if one.version in self.mute:
            raise Rejected("does not answer")
        return {"role": "assistant", "content": str(one.version), **self.answer}


@dataclass
class FakeJudge:
    """Judges this share of each version's answers good."""

    good: dict[str, float]
    problem: str | None = None
    given: list[JsonObject] = field(default_factory=list)
    drops: int = 0

    async def judge(self, role: str, answers: Sequence[JsonObject]) -> HeldoutRun:
        self.given = list(answers)
        seen: dict[str, int] = {}
        scores: dict[str, float] = {}
        for answer in sorted(answers, key=lambda one: str(one["messages"]))[self.drops :]:
            version = answer["answer"]["content"]
            number = seen[version] = seen.get(version, -1) + 1
            scores[answer["task"]] = float(number < self.good[version] * len(answers) / 2)
        return HeldoutRun(Played(scores, len(scores)), 0.1, self.problem)


def tools(**changes: Any) -> ReplayTools:
    plain: dict[str, Any] = {
        "log": FakeLog(prompts(200)),
        "player": FakePlayer(),
        "judge": FakeJudge({"1": 0.5, "2": 0.9}),
    }
    given = plain | changes
    return ReplayTools(given["log"].prompts, given["player"].complete, given["judge"].judge)


async def replayed(replay: ReplayTools | None) -> GateResult:
    given = GateTools(
        checks=None,  # type: ignore[arg-type] - this gate asks no engine
        read_manifest=None,  # type: ignore[arg-type] - and reads no manifest
        warmup_prompts=(),
        approval=False,
        replay=replay,
    )
    return await GATES[REPLAY](given).check(policy(2), policy(1))


async def test_a_better_candidate_passes_with_the_words_replay_not_traffic() -> None:
    player = FakePlayer()
    result = await replayed(tools(player=player))
    assert (result.outcome, result.evidence["difference"]) == (PASSED, 0.4)
    assert result.reason.startswith("replay, not traffic: difference +0.400, lower bound +0.3")
    assert sorted(player.asked) == sorted((version, f"turn {n}") for n in range(200) for version in (1, 2))


async def test_a_worse_candidate_fails() -> None:
    result = await replayed(tools(judge=FakeJudge({"1": 0.9, "2": 0.7})))
    assert (result.outcome, result.evidence["regression"]) == (FAILED, True)


async def test_evaluator_cannot_see_the_policy_of_answer_and_gets_its_tool_calls() -> None:
    judge, player = FakeJudge({"1": 0.5, "2": 0.5}), FakePlayer(answer={"tool_calls": CALL["tool_calls"]})
    await replayed(tools(judge=judge, player=player))
    assert {frozenset(one) for one in judge.given} == {frozenset({"task", "messages", "tools", "answer"})}
    assert judge.given[0]["answer"]["tool_calls"] == CALL["tool_calls"]
    assert len(player.asked) == 400, "no answer to a tool's result is asked for"
    ids = [one["task"] for one in judge.given]
    assert ids == sorted(set(ids))
    firsts = [judge.given[n]["answer"]["content"] for n in range(400)]
    assert firsts[:200].count("1") not in (0, 200), "the order says nothing of the policy"


async def test_a_missing_answer_or_judgement_counts_as_worst_for_the_candidate() -> None:
    silent = await replayed(tools(player=FakePlayer(mute={2})))
    assert (silent.outcome, silent.evidence["candidate_unanswered"]) == (FAILED, 200)
    dropped = await replayed(tools(judge=FakeJudge({"1": 0.5, "2": 0.5}, drops=120)))
    assert (dropped.outcome, dropped.evidence["unjudged"]) == (FAILED, 120)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"log": FakeLog(prompts(0), Unavailable("the coordinator does not answer"))}, "the coordinator does not"),
        ({"log": FakeLog(prompts(0), Rejected("the coordinator refuses: no snapshot"))}, "the coordinator refuses"),
        ({"log": FakeLog(prompts(99))}, "99 logged prompts that it has not learned from, 100 are needed"),
        ({"player": FakePlayer(mute={1})}, "stable answered no prompt"),
        ({"judge": FakeJudge({"1": 1, "2": 1}, "the command ended with 1")}, "the evaluator's judgement is no use"),
        ({"judge": FakeJudge({"1": 1, "2": 1}, drops=400)}, "the evaluator's judgement is no use: it judged no answer"),
    ],
)
async def test_without_answers_or_judgements_the_gate_does_not_run(changes: dict[str, Any], reason: str) -> None:
    result = await replayed(tools(**changes))
    assert result.outcome == NOT_RUN
    assert result.reason.startswith(reason)
    assert "difference" not in result.evidence


async def test_without_an_evaluator_no_policy_is_asked() -> None:
    result = await replayed(None)
    assert (result.outcome, result.reason) == (
        NOT_RUN,
        "no evaluator is configured (RATCHET_CANARY_REPLAY_COMMAND)",
    )


JUDGE = "import json, sys\nfor line in sys.stdin:\n    one = json.loads(line)\n"
GOOD = JUDGE + "    print(json.dumps({'task': one['task'], 'success': one['answer']['content'] == '2'}))\n"


@pytest.mark.parametrize(
    ("script", "outcome", "reason"),
    [
        (GOOD, PASSED, "replay, not traffic: difference +1.000"),
        ("import sys; sys.exit('no model')", NOT_RUN, "the evaluator's judgement is no use: the command ended with 1"),
        ("print('fine')\nprint('[]')", NOT_RUN, "the evaluator's judgement is no use: it judged no answer"),
        (
            JUDGE + '    print(\'{"task": "\' + one[\'task\'] + \'", "success": true, "score": NaN}\')',
            NOT_RUN,
            "the evaluator's judgement is no use: it judged no answer",
        ),
        (
            "print('{\"task\": \"t\", \"success\": true, \"more\": ' + '[' * 100000 + ']' * 100000 + '}')",
            NOT_RUN,
            "the evaluator's judgement is no use: it judged no answer",
        ),
        (
            GOOD + "    print(json.dumps({'task': one['task'], 'success': True}))",
            NOT_RUN,
            "the evaluator's judgement is no use: it judged an answer more than once",
        ),
        (
            GOOD + "    print(json.dumps({'task': 'mine', 'success': True}))",
            NOT_RUN,
            "the evaluator's judgement is no use: it judged answers that it was not given",
        ),
        ("while True: print('x' * 100000)", NOT_RUN, "the evaluator's judgement is no use: it printed more than"),
    ],
)
async def test_a_broken_evaluator_costs_only_the_comparison(script: str, outcome: str, reason: str) -> None:
    command = shlex.join([sys.executable, "-c", script])
    result = await replayed(tools(judge=SubprocessJudge(command, 60)))
    assert result.outcome == outcome
    assert result.reason.startswith(reason)


async def test_the_evaluator_gets_the_role() -> None:
    script = JUDGE + "    import os; print(json.dumps({'task': os.environ['RATCHET_ROLE'], 'success': True}))"
    run = await SubprocessJudge(shlex.join([sys.executable, "-c", script]), 60).judge("support", [{"task": "t"}])
    assert run.played.scores == {"support": 1.0}


@pytest.mark.parametrize("stable", [0.95, 0.7, 0.3])
@pytest.mark.parametrize("agreement", [0.0, 0.6])
@pytest.mark.parametrize("count", [FEWEST, PROMPTS])
def test_a_candidate_that_is_worse_by_the_margin_rarely_passes(stable: float, agreement: float, count: int) -> None:
    """At the edge of what the replay calls not worse; `agreement` is the share of prompts that both get the same."""
    draw, rounds = np.random.default_rng(7), 3000
    usual = draw.random((rounds, count))
    own = np.where(draw.random((rounds, count)) < agreement, usual, draw.random((rounds, count)))
    differences = (own < stable - MARGIN).astype(float) - (usual < stable)
    passed = sum(compare(row.tolist(), CONFIDENCE, MARGIN).passed for row in differences)
    assert passed / rounds <= 1 - CONFIDENCE + 0.012, "three standard errors of the simulation above 5 %"


def test_an_equal_candidate_passes_often_enough_to_be_of_use() -> None:
    draw = np.random.default_rng(7)
    usual = draw.random((500, 400))
    own = np.where(draw.random((500, 400)) < 0.6, usual, draw.random((500, 400)))
    differences = (own < 0.7).astype(float) - (usual < 0.7)
    assert sum(compare(row.tolist(), 0.95, 0.05).passed for row in differences) / 500 > 0.5


@pytest.mark.parametrize(("weight", "stage"), [(0.05, 0), (0.1, 0), (0.25, 1), (0.4, 1), (0.99, 2)])
def test_traffic_begins_at_the_last_stage_that_the_setting_allows(weight: float, stage: int) -> None:
    assert first_stage(quick_rules(replay_weight=weight)) == stage


SLOW = {"stages": (Stage(0.1, 3600, 5), Stage(0.25, 3600, 5), Stage(0.5, 7200, 10)), "margin": 0.05}


async def slow_world(outcome: str, reason: str = "replay, not traffic: difference +0.1", **changes: Any) -> CanaryWorld:
    """A role with 20 trajectories a day, and a shadow replay with this result."""
    world = CanaryWorld(quick_rules(**(SLOW | changes)))
    world.traffic.per_day = 20
    world.gates[REPLAY] = GateWithReason(REPLAY, outcome, reason)
    world.controller = world.new_controller()
    return await world.with_policies(1, 2)


class GateWithReason(FakeGate):
    """A gate with a reason of its own."""

    def __init__(self, name: str, outcome: str, reason: str) -> None:
        super().__init__(name, outcome)
        self.reason = reason

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        self.asked.append(candidate.name)
        return GateResult(self.name, self.outcome, self.reason, self.evidence)


async def test_passed_replay_starts_at_a_higher_weight_and_is_no_traffic() -> None:
    world = await slow_world(PASSED)
    rollout = await world.until("running")
    assert (rollout.stage, rollout.weight, rollout.strategy) == (1, 0.25, "canary")
    assert rollout.forecast is not None
    assert rollout.forecast.stages[0] == 0.0
    assert "replay, not traffic" in rollout.reason
    deployed = world.bus.published(ModelDeployed)[-1]
    assert deployed.validation_results.checks[REPLAY] == PASSED
    assert not deployed.validation_results.safety_checks_passed
    assert "replay, not traffic" in world.bus.published(ModelRollout)[-1].reason


async def test_replay_is_evidence_in_no_test_of_traffic() -> None:
    world = await slow_world(PASSED)
    rollout = await world.until("running")
    assert rollout.statistics == Statistics()
    assert (await world.controller.current()).statistics.evidence == Statistics().evidence  # type: ignore[union-attr]


async def test_blue_green_does_not_send_all_traffic_on_a_replay() -> None:
    world = await slow_world(PASSED)
    world.strategy = "blue_green"
    world.restart()
    rollout = await world.until("running")
    assert (rollout.strategy, rollout.weight) == ("canary", 0.25)


@pytest.mark.parametrize("outcome", [FAILED, NOT_RUN])
async def test_without_a_passed_replay_an_operator_is_asked_at_once_with_reason(outcome: str) -> None:
    world = await slow_world(outcome, "the coordinator does not answer")
    rollout = await world.until("awaiting_approval")
    assert "at 20 trajectories of 20 subjects a day" in rollout.reason
    assert rollout.reason.endswith("shadow_replay: the coordinator does not answer")
    assert "shadow_replay: the coordinator" in world.bus.published(Alert)[-1].summary
    await world.operators.act(Act.APPROVE, Order("ann", "we have time"))
    assert ((await world.rollout()).stage, (await world.rollout()).weight) == (0, 0.1)


async def test_a_role_with_enough_traffic_replays_nothing() -> None:
    world = await slow_world(PASSED)
    world.traffic.per_day = 10_000_000
    rollout = await world.until("running")
    assert (rollout.stage, world.gates[REPLAY].asked) == (0, [])


async def test_an_open_question_of_another_gate_replays_nothing() -> None:
    world = await slow_world(PASSED)
    world.gates["heldout_tasks"].outcome = NEEDS_APPROVAL
    await world.until("awaiting_approval")
    assert world.gates[REPLAY].asked == []


async def test_only_an_operator_promotes_past_evidence_and_reason_quotes_replay() -> None:
    world = await slow_world(PASSED)
    await world.until("running")
    for _ in range(20):
        world.clock.advance(3600)
        await world.controller.step()
    assert (await world.rollout()).state == "held", "no replay promotes: an operator is asked at the deadline"
    with pytest.raises(RatchetError, match="--override"):
        await world.operators.act(Act.PROMOTE, Order("ann", "good enough"))
    await world.operators.act(Act.PROMOTE, Order("ann", "good enough", override=True))
    rollout = await world.rollout()
    assert rollout.approval == "emergency_override"
    assert rollout.reason == "good enough (replay, not traffic: difference +0.1)"
    assert (await world.route()).stable == served(2)
