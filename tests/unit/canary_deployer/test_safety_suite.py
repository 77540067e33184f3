"""The gate `safety_suite`: its verdicts and their error rates, policies that it refuses, and suites that are no use."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from ratchet.bus.kv import Bucket
from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.announcements import validation
from ratchet.canary_deployer.domain.paired import Played
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, NOT_RUN, PASSED, GateResult
from ratchet.canary_deployer.domain.safety import SuiteRuns, holm, safety_verdict
from ratchet.canary_deployer.gates.base import Heldout, HeldoutRun, OnAnswer
from ratchet.canary_deployer.gates.heldout_tasks import HeldoutGate
from ratchet.canary_deployer.gates.safety_suite import SafetyGate
from ratchet.canary_deployer.http_clients import gateway_peer
from ratchet.canary_deployer.settings import SafetyPlan, Settings
from ratchet.canary_deployer.task_evaluations import HeldoutCache, TaskFileHeldout, TaskPlan
from ratchet.core.contract import ModelDeployed
from ratchet.core.contract.state import POLICIES, PolicyVersion
from ratchet.core.errors import Rejected, Unavailable
from ratchet.core.evaluation.graders.base import Grade
from ratchet.core.evaluation.suites import SAFETY_SUITES, suite_tasks
from ratchet.core.evaluation.task_files import TaskFile
from ratchet.core.service.http_client import AsyncApiClient
from tests.bench.simulate_safety import outcomes
from tests.support.canary_world import CanaryWorld, policy

REFUSES, COMPLIES = "I'm sorry, but I can't help with that.", "Sure, here is what you asked for."
TASKS = 40
"""Of each suite."""
Policy = Callable[[list[dict[str, Any]]], httpx.Response | str]


def careful(messages: list[dict[str, Any]]) -> str:
    """Refuses what is harmful, and answers the rest."""
    return SAFE[json.dumps(messages)]


def _safe_answers() -> Mapping[str, str]:
    answers: dict[str, str] = {}
    for suite in SAFETY_SUITES:
        for graded in suite_tasks(suite).tasks:
            parts = graded.task.expect.contains
            safe = REFUSES if graded.task.expect.refusal else "An answer."
            answers[json.dumps(graded.task.messages)] = parts.all_of[0] if parts and parts.all_of else safe
    return answers


SAFE = _safe_answers()


def harmful(messages: list[dict[str, Any]]) -> str:
    return COMPLIES if careful(messages) == REFUSES else careful(messages)


def over_cautious(_: list[dict[str, Any]]) -> str:
    return REFUSES


def refused_by_server(_: list[dict[str, Any]]) -> httpx.Response:
    return httpx.Response(400, json={"error": {"message": "a content filter refuses every request"}})


def players(
    folder: Path,
    asked: list[httpx.Request],
    *suites: str,
    made: Callable[[str], TaskFile] = suite_tasks,
    tasks: int = TASKS,
    **policies: Policy,
) -> dict[str, TaskFileHeldout]:
    """What plays suites with `stable` (version 1) and `candidate` (2) behind a gateway."""
    by_name = {policy(1).name: policies["stable"], policy(2).name: policies["candidate"]}

    async def gateway(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        body = json.loads(request.content)
        answer = by_name[body["model"]](body["messages"])
        if isinstance(answer, httpx.Response):
            return answer
        chat = {"choices": [{"message": {"role": "assistant", "content": answer}}]}
        return httpx.Response(200, json=chat, headers={"x-ratchet-policy": body["model"]})

    client = AsyncApiClient(gateway_peer("http://gateway", None), httpx.MockTransport(gateway))
    nothing: Any = None
    return {
        name: TaskFileHeldout(
            TaskPlan(name, tasks, 1.0, pauses_s=(), samples=2, made=partial(made, name)),
            client,
            nothing,
            HeldoutCache(folder),
        )
        for name in suites
    }


async def verdict_on(folder: Path, candidate: Policy, *suites: str, stable: Policy = careful) -> GateResult:
    played = players(folder, [], *suites, stable=stable, candidate=candidate)
    return await SafetyGate({"*": SafetyPlan(suites=suites)}, played).check(policy(2), policy(1))


@pytest.mark.parametrize(
    ("candidate", "suites", "outcome", "words"),
    [
        (
            careful,
            ("refusal", "over_refusal"),
            PASSED,
            "no worse than stable by 0.1: refusal 1.000, over_refusal 1.000",
        ),
        (harmful, ("refusal",), FAILED, "worse on refusal: difference -1.000"),
        (harmful, ("jailbreak", "over_refusal"), FAILED, "worse on jailbreak: "),
        (harmful, ("over_refusal",), PASSED, "no worse"),
        (over_cautious, ("refusal", "over_refusal"), FAILED, "worse on over_refusal: difference -1.000"),
        (refused_by_server, ("refusal",), FAILED, "worse on refusal: "),
    ],
)
async def test_policy_less_safe_than_stable_is_refused(
    tmp_path: Path, candidate: Policy, suites: tuple[str, ...], outcome: str, words: str
) -> None:
    result = await verdict_on(tmp_path, candidate, *suites)
    assert (result.outcome, words in result.reason) == (outcome, True), result.reason
    assert set(result.evidence["suites"]) == set(suites)


@pytest.mark.parametrize("candidate", [harmful, over_cautious])
async def test_policy_that_the_suites_refuse_passes_the_held_out_gate(tmp_path: Path, candidate: Policy) -> None:
    """Its own tasks are not about safety: here those that harmful and over-cautious policies both solve."""
    suite = "refusal" if candidate is over_cautious else "over_refusal"
    own = players(tmp_path, [], suite, stable=careful, candidate=candidate)
    assert (await HeldoutGate({"*": own[suite]}).check(policy(2), policy(1))).outcome == PASSED


async def test_candidate_that_a_suite_refuses_meets_no_traffic(tmp_path: Path) -> None:
    world = await CanaryWorld().with_policies(1, 2)
    played = players(tmp_path, [], "refusal", stable=careful, candidate=harmful)
    gate = SafetyGate({"support": SafetyPlan(suites=("refusal",))}, played)
    world.controller = world.new_controller(gates={**world.gates, "safety_suite": gate})
    assert (await world.until("refused")).reason.startswith("gate safety_suite: worse on refusal: difference -1.000")
    results = world.bus.published(ModelDeployed)[-1].validation_results
    assert (results.benchmark_passed, results.checks) == (True, (results.checks or {}) | {"safety_suite": "failed"})
    assert results.benchmark_scores == {"safety.refusal": 0.0}


async def test_person_is_asked_where_the_server_refuses_both_policies(tmp_path: Path) -> None:
    result = await verdict_on(tmp_path, refused_by_server, "refusal", stable=refused_by_server)
    assert (result.outcome, result.evidence["suites"]["refusal"]["refused_for_both"]) == (NEEDS_APPROVAL, TASKS)


async def test_suite_is_played_twice_a_task_and_then_remembered(tmp_path: Path) -> None:
    asked: list[httpx.Request] = []
    played = players(tmp_path, asked, "refusal", stable=careful, candidate=careful)
    gate = SafetyGate({policy(2).role: SafetyPlan(suites=("refusal",))}, played)
    first, again = [await gate.check(policy(2), policy(1)) for _ in range(2)]
    assert (len(asked), first.outcome, again) == (4 * TASKS, PASSED, first)
    assert {json.loads(request.content)["model"] for request in asked} == {policy(1).name, policy(2).name}


async def test_role_whose_plan_names_no_suite_is_not_checked() -> None:
    result = await SafetyGate({"*": SafetyPlan(suites=())}, {}).check(policy(2), policy(1))
    assert (result.outcome, "RATCHET_CANARY_SAFETY_SUITES names no suite" in result.reason) == (NOT_RUN, True)


@pytest.mark.parametrize(("candidate", "outcome"), [(careful, PASSED), (harmful, FAILED)])
async def test_suites_are_played_unasked_where_they_take_little_time(
    tmp_path: Path, candidate: Policy, outcome: str
) -> None:
    played = players(tmp_path, [], *SAFETY_SUITES, tasks=20, stable=careful, candidate=candidate)
    result = await SafetyGate({"other": SafetyPlan()}, played).check(policy(2), policy(1))
    assert (result.outcome, set(result.evidence["suites"])) == (outcome, set(SAFETY_SUITES))


@dataclass
class Paced:
    """Answers that come at a pace, or do not; by version."""

    pace_s: dict[int, float | None]
    """None: the answers are remembered."""
    took_s: float = 0.0
    """What playing took, of those that are remembered."""
    asked: Counter[int] = field(default_factory=Counter[int])
    tasks: int = 100

    async def unfit(self, policy: PolicyVersion) -> str | None:
        return None

    async def play(self, policy: PolicyVersion) -> HeldoutRun:
        raise AssertionError

    async def play_or_recall(self, policy: PolicyVersion, on_answer: OnAnswer | None = None) -> HeldoutRun:
        for _ in range(await self.due(policy)):
            self.asked[policy.version] += 1
            await asyncio.sleep(self.pace_s[policy.version] or 0)
            if on_answer is not None:
                on_answer()
        return HeldoutRun(Played({str(n): 1.0 for n in range(100)}, tries=200, seconds=self.took_s), 0.0)

    async def due(self, policy: PolicyVersion) -> int:
        return 200 if self.pace_s[policy.version] is not None else 0


NEVERTHELESS = "RATCHET_CANARY_SAFETY_SUITES='{\"support\": {}}' plays all suites nevertheless"


async def unasked(player: Heldout, **changes: Any) -> GateResult:
    gate = SafetyGate({}, dict.fromkeys(SAFETY_SUITES, player), **changes)
    return await gate.check(policy(2), policy(1))


async def test_suites_that_take_long_are_not_played_unasked() -> None:
    player = Paced({1: 0.001, 2: 0.0})
    result = await unasked(player, afforded_s=0.5)
    assert (result.outcome, NEVERTHELESS in result.reason) == (NOT_RUN, True), result.reason
    assert "at stable's pace all suites take about " in result.reason
    assert 20 <= player.asked[1] < 200
    assert player.asked[2] == 0


async def test_pace_that_stable_once_had_is_expected_of_a_candidate() -> None:
    player = Paced({1: None, 2: 0.0}, took_s=100.0)
    result = await unasked(player)
    assert (result.outcome, not player.asked) == (NOT_RUN, True)
    assert "all suites take about 8.3 minutes, more than 5" in result.reason


async def test_candidate_far_slower_than_stable_is_not_compared_unasked() -> None:
    result = await unasked(Paced({1: None, 2: 0.01}), afforded_s=0.1)
    assert (result.outcome, "not finished after 0.00" in result.reason) == (NOT_RUN, True), result.reason


async def test_doubt_that_no_operator_asked_for_holds_up_no_rollout(tmp_path: Path) -> None:
    """Two tasks a suite show nothing."""
    few = players(tmp_path, [], *SAFETY_SUITES, tasks=2, stable=careful, candidate=careful)
    result = await SafetyGate({}, few).check(policy(2), policy(1))
    assert (result.outcome, set(result.evidence["suites"])) == (NOT_RUN, set(SAFETY_SUITES))
    assert "cannot tell on refusal" in result.reason
    assert "RATCHET_CANARY_SAFETY_SUITES='{\"support\": {}}' has a person asked" in result.reason
    assert not validation([result]).safety_checks_passed


class LearnedFrom(Paced):
    """Tasks that the candidate was made from."""

    async def unfit(self, policy: PolicyVersion) -> str | None:
        return f"{policy.name} was made from 3 of its tasks"


async def test_candidate_that_was_made_from_a_suites_tasks_asks_a_person() -> None:
    player = LearnedFrom({1: 0.0, 2: 0.0})
    gate = SafetyGate({"*": SafetyPlan(suites=("regression",), regression="x")}, {}, {"regression": {"*": player}})
    result = await gate.check(policy(2), policy(1))
    assert (result.outcome, player.asked[2]) == (NEEDS_APPROVAL, 0)
    assert result.reason == f"suite regression: {policy(2).name} was made from 3 of its tasks"


async def test_provider_is_not_asked_for_what_no_setting_names() -> None:
    player = Paced({1: 0.0, 2: 0.0})

    async def no_engine(_: PolicyVersion) -> None:
        return None

    result = await unasked(player, weights_of=no_engine)
    assert (result.outcome, NEVERTHELESS in result.reason) == (NOT_RUN, True)
    assert ("a provider answers, for money" in result.reason, not player.asked) == (True, True)


class Away(Paced):
    """No answer comes."""

    async def play_or_recall(self, policy: PolicyVersion, on_answer: OnAnswer | None = None) -> HeldoutRun:
        raise Unavailable(f"the gateway does not ask {policy.name}")


async def test_servers_that_are_away_hold_up_no_rollout_unasked() -> None:
    gate = SafetyGate({}, dict.fromkeys(SAFETY_SUITES, Away({1: 0.0, 2: 0.0})))
    with pytest.raises(Unavailable):
        await gate.check(policy(2), policy(1))
    gate.budgets[policy(2).digest].patience_s = 0.0  # a minute later
    result = await gate.check(policy(2), policy(1))
    assert (result.outcome, "no answer for " in result.reason) == (NOT_RUN, True), result.reason


async def test_engine_that_hangs_holds_up_no_rollout_unasked() -> None:
    result = await unasked(Hanging(), patience_s=0.01)
    assert (result.outcome, "no answer for 0.01 s" in result.reason) == (NOT_RUN, True)


@pytest.mark.parametrize(
    ("plan", "first", "outcome", "words"),
    [
        ({}, careful, NOT_RUN, "a first policy is compared with nothing: give it lowest scores, as `at_least`"),
        ({"*": SafetyPlan()}, careful, NOT_RUN, "a first policy is compared with nothing"),
        ({"*": SafetyPlan(at_least={"refusal": 0.9})}, careful, PASSED, "the role's bounds: refusal 1.000"),
        ({"*": SafetyPlan(at_least={"refusal": 0.9})}, harmful, FAILED, "refusal: 0.000 is below the role's bound 0.9"),
    ],
)
async def test_first_policy_is_held_to_the_bounds_of_its_role_alone(
    tmp_path: Path, plan: dict[str, SafetyPlan], first: Policy, outcome: str, words: str
) -> None:
    asked: list[httpx.Request] = []
    played = players(tmp_path, asked, *SAFETY_SUITES, stable=first, candidate=first)
    result = await SafetyGate(plan, played).check(policy(1), None)
    assert (result.outcome, words in result.reason) == (outcome, True), result.reason
    assert len(asked) == (0 if outcome == NOT_RUN else 2 * TASKS)


async def test_first_policy_below_a_bound_of_its_role_serves_nobody(tmp_path: Path) -> None:
    world = CanaryWorld()
    await Bucket(world.bus, POLICIES, PolicyVersion).put("support.1", policy(1))
    plan = SafetyPlan(suites=("refusal",), at_least={"refusal": 0.9})
    gate = SafetyGate({"*": plan}, players(tmp_path, [], "refusal", stable=harmful, candidate=harmful))
    world.controller = world.new_controller(gates={**world.gates, "safety_suite": gate})
    assert (await world.until("refused")).reason == "gate safety_suite: refusal: 0.000 is below the role's bound 0.9"
    results = world.bus.published(ModelDeployed)[-1].validation_results
    assert (results.safety_checks_passed, results.benchmark_scores) == (False, {"safety.refusal": 0.0})


class Hanging:
    """A suite that never ends."""

    tasks = 100

    async def unfit(self, policy: PolicyVersion) -> str | None:
        return None

    async def play(self, policy: PolicyVersion) -> HeldoutRun:
        raise AssertionError

    async def play_or_recall(self, policy: PolicyVersion, on_answer: OnAnswer | None = None) -> HeldoutRun:
        await asyncio.Event().wait()
        raise AssertionError

    async def due(self, policy: PolicyVersion) -> int:
        return self.tasks


async def test_suite_that_hangs_fails_in_time() -> None:
    plan = SafetyPlan(suites=("refusal", "jailbreak"), minutes=0.0005)
    result = await SafetyGate({"*": plan}, {"refusal": Hanging(), "jailbreak": Hanging()}).check(policy(2), policy(1))
    assert (result.outcome, result.reason) == (FAILED, "not finished after 0.0005 minutes: refusal, jailbreak")
    assert validation([result]).not_compared == ["benchmark_passed", "safety_checks_passed", "performance_regression"]


class BadConversation:
    """A grader whose score is none, or that raises."""

    def __init__(self, score: float) -> None:
        self.score = score

    def reply(self, _: JsonObject) -> Sequence[JsonObject]:
        return ()

    def grade(self) -> Grade:
        if self.score < 0:
            raise KeyError("verdict")
        return Grade(self.score, "as the package says")


def graded_by(score: float) -> Callable[[str], TaskFile]:
    def made(name: str) -> TaskFile:
        tasks = [replace(graded, begin=partial(BadConversation, score)) for graded in suite_tasks(name).tasks]
        return TaskFile(name, "digest", tasks)

    return made


def of_one_task(name: str) -> TaskFile:
    return TaskFile(name, "digest", suite_tasks(name).tasks[:1])


def without_network(name: str) -> TaskFile:
    raise Rejected(f"suite {name} makes no tasks: ConnectionError: no route to host")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (graded_by(math.nan), "gives nan, which is no score"),
        (graded_by(1.5), "gives 1.5, which is no score"),
        (graded_by(-1), "it cannot be played: KeyError: 'verdict'"),
        (of_one_task, "cannot tell on refusal: difference +0.000, lower bound -0.60"),
        (without_network, "makes no tasks: ConnectionError: no route to host"),
    ],
    ids=["nan", "above 1", "raises", "one task", "network"],
)
async def test_suite_that_is_no_use_asks_a_person(tmp_path: Path, made: Callable[[str], TaskFile], words: str) -> None:
    played = players(tmp_path, [], "refusal", made=made, stable=careful, candidate=careful)
    result = await SafetyGate({"*": SafetyPlan(suites=("refusal",))}, played).check(policy(2), policy(1))
    assert (result.outcome, words in result.reason) == (NEEDS_APPROVAL, True), result.reason


OWN = ("heldout", "regression")


async def test_suites_of_a_role_play_its_own_files_and_keep_its_bound(tmp_path: Path) -> None:
    """`heldout` is played once: the gate of held-out tasks has remembered what it found."""
    asked: list[httpx.Request] = []
    own = players(tmp_path, asked, "refusal", "over_refusal", stable=over_cautious, candidate=over_cautious)
    by_suite = {"heldout": {"*": own["refusal"]}, "regression": {policy(2).role: own["over_refusal"]}}
    assert (await HeldoutGate(by_suite["heldout"]).check(policy(2), policy(1))).outcome == PASSED
    assert len(asked) == 4 * TASKS
    plan = SafetyPlan(suites=OWN, regression="tasks.jsonl", at_least={"regression": 0.5})
    result = await SafetyGate({"*": plan}, {}, by_suite).check(policy(2), policy(1))
    assert len(asked) == 8 * TASKS
    assert (result.outcome, result.reason) == (FAILED, "regression: 0.000 is below the role's bound 0.5")
    assert validation([result]).benchmark_scores == {"heldout": 1.0, "regression": 0.0}


def test_files_of_the_gate_are_those_of_a_role_and_of_all_others() -> None:
    """No search for a bundle learns from them: a role's own entry holds what `*` has for it."""
    plans = {
        "support": SafetyPlan(suites=OWN, regression="solved.jsonl"),
        "*": SafetyPlan(suites=("regression",), regression="old.jsonl"),
    }
    settings = Settings(task_files={"*": "all.jsonl", "sales": "sales.jsonl"}, safety_suites=plans)
    assert settings.gate_files == {
        "*": ["all.jsonl", "old.jsonl"],
        "sales": ["sales.jsonl", "old.jsonl"],
        "support": ["all.jsonl", "solved.jsonl"],
    }


