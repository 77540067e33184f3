"""What both clients share: making recorders and feedback, redacting, and handing over to the outbox.

Nothing here waits for the network, and nothing raises into the agent unless it asked for `strict`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import structlog
import uuid_utils

from ratchet.client.settings import ClientSettings
from ratchet.client.trajectory import TrajectoryRecorder
from ratchet.kernel.errors import RatchetError
from ratchet.kernel.outbox import Outbox
from ratchet.kernel.redaction import Redactor
from ratchet.messages import Feedback, JsonObject, Message
from ratchet.messages.trajectory import TaskContext, TrajectoryMetadata

log = structlog.get_logger()

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Stats:
    """What became of everything that was recorded since the client was made."""

    published: int
    pending: int
    overflowed: int
    invalid: int
    """Not published: broke the contract, could not be redacted, or the broker refused it."""
    redacted: int
    """Secrets and personal data taken out."""


@dataclass(kw_only=True)
class Recording:
    """Makes trajectories and feedback of one agent and publishes them in the background."""

    agent_id: str
    role: str
    session_id: str
    settings: ClientSettings
    outbox: Outbox
    strict: bool
    now: Callable[[], datetime]
    subordinate_profile: str | None = None
    _redactor: Redactor = field(default_factory=Redactor, repr=False)
    _invalid: int = 0
    _redacted: int = 0

    def trajectory(
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
        """Begin a trajectory; use it as a context manager."""
        return TrajectoryRecorder(
            trajectory_id=trajectory_id or new_id(),
            session_id=self.session_id,
            agent_id=self.agent_id,
            role=self.role,
            task=TaskContext(
                task_id=task_id,
                instructions=instructions,
                complexity_score=complexity_score,
                domain=domain,
                group_key=group_key,
                tools=tools,
            ),
            metadata=TrajectoryMetadata(model=model, temperature=temperature),
            publish=self.submit,
            now=self.now,
            subordinate_profile=subordinate_profile or self.subordinate_profile,
            parent_trajectory_id=parent_trajectory_id,
            user_ref=self._user_ref(user_id),
            labels=labels,
        )

    def feedback(
        self,
        trajectory_id: str,
        *,
        thumbs: bool | None = None,
        stars: float | None = None,
        correction: str | None = None,
        comment: str | None = None,
        abandoned: bool = False,
        rater: str | None = None,
        source: str = "client",
    ) -> None:
        """Say something about a trajectory: exactly one of `thumbs`, `stars` (0..5), `correction`, `comment`,
        `abandoned`. Raises `ValueError` for none or several."""
        said: dict[str, Any] = {
            "thumbs": thumbs,
            "rating": stars,
            "correction": correction,
            "comment": comment,
            "abandoned": abandoned or None,
        }
        given = {kind: value for kind, value in said.items() if value is not None}
        if len(given) != 1:
            raise ValueError("give exactly one of thumbs, stars, correction, comment, abandoned")
        ((kind, value),) = given.items()
        self.submit(
            Feedback(
                feedback_id=new_id(),
                trajectory_id=trajectory_id,
                kind=kind,
                at=self.now(),
                role=self.role,
                value=value,
                source=source,
                rater=rater,
            )
        )

    def submit(self, message: Message) -> None:
        """Redact and queue. A message that cannot be redacted or breaks its contract is counted and never sent."""
        try:
            self.outbox.put(self._redact(message))
        except RatchetError as error:
            self._invalid += 1
            if self.strict:
                raise
            log.error("not recorded", topic=message.TOPIC, reason=str(error))

    @property
    def stats(self) -> Stats:
        """Counters since the client was made."""
        sent = self.outbox.stats
        return Stats(sent.published, self.outbox.pending, sent.overflowed, self._invalid + sent.refused, self._redacted)

    def _redact(self, message: M) -> M:
        redacted = self._redactor.redact(msgspec.to_builtins(message))
        if not redacted.counts:
            return message
        self._redacted += sum(redacted.counts.values())
        return msgspec.convert(redacted.value, type(message))

    def _user_ref(self, user_id: str | None) -> str | None:
        """A keyed hash: the same user is recognised, and nobody can compute who it is."""
        key = self.settings.user_key
        if user_id is None or key is None:
            return None
        return hmac.new(key.get_secret_value().encode(), user_id.encode(), hashlib.sha256).hexdigest()


def new_id() -> str:
    """A UUIDv7: the time it carries decides which canary weight was in force."""
    return str(uuid_utils.uuid7())
