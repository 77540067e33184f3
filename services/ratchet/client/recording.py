"""The part that both clients share: it makes recorders, feedback and preferences, and queues their messages.

Nothing here waits for the network or a disk, and nothing raises into the agent unless it asked for `strict`; an episode
that is over is recorded whole or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import msgspec
import structlog
import uuid_utils

from ratchet.bus.contracts import Contracts
from ratchet.client.opt_outs import OptOuts
from ratchet.client.preparer import checking
from ratchet.client.settings import ClientSettings
from ratchet.client.trajectory import Agent, TrajectoryRecorder, plain
from ratchet.core.contract import Feedback, JsonObject, Message, OptOut, Preference
from ratchet.core.contract.erasure import AGENT, SESSION, USER
from ratchet.core.contract.opt_out import EVERY_ROLE
from ratchet.core.contract.reward import SOURCES, preference_id
from ratchet.core.contract.trajectory import TaskContext, TrajectoryMetadata
from ratchet.core.errors import ContractError, InvalidMessage, Rejected
from ratchet.core.rules.chat import ChatError
from ratchet.core.rules.texts import user_ref
from ratchet.core.service.logs import failure, reason_of

log = structlog.get_logger()

Answer = str | list[JsonObject]
"""A text, or chat messages in OpenAI's form."""


@dataclass(frozen=True, slots=True)
class Stats:
    """The fate of all that was recorded since the client was made."""

    published: int
    """Stored by the broker."""
    pending: int
    """In memory or in the spool."""
    overflowed: int
    """Lost: a queue in memory, or the spool on disk, was full."""
    damaged: int
    """Lost: kept in the spool, and altered, cut off or deleted on disk."""
    invalid: int
    """Not published: broke the contract, could not be redacted, or the broker refused it."""
    redacted: int
    """Secrets and personal data taken out."""
    redactions: Mapping[str, int]
    """The same by type."""
    opted_out: int = 0
    """Not published: someone whom it was about has opted out."""


