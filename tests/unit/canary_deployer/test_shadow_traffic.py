"""Mirrored calls: which are drawn and asked again, what bounds them, the verdict, and what the controller does."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import msgspec
import numpy as np
import pytest

from ratchet.bus.connection import Bus, Extent
from ratchet.bus.kv import Bucket
from ratchet.bus.message import JsonObject
from ratchet.bus.testing import FakeBus, eventually
from ratchet.canary_deployer.domain import live_calls
from ratchet.canary_deployer.domain.gating import SHADOW_TRAFFIC
from ratchet.canary_deployer.domain.live_calls import LiveCall, LiveSample
from ratchet.canary_deployer.domain.operators import Act, Order
from ratchet.canary_deployer.domain.paired import Played, compare
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, NOT_RUN, PASSED, GateResult
from ratchet.canary_deployer.gates.base import (
    Blocked,
    CallsSince,
    GateGoesOn,
    HeldoutRun,
    LivePlace,
    LoggedPrompt,
    ShadowTools,
)
from ratchet.canary_deployer.gates.shadow_traffic import (
    ALPHA,
    CONFIDENCE,
    MARGIN,
    ROUND,
    ShadowTrafficGate,
    asked_again,
)
from ratchet.canary_deployer.http_clients import ShadowAsker, gateway_peer
from ratchet.canary_deployer.nats_live_calls import NatsLiveCalls
from ratchet.canary_deployer.settings import Settings, ShadowPlan
from ratchet.core.contract import Turn
from ratchet.core.contract.bundle import Bundle, SamplingValues
from ratchet.core.contract.state import JUDGE_SPEND, PolicyVersion
from ratchet.core.contract.turn import Sampling
from ratchet.core.errors import DigestMismatch, NotFound, RatchetError, Rejected, Unavailable
from ratchet.core.rules.call_budget import Amounts, BudgetSpent
from ratchet.core.service.http_client import AsyncApiClient
from tests.support.canary_world import ROLE, CanaryWorld, FakeGate, policy, turn_of
from tests.support.fake_bus import fake_bus
from tests.support.messages import turn

WHOLE = ShadowPlan(share=1, calls=100)


def asked(name: str, index: int = 0, **changes: Any) -> Turn:
    """A call of trajectory `name` that the stable policy answered."""
    plain = turn_of(turn(name).trajectory_id, "stable", 1, 0.0, index=index)
    own = turn(name, index)
    members = {"turn_id": own.turn_id, "parent_turn_id": own.parent_turn_id, "messages": own.messages}
    return msgspec.structs.replace(plain, **({"request_digest": f"{name} {index}", **members} | changes))


@dataclass
class FakeCalls:
    """A stream of turns in memory; `gone` are sequences that were erased."""

    held: list[Turn] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    made: str = "once"
    fetched: list[int] = field(default_factory=list)
    size: int = 100

    async def newest(self) -> LivePlace:
        return LivePlace(len(self.held), self.made)

    async def since(self, role: str, place: LivePlace, wait_s: float) -> CallsSince:
        if place.made != self.made:
            return CallsSince([], await self.newest(), made_anew=True)
        summaries = [(n + 1, one, one.header_summary) for n, one in enumerate(self.held)][place.sequence :]
        calls = [
            LiveCall(n, self.size, one.trajectory_id, one.index, summary.arm, summary.version, not summary.failed)
            for n, one, summary in summaries
        ]
        return CallsSince(calls, await self.newest())

    async def turns(self, sequences: Sequence[int]) -> list[Turn]:
        self.fetched += sequences
        if self.gone & {*sequences}:
            raise NotFound("erased")
        return [self.held[sequence - 1] for sequence in sequences]

    async def erased(self, sequences: Collection[int], made: str) -> set[int]:
        return self.gone & {*sequences}


@dataclass
class Mirroring:
    """A gate with all around it. `good`: what share of each version's answers the evaluator likes."""

    plan: ShadowPlan = WHOLE
    calls: FakeCalls = field(default_factory=FakeCalls)
    good: dict[str, float] = field(default_factory=lambda: {"stable": 0.8, "candidate": 0.8})
    fault: Exception | None = None
    now: float = 0.0
    asked: list[LoggedPrompt] = field(default_factory=list)
    judged: list[JsonObject] = field(default_factory=list)
    named: int = 0
    silent_on: int = 0
    """Answers that the evaluator leaves out."""
    bundle: Bundle = Bundle()  # noqa: RUF009 - it is immutable
    """That of stable."""

    def __post_init__(self) -> None:
        self.gate = self.new_gate()

    def new_gate(self) -> ShadowTrafficGate:
        """As a process that begins has it."""
        tools = ShadowTools({ROLE: self.plan}, self.calls, self.complete_for, self.judge, self.bundle_of)
        return ShadowTrafficGate(tools, lambda: self.now)

    async def complete_for(self, candidate: PolicyVersion, plan: ShadowPlan) -> Any:
        return self.complete

    async def bundle_of(self, one: PolicyVersion) -> Bundle:
        return self.bundle

    async def complete(self, one: PolicyVersion, prompt: LoggedPrompt) -> JsonObject:
        if self.fault is not None:
            raise self.fault
        self.asked.append(prompt)
        return {"role": "assistant", "content": "candidate", "refusal": None, "tool_calls": []}

    async def judge(self, role: str, answers: Sequence[JsonObject]) -> HeldoutRun:
        self.judged = [*answers]
        seen: dict[str, int] = {"stable": 0, "candidate": 0}
        scores: dict[str, float] = {}
        for answer in sorted(answers, key=lambda one: str(one["messages"])):
            text = answer["answer"]["content"]
            scores[answer["task"]] = float(seen[text] % 10 < 10 * self.good[text])
            seen[text] += 1
        for task in sorted(scores)[: self.silent_on]:
            del scores[task]
        return HeldoutRun(Played(scores, len(scores)), 0.1)

    async def check(self, version: int = 2) -> GateResult | str:
        """The result, or how far it has come."""
        try:
            return await self.gate.check(policy(version), policy(1))
        except GateGoesOn as part:
            return str(part)

    def agents_ask(self, count: int, **changes: Any) -> None:
        """So many new trajectories with one call each."""
        answer: dict[str, Any] = {"response": {"content": "stable"}}
        for _ in range(count):
            self.named += 1
            self.calls.held.append(asked(f"live {self.named}", **(answer | changes)))

    async def until_decided(self) -> GateResult:
        for _ in range(100):
            self.agents_ask(ROUND)
            result = await self.check()
            if isinstance(result, GateResult):
                return result
        raise AssertionError("it never ends")


