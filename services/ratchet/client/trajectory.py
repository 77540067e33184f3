"""Recording one trajectory while the agent works."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any

import msgspec

from ratchet.messages import JsonObject, Outcome, PolicyClaim, Trajectory
from ratchet.messages.chat import trajectory_turns
from ratchet.messages.trajectory import (
    Action,
    Observation,
    Quality,
    TaskContext,
    TrajectoryMetadata,
    TrajectoryTurn,
    TurnResult,
)

Content = str | JsonObject | list[JsonObject]


@dataclass(kw_only=True)
class TrajectoryRecorder:
    """A trajectory in the making; leaving the `with` block publishes it, once, whatever happened inside.

    An exception inside marks the outcome as a failure that the agent reported itself, and goes on to the caller.
    A trajectory without a turn says nothing and is not published.
    """

    trajectory_id: str
    session_id: str
    agent_id: str
    role: str
    task: TaskContext
    metadata: TrajectoryMetadata
    publish: Callable[[Trajectory], None] = field(repr=False)
    now: Callable[[], datetime] = field(repr=False)
    subordinate_profile: str | None = None
    parent_trajectory_id: str | None = None
    user_ref: str | None = None
    labels: JsonObject | None = None

    def __post_init__(self) -> None:
        self._started_at = self.now()
        self._turns: list[TrajectoryTurn] = []
        self._outcome: Outcome | None = None
        self._quality: Quality | None = None
        self._policy: PolicyClaim | None = None
        self._tokens: int | None = self.metadata.total_tokens
        self._cost: float | None = self.metadata.total_cost_usd
        self._ended = False

    def turn(
        self,
        *,
        observation: Observation | Content,
        action: Action | str,
        result: TurnResult | None = None,
        thought_process: Sequence[str] | None = None,
        reward: float | None = None,
    ) -> None:
        """Add what the agent saw, did and got. Plain text is a user's message and the agent's answer to it."""
        seen = (
            observation
            if isinstance(observation, Observation)
            else Observation(type="user_message", content=observation)
        )
        done = action if isinstance(action, Action) else Action(type="response", raw_response=action)
        self._turns.append(
            TrajectoryTurn(
                turn_id=len(self._turns) + 1,
                timestamp=self.now(),
                observation=seen,
                action=done,
                result=result or TurnResult(success=True),
                thought_process=list(thought_process) if thought_process is not None else None,
                reward=reward,
            )
        )

    def chat(self, messages: Sequence[JsonObject], *, tools: Sequence[JsonObject] | None = None) -> None:
        """Take a whole conversation in OpenAI's form, tool calls and results included, as this trajectory's turns.

        Raises `ChatError` when it breaks the format.
        """
        instructions, turns = trajectory_turns(messages, started_at=self._started_at)
        self._turns = turns
        self.task = msgspec.structs.replace(
            self.task,
            instructions=instructions or self.task.instructions,
            tools=list(tools) if tools is not None else self.task.tools,
        )

    def outcome(
        self,
        status: str,
        *,
        completion_percentage: float | None = None,
        score: float | None = None,
        verified_by: str | None = None,
    ) -> None:
        """How it ended: `success`, `partial` or `failure`. Say `verified_by` when something checked it."""
        self._outcome = Outcome(
            status=status, completion_percentage=completion_percentage, score=score, verified_by=verified_by
        )

    def quality(self, **measured: Any) -> None:
        """Quality of produced code: `lint_score` 0..10, `tests_passed`, `tests_total`, `critical_issues`."""
        self._quality = Quality(**measured)

    def policy(self, claim: PolicyClaim) -> None:
        """Which policy answered, when the agent knows it from the gateway's headers."""
        self._policy = claim

    def usage(self, *, tokens: int = 0, cost_usd: float = 0.0) -> None:
        """Add what a call used."""
        self._tokens = (self._tokens or 0) + tokens
        self._cost = (self._cost or 0.0) + cost_usd

    def end(self) -> None:
        """Publish. Happens by itself at the end of the `with` block; a second call does nothing."""
        if self._ended:
            return
        self._ended = True
        if self._turns:
            self.publish(self._trajectory())

    def __enter__(self) -> TrajectoryRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.outcome("failure")
        self.end()

    async def __aenter__(self) -> TrajectoryRecorder:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _trajectory(self) -> Trajectory:
        metadata = msgspec.structs.replace(
            self.metadata, total_tokens=self._tokens, total_cost_usd=self._cost, source=self.metadata.source or "client"
        )
        return Trajectory(
            trajectory_id=self.trajectory_id,
            session_id=self.session_id,
            agent_id=self.agent_id,
            start_timestamp=self._started_at,
            end_timestamp=self.now(),
            turns=self._turns,
            task_context=self.task,
            metadata=metadata,
            role=self.role,
            subordinate_profile=self.subordinate_profile,
            user_ref=self.user_ref,
            outcome=self._outcome,
            policy=self._policy,
            quality=self._quality,
            parent_trajectory_id=self.parent_trajectory_id,
            labels=self.labels,
        )