@dataclass(slots=True)
class Recording:
    """Makes the trajectories and feedback of one agent."""

    agent: Agent
    settings: ClientSettings
    contracts: Contracts
    put: Callable[[Message], None]
    opt_outs: OptOuts
    strict: bool
    now: Callable[[], datetime]
    unrecordable: int = field(default=0, init=False)
    """Turns, chats and feedback of the wrong shape, which became no message."""

    def trajectory(  # noqa: PLR0913 - keywords: the members of a trajectory
        self,
        *,
        task_id: str,
        instructions: str = "",
        model: str = "unknown",
        temperature: float | None = None,
        group_key: str | None = None,
        domain: str | None = None,
        complexity_score: float | None = None,
        tools: list[JsonObject] | None = None,
        trajectory_id: str | None = None,
        user_id: str | None = None,
        parent_trajectory_id: str | None = None,
        subordinate_profile: str | None = None,
        labels: JsonObject | None = None,
    ) -> TrajectoryRecorder:
        """Begin a trajectory; use it as a context manager.

        `group_key`: equal for several tries of one task. `trajectory_id`: the gateway's (`x-ratchet-trajectory`), when
        the agent's calls go through it. `user_id` is hashed with the key in the settings, and not sent without one.
        """
        return TrajectoryRecorder(
            trajectory_id=trajectory_id or new_id(),
            agent=replace(self.agent, subordinate_profile=subordinate_profile or self.agent.subordinate_profile),
            task=TaskContext(
                task_id=task_id,
                instructions=instructions,
                complexity_score=complexity_score,
                domain=domain,
                group_key=group_key,
                tools=plain(tools),
            ),
            metadata=TrajectoryMetadata(model=model, temperature=temperature),
            publish=self.submit,
            report=self._report,
            new_id=new_id,
            now=self.now,
            parent_trajectory_id=parent_trajectory_id,
            user_ref=user_ref(self._user_key, user_id),
            labels=plain(labels),
        )

    def feedback(  # noqa: PLR0913 - keywords: the kinds of feedback
        self,
        trajectory_id: str,
        *,
        thumbs: bool | None = None,
        stars: float | None = None,
        correction: str | None = None,
        comment: str | None = None,
        abandoned: bool = False,
        metric: float | None = None,
        observation: str | None = None,
        error_analysis: str | None = None,
        efficiency: float | None = None,
        outcome_evaluation: float | None = None,
        rater: str | None = None,
        source: str = "client",
    ) -> None:
        """Say one thing about a trajectory: `thumbs`, `stars` (0..5), `correction`, `comment` or `abandoned`; a
        `metric`; an `observation` or `error_analysis` in words; `efficiency` or `outcome_evaluation` (0..1)."""
        values: dict[str, Any] = {
            "thumbs": thumbs,
            "rating": stars,
            "correction": correction,
            "comment": comment,
            "abandoned": abandoned or None,
            "metric": metric,
            "observation": observation,
            "error_analysis": error_analysis,
            "efficiency": efficiency,
            "outcome_evaluation": outcome_evaluation,
        }
        given = [(kind, value) for kind, value in values.items() if value is not None]
        if len(given) != 1:
            self._report(InvalidMessage(f"give exactly one of {', '.join(values)}".replace("rating", "stars")))
            return
        kind, value = given[0]
        self.submit(
            Feedback(
                feedback_id=new_id(),
                trajectory_id=trajectory_id,
                kind=kind,
                at=self.now(),
                role=self.agent.role,
                value=value,
                source=source,
                rater=rater,
            )
        )

    def record_episode(  # noqa: PLR0913 - keywords: the parts of an episode
        self,
        *,
        context: Mapping[str, Any],
        actions: Sequence[Mapping[str, Any]],
        outcome: str | Mapping[str, Any] | None = None,
        resources: Mapping[str, Any] | None = None,
        feedback: Sequence[Mapping[str, Any]] = (),
        started_at: datetime | None = None,
        ended_at: datetime | None = None,
    ) -> str:
        """Record a whole episode that is over, and return its id, the trajectory's.

        `context` is what `trajectory` takes, each action what `turn` takes, `outcome` a status or what `outcome` takes,
        `resources` what `usage` takes, and each feedback what `feedback` takes. Without `ended_at` it ends now, and
        without `started_at` it took no time. Raises `Rejected` at once, and records nothing, without any action, which
        is no trajectory, for instants that have no zone or go back, and for a part of the wrong shape.
        """
        if not actions:
            raise Rejected("an episode has at least one action")
        made = list[Message]()
        strictly = replace(self, strict=True, put=made.append)
        try:
            recorder = strictly.trajectory(**context)
            if started_at is not None or ended_at is not None:
                end = ended_at or self.now()
                recorder.ran(started_at or end, end)
            for action in actions:
                recorder.turn(**action)
            if outcome is not None:
                recorder.outcome(**({"status": outcome} if isinstance(outcome, str) else outcome))
            if resources is not None:
                recorder.usage(**resources)
            recorder.end()
            for opinion in feedback:
                strictly.feedback(recorder.trajectory_id, **opinion)
        except (ContractError, msgspec.MsgspecError, AttributeError, TypeError, ValueError) as error:
            raise Rejected(f"the episode is not recorded: {error}") from error
        for message in made:
            self.put(message)
        return recorder.trajectory_id

    def preference(  # noqa: PLR0913 - keywords: the members of a preference
        self,
        prompt: Answer,
        chosen: Answer,
        rejected: Answer,
        *,
        source: str = "human",
        rater: str | None = None,
        confidence: float | None = None,
        domain: str | None = None,
        tools: list[JsonObject] | None = None,
        labels: JsonObject | None = None,
    ) -> str:
        """Prefer one answer over another: texts, or lists of OpenAI messages; returns the preference's id.

        The same answers of the same rater are one preference, however often they are recorded. Raises `Rejected` at
        once for a `source` that is none of `SOURCES`, and for two equal answers.
        """
        if source not in SOURCES:
            raise Rejected(f"source must be one of {', '.join(SOURCES)}, not {source!r}")
        if chosen == rejected:
            raise Rejected("chosen and rejected are the same: that is no preference")
        made = Preference(
            preference_id=preference_id([self.agent.role, source, rater, prompt, chosen, rejected]),
            prompt=plain(prompt),
            chosen=plain(chosen),
            rejected=plain(rejected),
            source=source,
            role=self.agent.role,
            rater=rater,
            confidence=confidence,
            domain=domain,
            tools=plain(tools),
            labels=plain(labels),
        )
        self.submit(made)
        return made.preference_id

    def opt_out(
        self,
        *,
        user: str | None = None,
        session: str | None = None,
        agent: str | None = None,
        role: str | None = None,
        is_over: bool = False,
    ) -> None:
        """Record nothing of someone any more, and have what is stored of a user or session erased.

        It holds in this client's role, or in `role`; `"*"` is every role. This client heeds it at once, also while the
        broker is away, others within 5 s. `is_over`: record them again. Raises `Rejected` for anything but exactly one
        of the three, and for a user where `RATCHET_CLIENT_USER_KEY` is not set.
        """
        named = [(kind, name) for kind, name in ((USER, user), (SESSION, session), (AGENT, agent)) if name]
        if len(named) != 1:
            raise Rejected("name exactly one of user, session and agent")
        kind, name = named[0]
        ref = user_ref(self._user_key, name) if kind == USER else name
        if ref is None:
            raise Rejected("a user cannot opt out here: set RATCHET_CLIENT_USER_KEY, without which nothing names users")
        asked = OptOut(
            opt_out_id=new_id(),
            kind=kind,
            ref=ref,
            at=self.now(),
            role=EVERY_ROLE if role == "*" else role or self.agent.role,
            is_over=is_over,
            source=f"client:{self.agent.agent_id}",
        )
        self.contracts.check_strict(asked)
        self.opt_outs.note(asked)
        self.put(asked)

    @property
    def _user_key(self) -> str | None:
        key = self.settings.user_key
        return key.get_secret_value() if key is not None else None

    def submit(self, message: Message) -> None:
        """Queue a message. It is redacted and checked in the background; a strict client checks it here as well."""
        if self.strict:
            with checking:
                self.contracts.check_strict(message)
        self.put(message)

    def _report(self, error: Exception) -> None:
        if self.strict:
            raise error
        self.unrecordable += 1
        words = {"reason": reason_of(error)} if isinstance(error, ChatError) else {}  # quotes are left out
        log.error("not recorded", **failure(error) | words)


def new_id() -> str:
    """A UUIDv7: its time decides which canary weight was in force."""
    return str(uuid_utils.uuid7())