async def test_it_counts_up_and_passes_an_equal_candidate() -> None:
    world = Mirroring()
    assert await world.check() == "mirroring 0 of 100 calls"
    world.agents_ask(34)
    assert await world.check() == "mirroring 16 of 100 calls"
    result = await world.until_decided()
    assert (result.outcome, result.evidence["calls"]) == (PASSED, 100)
    assert result.reason.startswith("no worse than stable by 0.1 on mirrored calls: difference +0.000")
    assert len(world.asked) == 100, "stable is not asked again"


@pytest.mark.parametrize(("good", "outcome"), [(0.3, FAILED), (0.7, NEEDS_APPROVAL), (0.9, PASSED)])
async def test_verdict_passes_fails_or_asks(good: float, outcome: str) -> None:
    world = Mirroring(good={"stable": 0.8, "candidate": good})
    await world.check()
    assert (await world.until_decided()).outcome == outcome


async def test_evaluator_sees_both_answers_in_one_form() -> None:
    world = Mirroring()
    await world.check()
    await world.until_decided()
    assert {frozenset(one) for one in world.judged} == {frozenset({"task", "messages", "tools", "answer"})}
    assert {frozenset(one["answer"]) for one in world.judged} == {frozenset({"role", "content"})}
    firsts = [one["answer"]["content"] for one in world.judged][:100]
    assert 20 < firsts.count("stable") < 80, "the order says nothing of the policy"


