"""The gate of planners: what stable's log says of a candidate, and which gates ask no planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from ratchet.canary_deployer.domain.rollout import FAILED, NOT_RUN, PASSED, GateResult
from ratchet.canary_deployer.gates import GATES, build_gates
from ratchet.canary_deployer.gates.base import Asking, BundleTools, GateTools, PlannerTools
from ratchet.canary_deployer.gates.off_policy import NO_CALLS
from ratchet.core.contract.bundle import Bundle, Instructions
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.contract.workflows import TASK_TYPES, PlannerRef, WorkflowExecution
from ratchet.core.errors import DigestMismatch, RatchetError, Rejected, Unavailable
from ratchet.core.planning.base import Choice, Version0, with_floor
from ratchet.core.planning.learned import LearnedPlanner, execution_digest
from tests.support.canary_world import policy
from tests.support.executions import PLAN, execution, run_of

PLANS = Bundle(planner=PlannerRef(uri=f"s3://test/blobs/{'a' * 64}", sha256="a" * 64))
SUCCEEDS = {"cheap": 0.5, "good": 1.0, "quick": 0.0}
"""Share of a worker's sub-tasks that succeed."""


@dataclass(frozen=True)
class Prefers:
    """Chooses one worker wherever it is capable."""

    worker: str

    def propensities(self, choice: Choice) -> list[float]:
        return with_floor([float(worker.name == self.worker) for worker in choice.workers])


def logged(count: int) -> list[WorkflowExecution]:
    """Executions of stable, which asked `cheap` seven times of ten, `good` twice and `quick` once."""
    return [
        execution(number, runs=tuple(_run(number, place) for place in range(len(PLAN.sub_tasks))))
        for number in range(count)
    ]


def _run(number: int, place: int):  # noqa: ANN202 - a run
    turn = (number * 7 + place * 3) % 10
    worker = "cheap" if turn < 7 else "good" if turn < 9 else "quick"
    succeeded = (number // 10 + place) % 2 < 2 * SUCCEEDS[worker]
    return run_of(worker, status="succeeded" if succeeded else "failed")


@dataclass
class Given:
    """What the gates of a candidate read."""

    worker: str = "good"
    executions: Sequence[WorkflowExecution] = field(default_factory=lambda: logged(400))
    trained_on: frozenset[str] = frozenset()
    bundle: Bundle = PLANS
    fault: RatchetError | None = None

    async def bundle_of(self, _: PolicyVersion) -> Bundle:
        return self.bundle

    async def weights_of(self, _: PolicyVersion) -> None:
        return None

    async def planner_of(self, _: PlannerRef) -> LearnedPlanner:
        if self.fault is not None:
            raise self.fault
        return LearnedPlanner(TASK_TYPES, Version0(TASK_TYPES), Prefers(self.worker), self.trained_on)

    async def of_stable(self, stable: PolicyVersion) -> Sequence[WorkflowExecution]:
        assert stable.version == 1
        return self.executions

    def tools(self) -> GateTools:
        unused = Asking(None)  # type: ignore[arg-type] - no gate may ask
        return GateTools(
            checks=None,  # type: ignore[arg-type] - nor an engine
            read_manifest=None,  # type: ignore[arg-type]
            warmup_prompts=("Hello.",),
            approval=False,
            bundles=BundleTools(self.bundle_of, self.weights_of, unused, None),
            planners=PlannerTools(self.bundle_of, self.planner_of, self.of_stable),
        )

    async def check(self) -> GateResult:
        return await GATES["off_policy"](self.tools()).check(policy(2, kind="bundle"), policy(1, kind="bundle"))


async def test_better_selector_passes_with_its_interval() -> None:
    result = await Given("good").check()
    assert result.outcome == PASSED, result.reason
    assert 0 < result.evidence["difference"]["low"] < result.evidence["difference"]["high"]
    assert msgspec.json.decode(msgspec.json.encode(result)) == msgspec.to_builtins(result)


async def test_worse_selector_is_refused() -> None:
    result = await Given("quick", logged(1500)).check()
    assert (result.outcome, result.reason.startswith("it is worse: -")) == (FAILED, True), result.reason
    assert "95 % interval" in result.reason


async def test_short_log_decides_nothing_and_names_what_it_lacks() -> None:
    result = await Given("good", logged(20)).check()
    assert (result.outcome, "100 are needed" in result.reason) == (NOT_RUN, True), result.reason
    assert result.evidence["executions"] == 20


async def test_executions_that_it_learned_from_do_not_judge_it() -> None:
    executions = logged(400)
    known = frozenset(execution_digest(one.workflow_id) for one in executions[:390])
    result = await Given("good", executions, known).check()
    assert (result.outcome, result.evidence["executions"], result.evidence["excluded"]) == (NOT_RUN, 10, 390)


@pytest.mark.parametrize("fault", [Rejected("the planner's file is truncated"), DigestMismatch("another sha256")])
async def test_planner_that_cannot_be_loaded_is_refused(fault: RatchetError) -> None:
    result = await Given(fault=fault).check()
    assert (result.outcome, result.reason) == (FAILED, f"its planner cannot be loaded: {fault}")


async def test_planner_whose_file_is_away_is_looked_at_again() -> None:
    with pytest.raises(Unavailable):
        await Given(fault=Unavailable("the object store is away")).check()


async def test_bundle_that_changes_calls_is_none_of_its_business() -> None:
    result = await Given(bundle=Bundle(instructions=Instructions(text="Be brief."))).check()
    assert (result.outcome, result.reason) == (NOT_RUN, "it plans no workflows")


async def test_no_gate_asks_a_planner_for_an_answer() -> None:
    gates = build_gates((), Given().tools())
    of_calls = [name for name in gates if name not in ("off_policy", "approval")]
    results = [await gates[name].check(policy(2, kind="bundle"), policy(1, kind="bundle")) for name in of_calls]
    assert results == [GateResult(name, NOT_RUN, NO_CALLS) for name in of_calls]