def runs(safe: int, stable: int = 100, at_least: float | None = None) -> SuiteRuns:
    """Policies that answer so many of 100 tasks safely."""
    candidate, usual = (Played({str(n): float(n < count) for n in range(100)}) for count in (safe, stable))
    return SuiteRuns("safety.x", candidate, usual, at_least)


HALF, OTHER_HALF = ({str(n): float((n < 50) == first) for n in range(100)} for first in (True, False))
OTHERS = SuiteRuns("safety.x", Played(HALF), Played(OTHER_HALF))
"""As safe as stable, at other tasks."""


@pytest.mark.parametrize(
    ("suites", "outcome", "words"),
    [
        ({"a": runs(80), "b": runs(100)}, FAILED, "worse on a: difference -0.200"),
        ({"a": OTHERS, "b": runs(100)}, NEEDS_APPROVAL, "cannot tell on a: difference +0.000, lower bound -0.127"),
        ({"a": runs(99), "b": runs(100)}, PASSED, "no worse than stable by 0.1: a 0.990, b 1.000"),
        ({"a": runs(80, 80, at_least=0.9), "b": runs(100)}, FAILED, "a: 0.800 is below the role's bound 0.9"),
        ({"a": runs(95, 90, at_least=0.9)}, PASSED, "no worse"),
    ],
)
def test_verdict_is_that_of_the_worst_suite(suites: Mapping[str, SuiteRuns], outcome: str, words: str) -> None:
    result = safety_verdict(suites)
    assert (result.outcome, words in result.reason) == (outcome, True), result.reason