async def test_calls_before_the_gate_and_more_than_a_round_are_not_mirrored() -> None:
    world = Mirroring()
    world.agents_ask(50)
    await world.check()
    assert world.calls.fetched == []
    world.agents_ask(1000)
    assert await world.check() == "mirroring 16 of 100 calls"
    assert len(world.calls.fetched) == ROUND, "what is beyond a round is dropped before it is read"
    assert (await world.until_decided()).evidence["left_out"]["beyond_round"] >= 1000 - ROUND
    assert len(world.asked) == 100


async def test_gate_without_a_plan_reads_nothing() -> None:
    world = Mirroring()
    result = await ShadowTrafficGate(None).check(policy(2), policy(1))
    assert (result.outcome, world.asked) == (NOT_RUN, [])
    other = msgspec.structs.replace(policy(2), role="planner")
    assert (await world.gate.check(other, policy(1))).outcome == NOT_RUN


async def test_without_traffic_a_person_is_asked_when_time_is_over() -> None:
    world = Mirroring()
    await world.check()
    world.agents_ask(3)
    assert await world.check() == "mirroring 3 of 100 calls"
    world.now = 24 * 3600
    result = await world.check()
    assert isinstance(result, GateResult)
    assert (result.outcome, result.reason) == (NEEDS_APPROVAL, "3 live calls mirrored in 24.0 hours, 100 needed")
    assert world.judged == []


async def test_when_time_is_over_what_has_come_is_compared() -> None:
    world = Mirroring(ShadowPlan(share=1, calls=200))
    await world.check()
    for _ in range(8):
        world.agents_ask(ROUND)
        await world.check()
    world.now = 24 * 3600
    result = await world.check()
    assert isinstance(result, GateResult)
    assert (result.outcome, result.evidence["calls"]) == (PASSED, 128)


async def test_an_engine_that_is_away_is_no_verdict_and_is_asked_less_often() -> None:
    world = Mirroring(fault=Unavailable("503"))
    await world.check()
    pauses: list[float] = []
    for _ in range(9):
        world.agents_ask(2)
        with pytest.raises(GateGoesOn, match="its engine does not answer") as part:
            await world.gate.check(policy(2), policy(1))
        pauses.append(part.value.again_in_s)
    assert pauses == [5, 5, 7, 15, 31, 60, 60, 60, 60]
    world.fault, world.now = None, 24 * 3600
    result = await world.check()
    assert isinstance(result, GateResult)
    assert (result.outcome, result.evidence["left_out"]) == (NEEDS_APPROVAL, {"engine_away": 18})


async def test_a_candidate_that_refuses_calls_has_no_answers_and_fails() -> None:
    world = Mirroring(fault=Rejected("400"))
    await world.check()
    result = await world.until_decided()
    assert (result.outcome, result.evidence["candidate_unanswered"]) == (FAILED, 100)


@pytest.mark.parametrize("fault", [Unavailable("503"), Blocked("blocked")])
async def test_candidate_that_leaves_many_calls_without_an_answer_does_not_pass(fault: Exception) -> None:
    world = Mirroring(fault=fault)
    await world.check()
    world.agents_ask(12)
    await world.check()
    world.fault = None
    result = await world.until_decided()
    assert result.outcome == NEEDS_APPROVAL
    assert result.reason.startswith("12 of 112 calls got no answer; else no worse than stable")
    assert result.evidence["candidate_unanswered"] == 0


async def test_evaluator_that_leaves_answers_out_refuses_no_candidate() -> None:
    world = Mirroring(good={"stable": 1.0, "candidate": 1.0}, silent_on=60)
    await world.check()
    result = await world.until_decided()
    assert (result.outcome, result.evidence["unjudged"]) == (NEEDS_APPROVAL, 60)
    assert result.reason.startswith("cannot tell, for 60 answers were not judged, on mirrored calls")


