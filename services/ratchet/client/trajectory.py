"""Records one trajectory while the agent works."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar, cast

import msgspec

from ratchet.core.contract import JsonObject, Outcome, PolicyClaim, Trajectory
from ratchet.core.contract.trajectory import (
    Action,
    Observation,
    Quality,
    TaskContext,
    TrajectoryMetadata,
    TrajectoryTurn,
    TurnResult,
)
from ratchet.core.errors import Rejected
from ratchet.core.rules.chat import trajectory_turns

Content = str | JsonObject | list[JsonObject]
S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, kw_only=True)
class Agent:
    """The agent that records."""

    agent_id: str
    role: str
    session_id: str
    subordinate_profile: str | None = None


@dataclass(kw_only=True)
class TrajectoryRecorder:
    """A trajectory in the making; leaving the `with` block publishes it, once, whatever happened inside.

    An exception inside marks the outcome as a failure that the agent reported itself, and propagates to the caller.
    A trajectory without a turn is not published, nor is one with a part that could not be recorded.
    """

    trajectory_id: str
    agent: Agent
    task: TaskContext
    metadata: TrajectoryMetadata
    publish: Callable[[Trajectory], None] = field(repr=False)
    report: Callable[[Exception], None] = field(repr=False)
    """Takes the error of a part that could not be recorded. Raises it if the client is strict, else counts it."""
    new_id: Callable[[], str] = field(repr=False)
    now: Callable[[], datetime] = field(repr=False)
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
        self._broken = False
        self._ended = False

    def ran(self, started_at: datetime, ended_at: datetime) -> None:
        """It is over: when it ran, instead of now; its turns are recorded with its end. Raises `Rejected`."""
        if started_at.tzinfo is None or ended_at.tzinfo is None or ended_at < started_at:
            raise Rejected("a start and an end have a time zone, and the end comes last")
        self._started_at = started_at
        self.now = lambda: ended_at

    def turn(
        self,
        *,
        observation: Observation | Content,
        action: Action | Mapping[str, Any] | str,
        result: TurnResult | Mapping[str, Any] | str | None = None,
        thought_process: Sequence[str] | None = None,
        reward: float | None = None,
    ) -> None:
        """Add one turn: the agent's observation, its action, and the result.

        Plain texts are a user's message, the agent's answer, and the output. Otherwise the members of the contract:
        observation {type, content, context?}, action {type, tool_name?, tool_args?, raw_response?},
        result {success, output?, error?, execution_time_ms?}.
        """
        with self._guarded():
            turn = TrajectoryTurn(
                turn_id=len(self._turns) + 1,
                timestamp=self.now(),
                observation=_observation(observation),
                action=_action(action),
                result=_result(result),
                thought_process=list(thought_process) if thought_process is not None else None,
                reward=reward,
            )
            self._turns.append(turn)

    def chat(self, messages: Sequence[JsonObject], *, tools: Sequence[JsonObject] | None = None) -> None:
        """Record a whole conversation in OpenAI's form, tool calls and results included, as this trajectory's turns."""
        with self._guarded():
            instructions, self._turns = trajectory_turns(plain(list(messages)), started_at=self._started_at)
            self.task = msgspec.structs.replace(
                self.task,
                instructions=instructions or self.task.instructions,
                tools=plain(list(tools)) if tools is not None else self.task.tools,
            )

    def outcome(
        self,
        status: str,
        *,
        completion_percentage: float | None = None,
        score: float | None = None,
        verified_by: str | None = None,
    ) -> None:
        """How it ended: `success`, `partial` or `failure`. Name in `verified_by` the check that verified it, if any."""
        self._outcome = Outcome(
            status=status, completion_percentage=completion_percentage, score=score, verified_by=verified_by
        )

    def quality(
        self,
        *,
        lint_score: float | None = None,
        tests_passed: int | None = None,
        tests_total: int | None = None,
        critical_issues: int | None = None,
    ) -> None:
        """Quality of produced code; `lint_score` is 0..10."""
        self._quality = Quality(
            lint_score=lint_score, tests_passed=tests_passed, tests_total=tests_total, critical_issues=critical_issues
        )

    def policy(self, claim: PolicyClaim) -> None:
        """The policy that answered, if the agent knows it from the gateway's headers."""
        self._policy = claim

    def usage(self, *, tokens: int = 0, cost_usd: float = 0.0) -> None:
        """Add the tokens and the cost of a call."""
        self._tokens = (self._tokens or 0) + tokens
        self._cost = (self._cost or 0.0) + cost_usd

    def subordinate(self, profile: str, *, task_id: str, instructions: str = "") -> TrajectoryRecorder:
        """Begin the trajectory of a sub-agent: same session, linked to this one."""
        return TrajectoryRecorder(
            trajectory_id=self.new_id(),
            agent=replace(self.agent, agent_id=f"{self.agent.agent_id}/{profile}", subordinate_profile=profile),
            task=TaskContext(task_id=task_id, instructions=instructions, domain=self.task.domain),
            metadata=TrajectoryMetadata(model=self.metadata.model, temperature=self.metadata.temperature),
            publish=self.publish,
            report=self.report,
            new_id=self.new_id,
            now=self.now,
            parent_trajectory_id=self.trajectory_id,
            user_ref=self.user_ref,
        )

    @property
    def is_whole(self) -> bool:
        """Whether it has a turn, and no part that could not be recorded: else it is not published."""
        return bool(self._turns) and not self._broken

    def end(self) -> None:
        """Publish. The end of the `with` block does so by itself; a second call does nothing."""
        if self._ended:
            return
        self._ended = True
        if not self.is_whole:
            return
        metadata = msgspec.structs.replace(
            self.metadata, total_tokens=self._tokens, total_cost_usd=self._cost, source=self.metadata.source or "client"
        )
        self.publish(
            Trajectory(
                trajectory_id=self.trajectory_id,
                session_id=self.agent.session_id,
                agent_id=self.agent.agent_id,
                start_timestamp=self._started_at,
                end_timestamp=self.now(),
                turns=list(self._turns),
                task_context=self.task,
                metadata=metadata,
                role=self.agent.role,
                subordinate_profile=self.agent.subordinate_profile,
                user_ref=self.user_ref,
                outcome=self._outcome,
                policy=self._policy,
                quality=self._quality,
                parent_trajectory_id=self.parent_trajectory_id,
                labels=self.labels,
            )
        )

    def __enter__(self) -> TrajectoryRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        verified = self._outcome is not None and self._outcome.verified_by is not None
        if error is not None and not verified:
            self.outcome("failure")
        self.end()

    async def __aenter__(self) -> TrajectoryRecorder:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """The boundary to the agent: its work matters more than its record."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - `report` raises it for a strict client
            self._broken = True
            self.report(error)


def plain(value: Any) -> Any:
    """A deep copy of `value` as JSON has it. An object that JSON has no form for becomes its text.

    `Any` on both sides: agents hand over any object. Raises the errors of msgspec for keys that are no text.
    """
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))


def _observation(seen: Observation | Content) -> Observation:
    """An object with `type` and `content` is an observation, any other content a user's message."""
    if isinstance(seen, Observation):
        return _copied(seen)
    content = plain(seen)
    if isinstance(content, dict) and "type" in content and "content" in content:
        return msgspec.convert(content, Observation)
    return Observation(type="user_message", content=cast("Content", content))


def _action(done: Action | Mapping[str, Any] | str) -> Action:
    if isinstance(done, Action):
        return _copied(done)
    return Action(type="response", raw_response=done) if isinstance(done, str) else msgspec.convert(plain(done), Action)


def _result(got: TurnResult | Mapping[str, Any] | str | None) -> TurnResult:
    if isinstance(got, TurnResult):
        return _copied(got)
    if got is None or isinstance(got, str):
        return TurnResult(success=True, output=got)
    return msgspec.convert(plain(got), TurnResult)


def _copied(part: S) -> S:
    """A copy that later changes to the agent's own objects do not reach."""
    return msgspec.convert(plain(part), type(part))