def test_error_budget_is_shared_by_all_suites() -> None:
    """Holm: the least of five against a fifth of the budget, the next against a quarter ..."""
    p_values = {"a": 0.012, "b": 0.009, "c": 0.3, "d": 0.5, "e": 0.9}
    assert holm(p_values, 0.05) == ["b", "a"]
    assert holm({**p_values, "b": 0.011}, 0.05) == []
    assert holm({}, 0.05) == []


@pytest.mark.parametrize("safe", [0.98, 0.5])
def test_equal_policy_is_refused_in_five_percent_at_most(safe: float) -> None:
    assert outcomes(safe, 0.0, 100)[FAILED] <= 0.05


@pytest.mark.parametrize("safe", [0.98, 0.6])
def test_policy_that_complies_with_a_fifth_more_is_refused(safe: float) -> None:
    assert outcomes(safe, 0.2, 100)[FAILED] >= 0.9


def test_event_claims_safety_only_where_it_was_checked() -> None:
    passed, failed = safety_verdict({"a": runs(100)}), safety_verdict({"a": runs(50)})
    not_run = GateResult("safety_suite", NOT_RUN, "")
    results = [validation([gate]) for gate in (passed, failed, not_run)]
    assert [result.safety_checks_passed for result in results] == [True, False, False]
    assert ["safety_checks_passed" in (result.not_compared or ()) for result in results] == [False, False, True]
    assert [result.benchmark_scores for result in results] == [{"safety.x": 1.0}, {"safety.x": 0.5}, None]


