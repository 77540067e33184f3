"""What a workflow that ended is published as: its execution, the parent of its sub-tasks, a call of its planner."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from ratchet.bus.message import JsonObject, named_id
from ratchet.core.contract import Outcome, Trajectory, Turn, WorkflowExecution
from ratchet.core.contract.trajectory import (
    Action,
    Observation,
    PolicyClaim,
    TaskContext,
    TrajectoryMetadata,
    TrajectoryTurn,
    TurnResult,
)
from ratchet.core.contract.turn import BY_AGENT, CANCELLED as GIVEN_UP, EngineInfo, Trainable
from ratchet.core.planning.plans import sinks
from ratchet.workflows.domain.workflow import CANCELLED, FAILED, SUCCEEDED, Workflow

LONGEST_RESULT = 4000
"""Characters of a result."""
AGENT = "workflows"
_STATUS = {SUCCEEDED: "success", FAILED: "failure", CANCELLED: "failure"}


def result_of(workflow: Workflow, outputs: Mapping[int, str]) -> str | None:
    """The outputs of the sub-tasks that nothing depends on."""
    if workflow.plan is None:
        return None
    texts = [outputs[index] for index in sinks(workflow.plan) if index in outputs]
    return "\n\n".join(texts)[:LONGEST_RESULT] if texts else None


def claim_of(workflow: Workflow) -> PolicyClaim:
    """The planner's policy; of a workflow that ended before the gateway named one: version 0."""
    return workflow.claim or PolicyClaim(role=workflow.role, version=0, digest="", arm="stable", weight=0.0)


def labels_of(workflow: Workflow) -> JsonObject:
    """What the trajectories of its sub-tasks carry of it: their own arms are those of their workers' roles."""
    return {"workflow_id": workflow.workflow_id, "planner": _policy_of(workflow), "arm": claim_of(workflow).arm}


def execution_of(workflow: Workflow) -> WorkflowExecution:
    """The log of a workflow that ended."""
    assert workflow.ended_at is not None  # noqa: S101 - it ended
    return WorkflowExecution(
        workflow_id=workflow.workflow_id,
        timestamp=workflow.ended_at,
        started_at=workflow.created_at,
        role=workflow.role,
        policy=claim_of(workflow),
        instruction=workflow.instruction,
        plan=workflow.plan,
        runs=tuple(run for step in workflow.steps if (run := step.run()) is not None),
        status=workflow.state,
        success=workflow.state == SUCCEEDED,
        cost_usd=workflow.cost_usd,
        latency_ms=latency_ms(workflow),
        budget_usd=workflow.budget_usd,
        planning_cost_usd=workflow.planning_cost_usd,
        result=workflow.result,
        error=workflow.error,
        user_ref=workflow.user_ref,
        session_id=workflow.session,
    )


def call_of(workflow: Workflow) -> Turn:
    """The workflow as a call of its planner: what rollouts compare of cost, latency and failures."""
    failed = workflow.state == FAILED
    return Turn(
        turn_id=named_id(AGENT, workflow.workflow_id),
        trajectory_id=workflow.workflow_id,
        timestamp=workflow.created_at,
        index=0,
        request_digest=hashlib.sha256(workflow.instruction.encode(errors="replace")).hexdigest(),
        messages=[{"role": "user", "content": workflow.instruction}],
        policy=claim_of(workflow),
        engine=EngineInfo(name=AGENT),
        trainable=Trainable(ok=False, reason="error" if failed else "no_token_ids"),
        role=workflow.role,
        session_id=workflow.session,
        agent_id=AGENT,
        user_ref=workflow.user_ref,
        trajectory_by="header",
        applied_by=BY_AGENT if workflow.planner is not None else None,
        response=None if failed else {"role": "assistant", "content": workflow.result or ""},
        cost_usd=workflow.cost_usd,
        latency_ms=latency_ms(workflow),
        finish_reason=GIVEN_UP if workflow.state == CANCELLED else None if failed else "stop",
        error=(workflow.error or "its sub-tasks failed") if failed else None,
    )


def latency_ms(workflow: Workflow) -> float:
    """By the monotonic clocks of those that ran it."""
    return max(0.0, (workflow.deadline_s - workflow.left_s) * 1000)


def trajectory_of(workflow: Workflow, outputs: Mapping[int, str]) -> Trajectory:
    """The parent of the trajectories of its sub-tasks: a turn for each."""
    assert workflow.ended_at is not None  # noqa: S101 - it ended
    return Trajectory(
        trajectory_id=workflow.workflow_id,
        session_id=workflow.session or workflow.workflow_id,
        agent_id=AGENT,
        start_timestamp=workflow.created_at,
        end_timestamp=workflow.ended_at,
        turns=_turns(workflow, outputs),
        task_context=TaskContext(task_id=workflow.workflow_id, instructions=""),
        metadata=TrajectoryMetadata(
            model=_policy_of(workflow),
            total_cost_usd=workflow.cost_usd,
            source="client",
            error=workflow.error,
        ),
        role=workflow.role,
        user_ref=workflow.user_ref,
        outcome=Outcome(status=_STATUS.get(workflow.state, "partial")),
        policy=claim_of(workflow),
    )


def _policy_of(workflow: Workflow) -> str:
    return workflow.policy or f"{workflow.role}@0"


def _turns(workflow: Workflow, outputs: Mapping[int, str]) -> list[TrajectoryTurn]:
    runs = [(index, step) for index, step in enumerate(workflow.steps) if step.started_at is not None]
    begin = Observation(type="user_message", content=workflow.instruction)
    if workflow.plan is None or not runs:
        failed = TurnResult(success=False, error=workflow.error)
        refused = Action(type="response", raw_response="")
        return [
            TrajectoryTurn(turn_id=1, timestamp=workflow.created_at, observation=begin, action=refused, result=failed)
        ]
    turns: list[TrajectoryTurn] = []
    for number, (index, step) in enumerate(runs, 1):
        part = workflow.plan.sub_tasks[index]
        asked = {"index": index, "task_type": part.task_type, "instruction": part.instruction}
        turns.append(
            TrajectoryTurn(
                turn_id=number,
                timestamp=step.started_at or workflow.created_at,
                observation=begin
                if number == 1
                else Observation(type="subordinate_response", content=_text_of(turns[-1])),
                action=Action(type="subordinate_call", tool_name=step.worker, tool_args=asked),
                result=TurnResult(
                    success=step.state == SUCCEEDED,
                    output=outputs[index][:LONGEST_RESULT] if index in outputs else None,
                    error=step.error,
                    execution_time_ms=step.latency_ms,
                ),
            )
        )
    return turns


def _text_of(turn: TrajectoryTurn) -> str:
    return str(turn.result.output if turn.result.success else turn.result.error or "")
