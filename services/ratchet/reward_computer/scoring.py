"""Rewards -> scores of the role's reward model, which an engine holds: feedback of the kind `judgement`.

Nothing waits for it: a reward goes out without it, and its score makes the next revision. An engine that is away, slow
or refuses the model is asked again for `patience` after the reward; then the component stays absent, which a metric
counts, and a note of /readyz says why. A conversation that the model cannot read whole stays without a score at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from ratchet.bus.consumer import Done, Outcome, Retry
from ratchet.bus.received import Received
from ratchet.core.contract import Feedback, Reward
from ratchet.core.contract.reward import JUDGEMENT, JudgeRef
from ratchet.core.errors import BadRequest, NotFound, Rejected, Unavailable
from ratchet.core.evaluation.reward_scores import RewardScores
from ratchet.core.preferences.rules.base import Try
from ratchet.reward_computer import metrics
from ratchet.reward_computer.clickhouse_facts import Facts, Key
from ratchet.reward_computer.judging import PAUSE_S, judgement_id
from ratchet.reward_computer.kv_functions import InForce
from ratchet.reward_computer.model_notes import ModelNotes

log = structlog.get_logger()

ANSWER_S = 8.0
"""Of one score: less than a service may take to stop. An engine that loads the model goes on meanwhile."""
AT_ONCE = 4
"""Scores that are asked for at a time: an engine on a CPU computes one after the other."""

Texts = Callable[[Sequence[Key]], Awaitable[Mapping[Key, Try]]]
"""The trajectories that can be read, with their texts."""


@dataclass(frozen=True)
class Scoring:
    """The handler."""

    functions: InForce
    model_of: Callable[[str], RewardScores]
    """The reward model of a digest."""
    facts: Facts
    texts: Texts
    now: Callable[[], datetime]
    patience: timedelta
    notes: ModelNotes
    _at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE), init=False)

    async def is_needed(self) -> bool:
        """Whether the function in force asks a reward model about any role. Raises `BusUnavailable`."""
        return (await self.functions.in_force()).asks_reward_models

    async def scores(self, batch: Sequence[Received[Reward]]) -> Sequence[Outcome]:
        """Score the trajectories of rewards. Raises `Unavailable` where ClickHouse or the broker is away."""
        spec = await self.functions.in_force()
        digests: dict[Key, str] = {}
        for received in batch:
            reward = received.message
            digest = spec.reward_model_of(reward.role) if reward.reward_function == spec.function else None
            if digest is not None:
                digests[reward.role, reward.trajectory_id] = digest
        if not digests:
            return [Done() for _ in batch]
        texts, opinions = await self.texts(list(digests)), await self.facts.feedback(digests)
        known = {opinion.feedback_id for of in opinions.values() for opinion in of}

        async def outcome(received: Received[Reward]) -> Outcome:
            key = (received.message.role, received.message.trajectory_id)
            return await self._outcome(received, digests[key], texts.get(key), known) if key in digests else Done()

        return await asyncio.gather(*map(outcome, batch))

    async def _outcome(self, received: Received[Reward], digest: str, tried: Try | None, known: set[str]) -> Outcome:
        is_late = self.now() - received.time > self.patience
        if tried is None:
            return _counted("unreadable") if is_late else Retry("its turns are not stored yet", delay_s=PAUSE_S)
        if tried.is_left_out or judgement_id(tried, digest) in known:
            return Done()
        model = self.model_of(digest)
        try:
            async with self._at_once:
                score = await model.score(tried.messages, tried.tools)
        except BadRequest:
            return _counted("refused")
        except (Unavailable, NotFound, Rejected) as error:
            self.notes.silent(model.digest, f"{model.name} gives no score: {error}")
            log.warning("a reward model gives no score", reward_model=model.name, error=type(error).__name__)
            if is_late:
                return _counted("given_up")
            return Retry("its reward model does not answer", delay_s=PAUSE_S, away=True)
        self.notes.answered(digest)
        return _counted("scored", self._feedback(model, tried, score))

    def _feedback(self, model: RewardScores, tried: Try, score: float) -> Feedback:
        return Feedback(
            feedback_id=judgement_id(tried, model.digest),
            trajectory_id=tried.trajectory_id,
            kind=JUDGEMENT,
            at=self.now(),
            role=tried.role,
            value=score,
            user_ref=tried.user_ref,
            source="reward_model",
            rater=model.name,
            judge=JudgeRef(digest=model.digest, model=model.name),
        )


def _counted(outcome: str, *events: Feedback) -> Done:
    metrics.SCORES.labels(outcome).inc()
    return Done(events)