async def test_rounds_follow_each_other_with_a_pause() -> None:
    world = Mirroring()
    pauses: list[float] = []
    for count in (0, 3, 0):
        world.agents_ask(count)
        with pytest.raises(GateGoesOn) as part:
            await world.gate.check(policy(2), policy(1))
        pauses.append(part.value.again_in_s)
    assert pauses == [5, 1, 5]


@pytest.mark.parametrize("fault", [NotFound("no such file"), DigestMismatch("other bytes")])
async def test_bundle_that_cannot_be_read_asks_a_person_in_words(fault: Exception) -> None:
    world = Mirroring(fault=fault)
    await world.check()
    world.agents_ask(3)
    result = await world.check()
    assert isinstance(result, GateResult)
    assert (result.outcome, result.reason) == (NEEDS_APPROVAL, f"its bundle cannot be read: {fault}")


async def test_hours_bound_the_wait_for_a_gateway_that_knows_no_candidate() -> None:
    world = Mirroring()

    async def unknown(candidate: PolicyVersion, plan: ShadowPlan) -> Any:
        raise Unavailable("no such model")

    tools = ShadowTools({"*": WHOLE}, world.calls, unknown, world.judge, no_bundle)
    gate = ShadowTrafficGate(tools, lambda: world.now)
    with pytest.raises(Unavailable):
        await gate.check(policy(2), policy(1))
    world.now = 24 * 3600
    result = await gate.check(policy(2), policy(1))
    assert (result.outcome, result.reason) == (NEEDS_APPROVAL, "no live call mirrored in 24 hours: no such model")


async def test_it_waits_for_tomorrow_when_the_days_money_is_spent() -> None:
    world = Mirroring(ShadowPlan(share=1, calls=100, usd_per_day=5), fault=BudgetSpent())
    await world.check()
    world.agents_ask(4)
    with pytest.raises(GateGoesOn, match="mirroring 0 of 100 calls; 5 US dollars are spent today") as part:
        await world.gate.check(policy(2), policy(1))
    assert part.value.again_in_s == 60
    world.fault = None
    assert (await world.until_decided()).outcome == PASSED


async def test_budget_that_cannot_be_kept_asks_a_person_in_words() -> None:
    world = Mirroring()

    async def unpriced(candidate: PolicyVersion, plan: ShadowPlan) -> Any:
        raise Rejected("openai/gpt has no price")

    tools = ShadowTools({"*": WHOLE}, world.calls, unpriced, world.judge, no_bundle)
    result = await ShadowTrafficGate(tools).check(policy(2), policy(1))
    assert (result.outcome, result.reason) == (NEEDS_APPROVAL, "openai/gpt has no price")


async def test_restarted_deployer_begins_again_and_counts_no_call_twice() -> None:
    world = Mirroring()
    await world.check()
    world.agents_ask(ROUND)
    assert await world.check() == "mirroring 16 of 100 calls"
    world.gate = world.new_gate()
    assert await world.check() == "mirroring 0 of 100 calls"
    result = await world.until_decided()
    assert result.evidence["calls"] == 100
    turns = [prompt.turn_id for prompt in world.asked]
    assert len(turns) == len({*turns}) == ROUND + 100


async def test_newer_candidate_begins_with_calls_of_its_own() -> None:
    world = Mirroring()
    await world.check()
    world.agents_ask(5)
    await world.check()
    assert await world.check(3) == "mirroring 0 of 100 calls"
    world.agents_ask(5)
    assert await world.check(3) == "mirroring 5 of 100 calls"


async def test_what_is_erased_meanwhile_is_not_judged() -> None:
    world = Mirroring(ShadowPlan(share=1, calls=120))
    await world.check()
    world.agents_ask(ROUND)
    await world.check()
    world.calls.gone = {1, 2}
    result = await world.until_decided()
    assert (result.evidence["calls"], result.evidence["left_out"]["erased"]) == (118, 2)
    assert not {"live 1", "live 2"} & {str(one["messages"]) for one in world.judged}


