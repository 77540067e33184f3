"""Gates: their checks, their results, and the decision that follows."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from ratchet.bus.testing import START
from ratchet.canary_deployer.domain import decisions, gating
from ratchet.canary_deployer.domain.paired import Played
from ratchet.canary_deployer.domain.rollout import (
    FAILED,
    ITSELF,
    NEEDS_APPROVAL,
    NOT_RUN,
    PASSED,
    WAIVED,
    Decision,
    GateResult,
    Rollout,
    Verdict,
)
from ratchet.canary_deployer.gates import GATES
from ratchet.canary_deployer.gates.base import GateTools, HeldoutRun, OnAnswer
from ratchet.core.contract.policy_manifest import ADAPTER
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import Unavailable
from tests.support.canary_world import policy, quick_rules, served

NAMES = list(GATES)


@dataclass
class FakeHeldout:
    """Results by version."""

    runs: dict[int, HeldoutRun]
    tasks: int = 100

    async def unfit(self, one: PolicyVersion) -> str | None:
        return None

    async def play(self, one: PolicyVersion) -> HeldoutRun:
        return self.runs[one.version]

    async def play_or_recall(self, policy: PolicyVersion, on_answer: OnAnswer | None = None) -> HeldoutRun:
        return self.runs[policy.version]

    async def due(self, policy: PolicyVersion) -> int:
        return len(self.runs[policy.version].played.scores)


def run(score: float, tasks: int = 400, **changes: object) -> HeldoutRun:
    successes = round(score * tasks)
    scores = {f"task {n}": float(n < successes) for n in range(tasks)}
    plain = {"scores": scores, "tries": tasks, "successes": successes, "calls": 3 * tasks, "valid_calls": 2 * tasks}
    return HeldoutRun(Played(**(plain | changes)), 1.5)


async def asked(name: str, **tools: object) -> GateResult:
    plain: dict[str, object] = {
        "checks": None,
        "read_manifest": None,
        "warmup_prompts": ("hello", "what can you do?"),
        "approval": False,
    }
    return await GATES[name](GateTools(**(plain | tools))).check(policy(2), policy(1))


async def test_an_equal_policy_passes_the_heldout_tasks() -> None:
    result = await asked("heldout_tasks", task_files={"*": FakeHeldout({1: run(0.8), 2: run(0.8)})})
    assert result.outcome == PASSED
    assert (result.evidence["candidate_score"], result.evidence["stable_score"]) == (0.8, 0.8)
    assert result.evidence["candidate_valid_calls"] == pytest.approx(0.6667, abs=1e-4)
    assert not result.evidence["regression"]


async def test_a_worse_policy_fails_with_the_numbers_in_the_reason() -> None:
    result = await asked("heldout_tasks", task_files={"*": FakeHeldout({1: run(0.8), 2: run(0.5)})})
    assert result.outcome == FAILED
    assert result.reason.startswith("difference -0.300, lower bound -0.31")
    assert result.evidence["regression"]


async def test_a_rate_without_calls_is_in_words() -> None:
    mute = run(0.0, calls=0, valid_calls=0)
    result = await asked("heldout_tasks", task_files={"*": FakeHeldout({1: run(0.8), 2: mute})})
    assert result.evidence["candidate_valid_calls"] == "no calls"


async def test_too_few_tasks_are_named_as_such() -> None:
    result = await asked("heldout_tasks", task_files={"*": FakeHeldout({1: run(0.8, tasks=10), 2: run(0.8, tasks=10)})})
    assert result.outcome == FAILED
    assert "10 tasks are few" in result.evidence["note"]


async def test_heldout_tasks_that_are_missing_are_in_the_evidence() -> None:
    part = HeldoutRun(Played({"task 0": 1.0}, 1, 1), 0.1)
    result = await asked("heldout_tasks", task_files={"*": FakeHeldout({1: run(0.8), 2: part})})
    assert result.evidence["missing_tasks"] == 399
    assert result.outcome == FAILED


def refusing(*places: int, tasks: int = 100) -> HeldoutRun:
    """A policy that solves every task but those whose requests its server refuses."""
    scores = {f"task {n}": float(n not in places) for n in range(tasks)}
    refused = frozenset(f"task {n}" for n in places)
    return HeldoutRun(Played(scores, tasks, tasks - len(places), refused=refused), 1.5)


async def test_nothing_was_compared_where_all_tasks_are_refused_for_both() -> None:
    none = refusing(*range(100))
    result = await asked("heldout_tasks", task_files={"*": FakeHeldout({1: none, 2: none})})
    assert result.outcome == NEEDS_APPROVAL
    assert result.reason == "nothing was compared: every one of the 100 tasks is refused for both policies"
    evidence = result.evidence
    assert (evidence["candidate_refused"], evidence["stable_refused"], evidence["refused_for_both"]) == (100, 100, 100)


async def test_task_refused_for_one_policy_counts_and_for_both_is_left_out() -> None:
    result = await asked("heldout_tasks", task_files={"*": FakeHeldout({1: refusing(0), 2: refusing(0, 1, 2)})})
    assert (result.evidence["tasks"], result.evidence["refused_for_both"]) == (99, 1)
    assert result.evidence["difference"] == pytest.approx(-2 / 99, abs=1e-4)
    refused = await asked("heldout_tasks", task_files={"*": FakeHeldout({1: refusing(), 2: refusing(*range(100))})})
    assert (refused.outcome, refused.evidence["difference"]) == (FAILED, -1.0)


async def test_tasks_that_neither_policy_solves_are_named_as_such() -> None:
    result = await asked("heldout_tasks", task_files={"*": FakeHeldout({1: run(0.0), 2: run(0.0)})})
    assert result.evidence["note"] == "neither policy solved a task: these tasks cannot tell the two apart"


async def test_run_that_may_be_an_engines_fault_asks_a_person_for_either_policy() -> None:
    slow = HeldoutRun(Played(), 2.0, "not all tasks were answered after 2 s")
    for runs in ({1: run(0.8), 2: slow}, {1: slow, 2: run(0.8)}):
        result = await asked("heldout_tasks", task_files={"*": FakeHeldout(runs)})
        assert result.outcome == NEEDS_APPROVAL
        assert result.reason.endswith(": not all tasks were answered after 2 s")


async def test_without_tasks_nothing_is_compared_and_the_canary_decides() -> None:
    result = await asked("heldout_tasks")
    assert result.outcome == NOT_RUN
    assert result.reason.startswith("nothing was compared before traffic")
    rollout = decisions.new_rollout(policy(2), served(1), None, Decision(Verdict.START, "registered", ITSELF), START)
    concluded, strategy = gating.gates_decision(
        msgspec.structs.replace(rollout, gates=(result,)), "auto", quick_rules()
    )
    assert (concluded.verdict, strategy) == (Verdict.START, "canary")
    assert concluded.reason == "no gate refused it; heldout_tasks compared nothing"


def test_blue_green_goes_in_stages_where_nothing_was_compared() -> None:
    rollout = gated(GateResult("heldout_tasks", NOT_RUN, "nothing was compared"))
    decision, strategy = gating.gates_decision(rollout, "blue_green", quick_rules())
    assert (decision.verdict, strategy) == (Verdict.START, "canary")
    assert decision.reason.endswith("stage by stage instead of blue_green, whose soak asks no evidence")
    approved = Decision(Verdict.START, "fine by me", "ann", "manual_approved")
    assert gating.gates_decision(rollout, "blue_green", quick_rules(), approved)[1] == "blue_green"
    chosen = msgspec.structs.replace(rollout, asked_strategy="blue_green")
    assert gating.gates_decision(chosen, "canary", quick_rules())[1] == "blue_green"
    assert gating.gates_decision(gated(heldout(0.0)), "blue_green", quick_rules())[1] == "blue_green"


async def test_heldout_tasks_of_a_role_come_before_those_of_all_roles() -> None:
    own, others = (FakeHeldout({1: run(0.8), 2: run(score)}) for score in (0.8, 0.5))
    of_role = await asked("heldout_tasks", task_files={"support": own, "*": others})
    of_others = await asked("heldout_tasks", task_files={"*": others, "planner": own})
    assert [result.evidence["difference"] for result in (of_role, of_others)] == [0.0, -0.3]
    assert (await asked("heldout_tasks", task_files={"planner": own})).outcome == NOT_RUN


async def test_tasks_that_changed_between_both_policies_are_played_again() -> None:
    before, after = ({"tasks_digest": digest * 64} for digest in "ab")
    runs = {1: HeldoutRun(run(0.8).played, 1.0, source=before), 2: HeldoutRun(run(0.8).played, 1.0, source=after)}
    with pytest.raises(Unavailable, match="changed while they were played"):
        await asked("heldout_tasks", task_files={"*": FakeHeldout(runs)})


async def test_approval_is_needed_only_where_the_setting_requires_it() -> None:
    off = await asked("approval")
    assert off.outcome == NOT_RUN
    assert "RATCHET_CANARY_APPROVAL is off" in off.reason
    assert "another gate asks about it" in off.reason
    assert (await asked("approval", approval=True)).outcome == NEEDS_APPROVAL


def gated(*results: GateResult, first: bool = False, **changes: object) -> Rollout:
    opening = Decision(Verdict.START, "registered", ITSELF)
    rollout = decisions.new_rollout(policy(2), None if first else served(1), None, opening, START)
    return msgspec.structs.replace(rollout, gates=results, **changes)


def heldout(difference: float, outcome: str = PASSED) -> GateResult:
    return GateResult("heldout_tasks", outcome, "measured", {"difference": difference})


def test_gates_are_asked_in_order_and_for_a_first_policy_compare_nothing() -> None:
    every = ["probe", "warmup", "takes_tools", "heldout_tasks", "safety_suite", "shadow_traffic", "approval"]
    assert gating.due_gates(gated(), ADAPTER, NAMES, quick_rules()) == every
    probed = gated(GateResult("probe", PASSED, ""))
    assert gating.due_gates(probed, ADAPTER, NAMES, quick_rules()) == every[1:]
    assert gating.due_gates(gated(first=True), ADAPTER, NAMES, quick_rules()) == [*every[:3], "safety_suite"]


def test_a_failed_gate_refuses() -> None:
    decision, _ = gating.gates_decision(gated(heldout(-0.3, FAILED)), "canary", quick_rules())
    assert (decision.verdict, decision.reason) == (Verdict.REFUSE, "gate heldout_tasks: measured")


def test_passed_gates_start_a_canary() -> None:
    decision, strategy = gating.gates_decision(gated(heldout(0.0)), "canary", quick_rules())
    assert (decision.verdict, strategy) == (Verdict.START, "canary")


def test_an_open_question_holds_until_an_operator_answers_it() -> None:
    rollout = gated(GateResult("approval", NEEDS_APPROVAL, "ask"))
    assert gating.gates_decision(rollout, "canary", quick_rules())[0].verdict is Verdict.HOLD
    answer = Decision(Verdict.START, "fine by me", "ann", "manual_approved")
    decision, _ = gating.gates_decision(rollout, "canary", quick_rules(), answer)
    assert (decision.verdict, decision.actor, decision.approval) == (Verdict.START, "ann", "manual_approved")


def test_auto_refuses_a_negative_improvement_and_watches_a_large_one() -> None:
    assert gating.gates_decision(gated(heldout(-0.01)), "auto", quick_rules())[0].verdict is Verdict.REFUSE
    decision, strategy = gating.gates_decision(gated(heldout(0.2)), "auto", quick_rules())
    assert (decision.verdict, strategy) == (Verdict.START, "blue_green")
    decision, strategy = gating.gates_decision(gated(heldout(0.1)), "auto", quick_rules())
    assert (decision.verdict, strategy) == (Verdict.START, "blue_green")


def test_the_strategy_of_the_order_overrides_the_setting() -> None:
    rollout = msgspec.structs.replace(gated(heldout(0.2)), asked_strategy="blue_green")
    decision, strategy = gating.gates_decision(rollout, "canary", quick_rules())
    assert (decision.verdict, strategy) == (Verdict.START, "blue_green")
    rollout = msgspec.structs.replace(gated(heldout(-0.2, FAILED)), asked_strategy="immediate")
    assert gating.gates_decision(rollout, "canary", quick_rules())[0].verdict is Verdict.REFUSE


def test_an_override_goes_as_a_canary_where_auto_would_abort() -> None:
    measured = GateResult("heldout_tasks", WAIVED, "waived by ann: rehearsal", {"difference": -0.3})
    decision, strategy = gating.gates_decision(gated(measured, override=True), "auto", quick_rules())
    assert (decision.verdict, strategy) == (Verdict.START, "canary")


def test_override_waives_gates_that_can_be_waived_and_keeps_their_evidence() -> None:
    known = {"heldout_tasks": {"outcome": FAILED, "evidence": {"difference": -0.3, "regression": True}}}
    results = gating.waived_results(policy(2, gate=known), NAMES, "ann", "rehearsal")
    assert [(r.gate, r.outcome) for r in results] == [
        ("takes_tools", WAIVED),
        ("heldout_tasks", WAIVED),
        ("safety_suite", WAIVED),
        ("shadow_traffic", WAIVED),
        ("approval", WAIVED),
    ]
    assert results[1].evidence["regression"]
    rollout = gated(*results, override=True, actor="ann", reason="rehearsal")
    assert gating.due_gates(rollout, ADAPTER, NAMES, quick_rules()) == ["probe", "warmup"]
    assert gating.gates_decision(rollout, "canary", quick_rules())[0].actor == "ann"