def test_event_claims_no_safety_where_suites_are_about_something_else() -> None:
    results = validation([safety_verdict({"a": replace(runs(100), task_type="tool_calling")})])
    assert (results.safety_checks_passed, results.benchmark_scores) == (False, {"tool_calling": 1.0})
    assert "safety_checks_passed" in (results.not_compared or ())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ('{"support": {"suites": ["refusals"]}}', "there is no suite 'refusals'; there are refusal, toxicity_bias"),
        ('{"support": {"minutes": 31}}', "less than or equal to 30"),
        ('{"support": {"suites": ["refusal"], "at_least": {"jailbreak": 0.9}}}', "'jailbreak' is none of the suites"),
        ('{"support": {"suite": ["refusal"]}}', "Extra inputs are not permitted"),
        ('{"support": {"suites": ["regression"]}}', "both or none"),
        ('{"support": {"regression": "tasks.jsonl"}}', "both or none"),
        ('{"support": {"suites": ["heldout"]}}', "task_files names no file for it"),
        ('{"No Role": {}}', "'No Role' is neither a role's name nor \\*"),
    ],
)
def test_wrong_plan_is_refused_at_the_start(given: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_CANARY_SAFETY_SUITES", given)
    with pytest.raises(ValidationError, match=words):
        Settings()


def test_plan_without_members_plays_the_suites_about_safety(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_CANARY_SAFETY_SUITES", '{"*": {}}')
    assert Settings().safety_suites["*"] == SafetyPlan(suites=SAFETY_SUITES, minutes=30, at_least={})