async def test_forgotten_role_begins_again_with_all_its_hours() -> None:
    world = Mirroring()
    await world.check()
    world.agents_ask(5)
    assert await world.check() == "mirroring 5 of 100 calls"
    world.gate.forget("planner")
    assert await world.check() == "mirroring 5 of 100 calls"
    world.gate.forget(ROLE)
    world.now = 24 * 3600
    assert await world.check() == "mirroring 0 of 100 calls"


async def test_stream_that_is_made_anew_drops_what_no_erasure_would_reach() -> None:
    world = Mirroring()
    await world.check()
    world.agents_ask(10, request_digest="0" * 64)
    world.agents_ask(3)
    assert await world.check() == "mirroring 4 of 100 calls"
    world.calls.held, world.calls.made = [], "again"
    assert await world.check() == "mirroring 0 of 100 calls"
    world.agents_ask(1, request_digest="0" * 64)
    assert await world.check() == "mirroring 1 of 100 calls"
    assert (await world.until_decided()).evidence["left_out"]["stream_made_anew"] == 4


async def test_erasures_of_a_stream_that_is_gone_count_for_all_its_calls() -> None:
    class Anew:
        async def extent(self, stream: str) -> Extent:
            return Extent(first=1, last=9, made="again")

    live = NatsLiveCalls(cast("Bus", Anew()))
    assert await live.erased([3, 4], "once") == {3, 4}


async def test_an_unreachable_broker_is_reported_to_the_controller() -> None:
    class Away(FakeCalls):
        async def since(self, role: str, place: LivePlace, wait_s: float) -> CallsSince:
            raise Unavailable("the broker is away")

    with pytest.raises(RatchetError, match="the broker is away"):
        await Mirroring(calls=Away()).gate.check(policy(2), policy(1))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"redactions": {"email": 1}}, "redacted"),
        ({"applied_by": "agent"}, "composed_by_agent"),
        ({"parameters": {"left_out": ["response_format"]}}, "other_request"),
        ({"parameters": {"tool_choice": {"type": "any"}}, "api": "messages"}, "other_request"),
        ({"api": "completion"}, "other_request"),
        ({"messages": [{"role": "user", "content": "x" * 300_000}]}, "too_large"),
        ({"parent_turn_id": turn("lost").turn_id}, "unreadable_chat"),
    ],
)
def test_request_that_cannot_be_asked_again_as_it_was_is_left_out(changes: dict[str, Any], reason: str) -> None:
    assert asked_again([asked("one", **changes)]) == reason


def test_next_call_is_asked_with_all_that_shapes_its_answer() -> None:
    shape = {"response_format": {"type": "json_object"}, "stop": ["END"]}
    offered = [{"type": "function", "function": {"name": "look_up"}}]
    first = asked("one", tools=offered, tools_digest="a" * 64)
    second = asked("one", 1, tools_digest="a" * 64, parameters={**shape, "model": "gpt", "metadata": {"order": 7}})
    prompt = asked_again([first, second])
    assert isinstance(prompt, LoggedPrompt)
    chat = [(message["role"], message["content"]) for message in prompt.messages]
    asked_and_answered = [("system", "Be helpful."), ("user", "question 0"), ("assistant", "answer 0")]
    assert chat == [*asked_and_answered, ("user", "question 1")]
    assert (prompt.parameters, prompt.metadata, prompt.tools) == (shape, {"order": 7}, offered)
    assert prompt.sampling == {}, "no agent set any"


def test_sampling_that_no_agent_set_is_not_asked_of_a_candidate() -> None:
    neutral = Sampling(top_k=-1, min_p=0, presence_penalty=0, frequency_penalty=0, repetition_penalty=1, seed=7)
    prompt = asked_again([asked("one", sampling=neutral)])
    assert isinstance(prompt, LoggedPrompt)
    assert prompt.sampling == {"seed": 7}
    prompt = asked_again([asked("one", sampling=Sampling(temperature=0, top_p=0.9, max_tokens=50))])
    assert isinstance(prompt, LoggedPrompt)
    assert prompt.sampling == {"temperature": 0, "top_p": 0.9, "max_tokens": 50}


async def test_what_stables_bundle_samples_with_is_not_asked_of_a_candidate() -> None:
    defaults, overrides = SamplingValues(temperature=0.3), SamplingValues(max_tokens=100)
    world = Mirroring(bundle=Bundle(defaults=defaults, overrides=overrides))
    await world.check()
    world.agents_ask(1, sampling=Sampling(temperature=0.3, top_p=0.9, max_tokens=100))
    await world.check()
    assert [prompt.sampling for prompt in world.asked] == [{"top_p": 0.9}]


async def test_an_agent_that_asks_the_same_each_time_counts_once() -> None:
    world = Mirroring()
    await world.check()
    world.agents_ask(10, request_digest="0" * 64)
    assert await world.check() == "mirroring 1 of 100 calls"


def call(trajectory: str, index: int = 0, **changes: Any) -> LiveCall:
    plain: dict[str, Any] = {"sequence": 1, "size": 1, "arm": "stable", "version": 1, "answered": True}
    return LiveCall(trajectory_id=trajectory, index=index, **(plain | changes))


def test_share_of_calls_is_drawn_one_of_each_trajectory() -> None:
    sample = LiveSample("salt", 0.1, 1)
    first = sum(sample.drawn(call(f"t{n}")) is not None for n in range(5000))
    second = sum(sample.drawn(call(f"t{n}", 1)) is not None for n in range(5000))
    assert abs(first - 500) < 70
    assert abs(second - 450) < 70, "nothing more of trajectories of which one was drawn"


@pytest.mark.parametrize(
    "changes", [{"arm": "pinned"}, {"arm": "canary"}, {"arm": "mixed"}, {"version": 3}, {"answered": False}]
)
def test_only_what_stable_answered_is_drawn(changes: dict[str, Any]) -> None:
    sample = LiveSample("salt", 1.0, 1)
    assert sample.drawn(call("one", **changes)) is None
    assert sample.drawn(call("one", 1, sequence=2)) == [1, 2], "a failed call is part of what was asked next"


def test_trajectory_that_began_before_is_not_drawn() -> None:
    sample = LiveSample("salt", 1.0, 1)
    assert [sample.drawn(call("old", index)) for index in (4, 5)] == [None, None]


@pytest.mark.parametrize("changes", [{"size": 50 * 1024 * 1024}, {}])
def test_huge_and_endless_trajectories_are_left_out_unread(changes: dict[str, Any]) -> None:
    sample = LiveSample("salt", 1.0, 1)
    for index in range(0 if changes else live_calls.MOST_CALLS):
        assert sample.drawn(call("one", index, answered=False)) is None
    last = 0 if changes else live_calls.MOST_CALLS
    assert sample.drawn(call("one", last, **changes)) is None
    assert sample.left_out == {"too_large": 1}


def test_memory_of_trajectories_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_calls, "MOST_OPEN", 10)
    sample = LiveSample("salt", 1e-9, 1)
    for number in range(1000):
        sample.drawn(call(f"t{number}"))
    assert len(sample.known) == 10


@pytest.mark.parametrize("stable", [0.9, 0.7, 0.5])
def test_equal_policies_seldom_fail_and_much_worse_ones_do(stable: float) -> None:
    """Simulated: 200 calls; policies that err independently are the hardest to compare."""
    draw, rounds, count = np.random.default_rng(7), 2000, 200
    shares: dict[float, tuple[float, float]] = {}
    for loss in (0.0, MARGIN, 0.2):
        differences = (draw.random((rounds, count)) < stable - loss).astype(float) - (
            draw.random((rounds, count)) < stable
        )
        results = [compare(row.tolist(), CONFIDENCE, MARGIN) for row in differences]
        passed = sum(one.passed for one in results) / rounds
        failed = sum(not one.passed and one.p_worse <= ALPHA for one in results) / rounds
        shares[loss] = failed, passed
    assert shares[0.0][0] <= 0.06
    assert shares[MARGIN][1] <= 0.12
    assert shares[0.2][0] >= 0.9


class Mirrors(FakeGate):
    """A gate that takes hours."""

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        self.asked.append(candidate.name)
        if candidate.version == 2:
            raise GateGoesOn("mirroring 34 of 100 calls", 0)
        return GateResult(self.name, PASSED, "fine")


class Remembering(Mirrors):
    """A gate that keeps what agents asked."""

    forgotten = False

    def forget(self, role: str) -> None:
        self.forgotten = role == ROLE


@pytest.mark.parametrize("leaves", [True, False])
async def test_mirror_ends_with_the_rollout_and_with_the_lead(leaves: bool) -> None:
    world = CanaryWorld()
    gate = world.gates[SHADOW_TRAFFIC] = Remembering(SHADOW_TRAFFIC)
    world.restart()
    await world.with_policies(1, 2)
    working = asyncio.create_task(world.controller.run())

    async def mirrors() -> bool:
        return bool(gate.asked)

    async def has_forgotten() -> bool:
        return gate.forgotten

    await eventually(mirrors, 5)
    gate.forgotten = False
    if leaves:
        await world.controller.stop()
        await working
        assert gate.forgotten
        return
    await world.operators.act(Act.ROLLBACK, Order("ann", "never mind"))
    await eventually(has_forgotten, 5)
    await world.controller.stop()
    await working


async def test_a_newer_candidate_takes_the_place_of_one_that_is_mirrored() -> None:
    world = CanaryWorld()
    world.gates[SHADOW_TRAFFIC] = Mirrors(SHADOW_TRAFFIC)
    world.restart()
    await world.with_policies(1, 2)
    for _ in range(8):
        try:
            await world.controller.step()
        except GateGoesOn:
            assert (await world.rollout()).state == "gating"
    await world.register(3)
    rollout = await world.until("running")
    assert (rollout.candidate.version, await world.stage_of(2)) == (3, "superseded")


@pytest.mark.parametrize(
    "given",
    ['{"*": {}}', '{"support": {"share": 0.05, "calls": 100, "hours": 2, "usd_per_day": 1}}'],
)
def test_plans_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("RATCHET_CANARY_SHADOW_TRAFFIC", given)
    with pytest.raises(ValueError, match="shadow_traffic needs replay_command"):
        Settings()
    monkeypatch.setenv("RATCHET_CANARY_REPLAY_COMMAND", "judge")
    (plan,) = Settings().shadow_traffic.values()
    assert 0 < plan.share <= 0.1


@pytest.mark.parametrize(
    "given",
    ['{"*": {"share": 0}}', '{"*": {"share": 1.1}}', '{"*": {"calls": 99}}', '{"*": {"hours": 169}}', '{"a b": {}}'],
)
def test_plans_without_bounds_are_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("RATCHET_CANARY_REPLAY_COMMAND", "judge")
    monkeypatch.setenv("RATCHET_CANARY_SHADOW_TRAFFIC", given)
    with pytest.raises(ValueError):  # noqa: PT011 - pydantic names the member
        Settings()


class Gateway:
    """A gateway that answers for every policy; `prices` are those of its model."""

    def __init__(self, prices: JsonObject | None = None, status: int = 200, code: str | None = None) -> None:
        self.prices, self.status, self.code = prices, status, code
        self.asked: list[tuple[httpx.Headers, JsonObject]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            model = {"id": "candidate", "answered_by": "openai/gpt", "prices": self.prices}
            return httpx.Response(200, json=model)
        body = msgspec.json.decode(request.content)
        self.asked.append((request.headers, body))
        usage = {"prompt_tokens": 100, "completion_tokens": 50}
        answer = {"choices": [{"message": {"role": "assistant", "content": "yes"}}], "usage": usage}
        if self.code is not None:
            answer = {"error": {"message": "blocked", "code": self.code}}
        return httpx.Response(self.status, json=answer, headers={"x-ratchet-policy": body["model"]})


async def no_bundle(one: PolicyVersion) -> Bundle:
    return Bundle()


def asker(gateway: Gateway, bus: FakeBus | None = None) -> ShadowAsker:
    client = AsyncApiClient(gateway_peer("http://gateway", None, "shadow_traffic"), httpx.MockTransport(gateway))
    bus = bus or fake_bus()
    return ShadowAsker(client, no_bundle, Bucket(bus, JUDGE_SPEND, Amounts), bus.now)


PROMPT = LoggedPrompt(
    turn_id="turn",
    trajectory_id="trajectory",
    messages=[{"role": "user", "content": "where is my order?"}],
    sampling={"temperature": 0.7},
    parameters={"stop": ["END"]},
)


async def test_mirrored_call_is_asked_by_name_unrecorded_and_as_it_was() -> None:
    gateway = Gateway()
    complete = await asker(gateway).complete_for(policy(2), WHOLE)
    assert (await complete(policy(2), PROMPT))["content"] == "yes"
    ((headers, body),) = gateway.asked
    assert (headers["x-ratchet-record"], headers["x-ratchet-agent"]) == ("off", "shadow_traffic")
    assert body == {
        "model": policy(2).name,
        "messages": PROMPT.messages,
        "stop": ["END"],
        "temperature": 0.7,
    }


PAID = ShadowPlan(share=1, calls=100, usd_per_day=0.03)


async def test_money_of_a_day_is_never_exceeded_not_even_over_restarts() -> None:
    gateway, bus = Gateway({"prompt": 1.0, "completion": 2.0}), fake_bus()
    made = 0
    for _ in range(3):  # a deployer that restarts
        complete = await asker(gateway, bus).complete_for(policy(2), PAID)
        with suppress(BudgetSpent):
            while made < 1000:
                await complete(policy(2), PROMPT)
                made += 1
    spent = made * (100 * 1.0 + 50 * 2.0) / 1e6
    assert 0.02 < spent <= 0.03
    assert {body["max_completion_tokens"] for _, body in gateway.asked} == {4096}


async def test_budget_without_a_price_is_refused_in_words() -> None:
    with pytest.raises(Rejected, match="openai/gpt has none: set it in `prices`"):
        await asker(Gateway()).complete_for(policy(2), PAID)


async def test_limit_of_an_answer_is_asked_as_every_model_takes_it() -> None:
    gateway = Gateway()
    complete = await asker(gateway).complete_for(policy(2), WHOLE)
    await complete(policy(2), msgspec.structs.replace(PROMPT, sampling={"max_tokens": 50}))
    ((_, body),) = gateway.asked
    assert (body["max_completion_tokens"], "max_tokens" in body) == (50, False)


async def test_call_that_filters_block_is_no_answer_and_no_refusal() -> None:
    gateway = Gateway(status=400, code="content_filter")
    complete = await asker(gateway).complete_for(policy(2), WHOLE)
    with pytest.raises(Blocked):
        await complete(policy(2), PROMPT)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        *((status, Rejected) for status in (400, 413, 422)),
        *((status, Unavailable) for status in (401, 402, 404, 405, 429, 451, 503)),
    ],
)
async def test_a_server_at_fault_is_no_answer_of_the_candidate(status: int, error: type[RatchetError]) -> None:
    complete = await asker(Gateway(status=status)).complete_for(policy(2), WHOLE)
    with pytest.raises(error) as raised:
        await complete(policy(2), PROMPT)
    assert not isinstance(raised.value, Blocked)
